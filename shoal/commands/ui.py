"""`shoal ui`: the runs of a folder in a browser."""

from pathlib import Path
from typing import Annotated

import typer

from shoal.dispatch import handled_by


@handled_by("ui", says=False)
def ui(
    folder: Annotated[
        Path,
        typer.Argument(help="Where runs are, such as runs; folders in it are looked through too."),
    ] = Path("runs"),
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65535, help="Port of this machine's own address; 0: any that is free."
        ),
    ] = 8099,
) -> None:
    """Show the runs of a folder in a browser, and compare them. Only this machine is answered;
    nothing is changed."""
