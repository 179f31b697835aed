"""`shoal database`: the schema of a service's database."""

from pathlib import Path

import typer

from aggregator.leadership.identity import is_served
from aggregator.storage import schema
from aggregator.storage.engine import database_name, sqlite_url
from aggregator.storage.enrolment_store import upgrade_enrolments
from wire.errors import ConfigError


def check(folder: Path, url: str) -> None:
    """Carry out `shoal database check`."""
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


def upgrade(folder: Path, url: str) -> None:
    """Carry out `shoal database upgrade`."""
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
        raise ConfigError(
            f"folder {folder}: there is no shoal.db; `shoal serve --folder` makes it, or name "
            "another with --database"
        )
    return url or sqlite_url(path)
