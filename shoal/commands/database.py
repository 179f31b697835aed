"""`shoal database`: the schema of a service's database."""

from pathlib import Path
from typing import Annotated

import typer

from shoal.dispatch import handled_by

database = typer.Typer(
    help="Look at the schema of a service's database, and migrate it.", no_args_is_help=True
)


Folder = Annotated[Path, typer.Argument(help="The service's folder.")]
Url = Annotated[str, typer.Option("--database", help="As `shoal serve --database`.")]


@database.command()
@handled_by("database")
def check(folder: Folder, url: Url = "") -> None:
    """Print the schema's revision; status 1 if this Shoal has a newer one. Nothing is written."""


@database.command()
@handled_by("database")
def upgrade(folder: Folder, url: Url = "") -> None:
    """Migrate the database to the schema of this Shoal, in one transaction: where that fails, it is
    as it was. `shoal serve` does so when it starts."""
