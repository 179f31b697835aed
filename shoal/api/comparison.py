"""`shoal.compare`: what the command of this name does in one scenario, from Python."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from algorithms.core.contract import Objective
from algorithms.registry import make_algorithm, read_algorithm
from host.threads import one_thread
from shoal.api.data import fleet_of
from shoal.api.settings import make_settings
from shoal.api.tables import to_frame
from shoal.choices import check_bounds, with_privacy
from shoal.comparison_files import write_comparison
from shoal.comparison_tables import flat_row
from shoal.folders import prepare_folder
from simulation.compare import Asked, check_jobs, read_algorithms, run_all, run_job
from simulation.datasets.windows import FleetData
from simulation.objective import ModelMaker, objective_on
from simulation.partition import read_partition
from simulation.scenario import check_scenario
from simulation.simulate import SimulationSettings, check_settings
from simulation.table import tabulate
from wire.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Comparison:
    """Several algorithms on the same data."""

    rows: list[dict[str, Any]]
    """A row for each algorithm, with the fields of ``compare.json`` (docs/compare.md)."""
    runs: list[dict[str, Any]] = field(repr=False)
    """The result of each run, seed by seed."""

    @property
    def table(self) -> "pd.DataFrame":
        """The rows as a DataFrame, with the columns of ``compare.csv``.

        Raises:
            ConfigError: pandas is not installed; `rows` needs none.
        """
        return to_frame([flat_row(row) for row in self.rows], ())


def compare(
    algorithms: str | Sequence[str],
    data: FleetData | str | Path = "watch",
    *,
    rounds: int = 20,
    local_epochs: int = 1,
    seeds: int = 1,
    out: str | Path | None = None,
    partition: str = "user",
    attack: str = "",
    privacy: str = "",
    labels: str | int = "all",
    split: str = "own",
    newcomers: int = 0,
    reference: str = "",
    target: float | None = None,
    devices: int | None = None,
    batch_size: int = 32,
    update_encoding: str = "float32",
    lr: float | None = None,
    hyper: Mapping[str, float] | None = None,
    lr_schedule: str = "",
    model: str | nn.Module | ModelMaker = "",
    pretrain: str = "",
    cohort: int = 0,
    profiles: str = "",
    policy: str = "",
    workers: int = 1,
) -> Comparison:
    """Compare algorithms, each over the seeds 0 to `seeds` - 1. The options are those of `shoal compare` (docs/compare.md).

    With `out`, the table and the picture are written there. Data and a model by name are compared by `workers` processes (a script then
    needs ``if __name__ == "__main__":``), and a comparison with `out` that was interrupted goes on. A `FleetData` or a model of your own is
    compared in this process.

    Raises:
        ConfigError: options that cannot be read, or do not fit each other, the data or the model.
        DataError: the data cannot be read, or do not allow what is asked of them.
    """
    if wrong := [a for a in ([algorithms] if isinstance(algorithms, str) else algorithms) if not isinstance(a, str)]:
        raise ConfigError(f"algorithm {str(wrong[0])!r} of a comparison: expected names, such as fedavg or FILE.py:CLASS")
    written = algorithms if isinstance(algorithms, str) else ",".join(algorithms)
    compared = tuple(with_privacy(algorithm, privacy) for algorithm in read_algorithms(written))
    for algorithm in compared:
        make_algorithm(algorithm)
    base = with_privacy(read_algorithm(reference), privacy) if reference else compared[0]
    if base not in compared:
        raise ConfigError(f"reference {reference}: expected one of {written}")
    check_bounds(seeds=seeds, devices=devices, target=target, workers=workers)
    common = make_settings(
        rounds=rounds,
        local_epochs=local_epochs,
        batch_size=batch_size,
        update_encoding=update_encoding,
        lr=lr,
        hyper=hyper or {},
        lr_schedule=lr_schedule,
        model=model if isinstance(model, str) else "",
        attack=attack,
        privacy=privacy,
        pretrain=pretrain,
        labels=labels,
        split=split,
        newcomers=newcomers,
        cohort=cohort,
        profiles=profiles,
        policy=policy,
    )
    folder = prepare_folder(Path(out), "out") if out is not None else None
    asked = Asked(str(data), compared, seeds, read_partition(partition), devices, common)
    if isinstance(data, FleetData) or not isinstance(model, str):
        if workers != 1:
            raise ConfigError(f"workers = {workers}: a FleetData or a model of your own is compared in this process")
        results = _run_here(asked, data, partition, None if isinstance(model, str) else model)
    else:
        results = _run_by_name(asked, folder, workers)
    rows = tabulate(results, target, str(base))
    if folder is not None:
        write_comparison(folder, results, rows)
    return Comparison(rows, results)


def _run_by_name(asked: Asked, folder: Path | None, workers: int) -> list[dict[str, Any]]:
    jobs = asked.jobs()
    with tempfile.TemporaryDirectory(prefix="shoal-") as temporary, one_thread():
        runs = (folder or Path(temporary)) / "runs"
        check_jobs(jobs, runs)
        return run_all(jobs, runs, workers)


def _run_here(asked: Asked, data: FleetData | str | Path, partition: str, model: nn.Module | ModelMaker | None) -> list[dict[str, Any]]:
    if model is not None and asked.settings.pretrain:
        raise ConfigError(f"pretrain {asked.settings.pretrain!r}: a model of your own brings its weights; expected a model's name")
    check_scenario(asked.settings.scenario, asked.partition)
    results = []
    with one_thread():
        for job in asked.jobs():
            settings = job.settings
            fleet = fleet_of(data, partition, job.devices, settings.seed, settings.scenario)
            if settings.seed == 0 and model is None:
                check_settings(fleet, settings)
            results.append(run_job(job, fleet=fleet, objective=partial(_objective, model, settings) if model is not None else None))
    return results


def _objective(model: nn.Module | ModelMaker, settings: SimulationSettings, data: FleetData) -> Objective:
    return objective_on(model, data, settings.algorithm, settings.seed)
