"""`shoal check`: whether a choice of one's own keeps the contract of every choice."""

from typing import Annotated

import typer

from shoal.commands import options as opt
from shoal.dispatch import handled_by


@handled_by("check", loads="torch")
def check(
    choice: Annotated[
        str,
        typer.Argument(
            help="FILE.py:CLASS or PACKAGE.MODULE:CLASS with options, or a name that `shoal "
            "algorithms` lists."
        ),
    ],
    phones: Annotated[
        bool, typer.Option(help="Also export to ExecuTorch, where it is installed.")
    ] = True,
    as_json: opt.Json = False,
) -> None:
    """Check that a choice of your own keeps the contract of every choice of an algorithm."""
