"""`shoal backup`: a copy of a service's folder, made while the service runs."""

from pathlib import Path
from typing import Annotated

import typer

from shoal.dispatch import handled_by


@handled_by("backup")
def backup(
    folder: Annotated[Path, typer.Argument(help="The folder of `shoal serve --folder`.")],
    to: Annotated[
        Path,
        typer.Argument(
            help="The new folder that is to hold the copy. Keep it as secret as the keys in it."
        ),
    ],
) -> None:
    """Copy a service's folder while the service runs: database, blobs and keys, as they are at one
    moment."""
