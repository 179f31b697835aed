"""`shoal restore`: a copy in the place of a service's folder."""

from pathlib import Path
from typing import Annotated

import typer

from shoal.dispatch import handled_by


@handled_by("restore")
def restore(
    copy: Annotated[Path, typer.Argument(help="A folder that `shoal backup` made.")],
    folder: Annotated[
        Path,
        typer.Argument(
            help="The folder of `shoal serve --folder`; what is there is kept beside it."
        ),
    ],
) -> None:
    """Put a copy in the place of a service's folder, once it has been found whole. No service may
    run there."""
