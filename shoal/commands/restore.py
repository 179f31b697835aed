"""The command `shoal restore`, which puts a copy in the place of a service's folder."""

from pathlib import Path
from typing import Annotated

import typer

from shoal.command import command


@command()
def restore(
    copy: Annotated[Path, typer.Argument(help="Folder that `shoal backup` wrote.")],
    folder: Annotated[
        Path,
        typer.Argument(
            help="Folder of `shoal serve --folder`; its present content is kept beside it."
        ),
    ],
) -> None:
    """Check a copy, and put it in the place of a service's folder.

    No service may run in that folder.
    """
    from rich.console import Console

    from aggregator.maintenance.backup import restore as put_back
    from shoal.waiting import steps

    with steps(Console(), f"checking {copy}, and putting it in the place of {folder}"):
        aside, messages = put_back(copy, folder)
    note = f"; what was there is in {aside}" if aside else ""
    print(
        f"{folder} is as it was copied{note}. `shoal serve` continues from there: it repeats the "
        "rounds since then, and counts nothing twice"
    )
    for line in messages:
        print(line)
