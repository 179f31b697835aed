"""`shoal database`: the schema of a service's database."""

from pathlib import Path
from typing import Annotated

import typer

from shoal.command import command
from wire.errors import ConfigError

database = typer.Typer(
    help="Look at the schema of a service's database, and migrate it.", no_args_is_help=True
)


Folder = Annotated[Path, typer.Argument(help="The service's folder.")]


Url = Annotated[str, typer.Option("--database", help="As `shoal serve --database`.")]


@database.command()
@command()
def check(folder: Folder, url: Url = "") -> None:
    """Print the schema's revision; status 1 if this Shoal has a newer one. Nothing is written."""
    from aggregator.storage import schema
    from aggregator.storage.engine import database_name

    where = _where(folder, url)
    revision, newest = schema.current(where), schema.newest()
    told = (
        "is the newest"
        if revision == newest
        else f"`shoal database upgrade` or the next `shoal serve` makes it {newest}"
    )
    typer.echo(f"{database_name(where)}: schema {revision or 'empty'}, {told}")
    if revision != newest:
        raise typer.Exit(1)


@database.command()
@command()
def upgrade(folder: Folder, url: Url = "") -> None:
    """Migrate the database to the schema of this Shoal, in one transaction: where that fails, it is
    as it was. `shoal serve` does so when it starts."""
    from aggregator.leadership.identity import is_served
    from aggregator.storage import schema
    from aggregator.storage.engine import database_name
    from aggregator.storage.enrolment_store import upgrade_enrolments

    where = _where(folder, url)
    if is_served(folder):
        raise ConfigError(f"folder {folder}: a service runs there; stop it")
    before, after = schema.upgrade(where)
    upgrade_enrolments(folder)
    typer.echo(f"{database_name(where)}: schema {after}, it was {before or 'empty'}")


def _where(folder: Path, url: str) -> str:
    """The database's URL.

    Raises:
        ConfigError: there is no such folder, or no database in it.
    """
    from aggregator.storage.engine import sqlite_url

    path = folder / "shoal.db"
    if not url and not path.is_file():
        raise ConfigError(
            f"folder {folder}: there is no shoal.db; `shoal serve --folder` makes it, or name "
            "another with --database"
        )
    return url or sqlite_url(path)
