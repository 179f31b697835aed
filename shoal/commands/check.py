"""The command `shoal check`, which tests one's own choice against the contract of every choice."""

from __future__ import annotations

from typing import Annotated

import typer

from shoal.command import command, print_json
from shoal.commands import options as opt


@command(loads="simulation.contract.suite")
def check(
    choice: Annotated[
        str,
        typer.Argument(
            help="FILE.py:CLASS or PACKAGE.MODULE:CLASS, with options, or a name of `shoal "
            "algorithms`."
        ),
    ],
    phones: Annotated[
        bool, typer.Option(help="Check the export to ExecuTorch too, if it is installed.")
    ] = True,
    as_json: opt.Json = False,
) -> None:
    """Check that a choice of your own keeps the contract of an algorithm's choices."""
    from simulation.contract import suite

    def show(event: suite.Outcome | str) -> None:
        if as_json:
            return
        if isinstance(event, str):
            print(event, flush=True)
            return
        text = event.failure or event.remark
        status = "FAILED" if event.failure else "ok    "
        print(f"{status}  {event.title}" + (f": {text}" if text else ""), flush=True)

    outcomes = suite.check(choice, phones=phones, on_progress=show)
    failed = sum(bool(outcome.failure) for outcome in outcomes)
    show(f"{len(outcomes) - failed} of {len(outcomes)} checks passed")
    if as_json:
        print_json(outcomes)
    if failed:
        raise typer.Exit(1)
