"""`shoal check`: whether a choice of one's own keeps the contract of every choice."""

from functools import partial
from typing import Annotated

import typer

from shoal.command import command, print_json
from shoal.commands import options as opt


@command(loads="simulation.contract.suite")
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
    from simulation.contract.devices import has_executorch
    from simulation.contract.suite import checks_of, run_checks

    phones = phones and has_executorch()
    kind, name, checks = checks_of(choice, phones)
    say = (lambda _: None) if as_json else partial(print, flush=True)
    say(f"{choice}: the {kind} {name}, {len(checks)} checks")
    outcomes = []
    for outcome in run_checks(checks):
        outcomes.append(outcome)
        told = f": {outcome.failure or outcome.remark}" if outcome.failure or outcome.remark else ""
        say(f"{'FAILED' if outcome.failure else 'ok    '}  {outcome.title}{told}")
    failed = sum(bool(outcome.failure) for outcome in outcomes)
    say(f"{len(checks) - failed} of {len(checks)} checks passed")
    if as_json:
        print_json(outcomes)
    if failed:
        raise typer.Exit(1)
