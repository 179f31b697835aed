"""The command `shoal backup`: a copy of a service's folder while the service runs."""

from pathlib import Path
from typing import Annotated

import typer

from shoal.command import command


@command()
def backup(
    folder: Annotated[Path, typer.Argument(help="Folder of `shoal serve --folder`.")],
    to: Annotated[
        Path,
        typer.Argument(help="New folder for the copy. Keep it as secret as the keys in it."),
    ],
) -> None:
    """Copy a service's folder while the service runs.

    The copy has the database, the blobs and the keys as they are at one moment.
    """
    from rich.console import Console

    from aggregator.maintenance.backup import back_up
    from shoal.waiting import steps

    with steps(Console(), f"copying {folder}"):
        copied = back_up(folder, to)
    print(
        f"{to}: {', '.join(copied.runs) or 'no run'}, {copied.blobs} blobs, "
        f"{copied.bytes / 1e6:.1f} MB; `shoal restore {to} {folder}` puts it back"
    )
