"""`shoal database`: the schema of a service's database."""

from pathlib import Path
from typing import Annotated

import typer

from aggregator.adapters import schema
from aggregator.adapters.engine import database_name, sqlite_url
from aggregator.adapters.enrolment_store import upgrade_enrolments
from aggregator.identity import is_served
from wire.errors import ConfigError

database = typer.Typer(help="Look at the schema of a service's database, and migrate it.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(help="The service's folder.")]
Url = Annotated[str, typer.Option("--database", help="As `shoal serve --database`.")]


@database.command()
def check(folder: Folder, url: Url = "") -> None:
    """Print the schema's revision; status 1 if this Shoal has a newer one. Nothing is written."""
    where = _where(folder, url)
    revision, newest = schema.current(where), schema.newest()
    told = "is the newest" if revision == newest else f"`shoal database upgrade` or the next `shoal serve` makes it {newest}"
    typer.echo(f"{database_name(where)}: schema {revision or 'empty'}, {told}")
    if revision != newest:
        raise typer.Exit(1)


@database.command()
def upgrade(folder: Folder, url: Url = "") -> None:
    """Migrate the database to the schema of this Shoal, in one transaction: where that fails, it is as it was. `shoal serve` does so when
    it starts."""
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
    path = folder / "shoal.db"
    if not url and not path.is_file():
        raise ConfigError(f"folder {folder}: there is no shoal.db; `shoal serve --folder` makes it, or name another with --database")
    return url or sqlite_url(path)
