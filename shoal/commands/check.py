"""`shoal check`: whether a choice of one's own keeps the contract of every choice."""

from typing import Annotated

import typer

from simulation.contract.devices import has_executorch
from simulation.contract.suite import checks_of, run_checks


def check(
    choice: Annotated[
        str, typer.Argument(help="FILE.py:CLASS or PACKAGE.MODULE:CLASS with options, or a name that `shoal algorithms` lists.")
    ],
    phones: Annotated[bool, typer.Option(help="Also export to ExecuTorch, where it is installed.")] = True,
) -> None:
    """Check that a choice of your own keeps the contract of every choice of an algorithm."""
    phones = phones and has_executorch()
    kind, name, checks = checks_of(choice, phones)
    failed = 0
    print(f"{choice}: the {kind} {name}, {len(checks)} checks")
    for outcome in run_checks(checks):
        told = f": {outcome.failure or outcome.remark}" if outcome.failure or outcome.remark else ""
        print(f"{'FAILED' if outcome.failure else 'ok    '}  {outcome.title}{told}", flush=True)
        failed += bool(outcome.failure)
    print(f"{len(checks) - failed} of {len(checks)} checks passed")
    if failed:
        raise typer.Exit(1)
