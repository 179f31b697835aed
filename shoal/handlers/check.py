"""`shoal check`: whether a choice of one's own keeps the contract of every choice."""

import typer

from simulation.contract.devices import has_executorch
from simulation.contract.suite import checks_of, run_checks


def check(choice: str, phones: bool) -> None:
    """Carry out `shoal check`."""
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
