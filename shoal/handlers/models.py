"""`shoal models rounds`: the models of a run's last rounds. `releases.py` and `model_files.py` have
the other commands on models."""

from pathlib import Path
from statistics import fmean

import msgspec

from aggregator.core.state import ModelVersion
from aggregator.core.versions import latest
from shoal.held_model import state_of
from shoal.printing import print_json


def list_models(folder: Path, run: str, database: str, as_json: bool) -> None:
    """Carry out `shoal models rounds`."""
    state = state_of(folder, run, database)
    current = latest(state)
    versions = [*(v for v in state.history if v.round != current.round), current]
    if as_json:
        print_json(
            [
                {**msgspec.to_builtins(version), "offered": version is current}
                for version in versions
            ]
        )
        return
    print(f"{'made in':>8}  {'models':>6}  {'devices':>7}  {'accuracy':>8}  {'loss':>8}")
    for version in versions:
        print(_line(version) + ("  offered now" if version is current else ""))


def _line(version: ModelVersion) -> str:
    """A version's line in the table; a dash where no device has evaluated it."""
    evaluated = version.evaluated.values()
    accuracy, loss = _mean([m.accuracy for m in evaluated]), _mean([m.mean_loss for m in evaluated])
    return (
        f"{version.round:>8}  {len(version.models):>6}  {len(evaluated):>7}  {accuracy:>8}  "
        f"{loss:>8}"
    )


def _mean(values: list[float]) -> str:
    return f"{fmean(values):.4f}" if values else "-"
