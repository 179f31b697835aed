"""The command `shoal restore`, which puts a copy in the place of a service's folder."""

from pathlib import Path
from typing import Annotated

import typer

from shoal.command import command


@command()
def restore(
    copy: Annotated[Path, typer.Argument(help="A folder that `shoal backup` made.")],
    folder: Annotated[
        Path,
        typer.Argument(
            help="The folder of `shoal serve --folder`; what is there is kept beside it."
        ),
    ],
) -> None:
    """Put a copy in the place of a service's folder, once it has been found whole.

    No service may run there.
    """
    from rich.console import Console

    from aggregator.maintenance.backup import restore as put_back
    from shoal.waiting import steps

    with steps(Console(), f"checking {copy}, and putting it in the place of {folder}"):
        aside, messages = put_back(copy, folder)
    note = f"; what was there is in {aside}" if aside else ""
    print(
        f"{folder} is as it was copied{note}. `shoal serve` goes on from there: rounds since then "
        "are done again, and nothing counts twice"
    )
    for line in messages:
        print(line)
