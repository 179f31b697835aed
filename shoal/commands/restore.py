"""`shoal restore`: a copy in the place of a service's folder."""

from pathlib import Path
from typing import Annotated

import typer

from aggregator.doctor.backup import restore as put_back


def restore(
    copy: Annotated[Path, typer.Argument(help="A folder that `shoal backup` made.")],
    folder: Annotated[Path, typer.Argument(help="The folder of `shoal serve --folder`; what is there is kept beside it.")],
) -> None:
    """Put a copy in the place of a service's folder, once it has been found whole. No service may run there."""
    aside, told = put_back(copy, folder)
    kept = f"; what was there is in {aside}" if aside else ""
    print(
        f"{folder} is as it was copied{kept}. `shoal serve` goes on from there: rounds since then are done again, and nothing counts twice"
    )
    for line in told:
        print(line)
