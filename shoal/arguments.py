"""What several commands on a service's folder are given. Without torch: most of them need none."""

from pathlib import Path
from typing import Annotated

import typer

Folder = Annotated[Path, typer.Argument(help="The folder of `shoal serve --folder`.")]
Run = Annotated[str, typer.Option(help="Name of the run.")]
Database = Annotated[str, typer.Option(help="SQLAlchemy URL; SQLite in the folder when empty.")]
