"""`shoal.compare`: what the command of this name does, from Python: in one scenario or in a grid of
them."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from algorithms.composition import AlgorithmSpec, Given, algorithm_of, make_algorithm
from algorithms.objectives.supervised import Supervised
from algorithms.spec import PYTHON
from host.files import prepare_folder
from host.settings import check
from host.threads import one_thread
from shoal.api.data import fleet_of
from shoal.api.settings import make_settings
from shoal.api.tables import to_frame
from shoal.campaign_settings import with_privacy
from shoal.reports.files import write_comparison, write_grid
from shoal.reports.tables import flat_rows
from simulation.comparison.grid import SEEDS, Grid, make_cells, sort_out
from simulation.comparison.grid_table import place_of, tabulate_grid
from simulation.comparison.processes import check_jobs, run_all
from simulation.comparison.runs import Asked, Job, data_of, read_algorithms, run_job
from simulation.comparison.table import tabulate
from simulation.datasets.windows import FleetData, digest_of
from simulation.objective import ModelMaker, objective_on
from simulation.partition import read_partition
from simulation.scenario import check_scenario
from simulation.settings import ComparisonWords
from simulation.simulate import SimulationSettings
from wire.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Compared:
    """Data and a model of a comparison."""

    names: tuple[str, ...]
    """Of the data, in order: what a user wrote, or of a `FleetData` its name and the beginning of
    its digest."""
    fleets: Mapping[str, FleetData] = field(default_factory=dict, repr=False)
    """By name, the data that are objects."""
    model: nn.Module | ModelMaker | None = None
    """None where it has a name."""

    @classmethod
    def of(
        cls, data: Sequence[FleetData | str | Path], model: nn.Module | ModelMaker | None
    ) -> "Compared":
        """
        Raises:
            ConfigError: there are no data.
        """
        if not data:
            raise ConfigError("data: expected a name, a path or a FleetData, or a list of these")
        names = [
            f"{one.name}@{digest_of(one)[:16]}" if isinstance(one, FleetData) else str(one)
            for one in data
        ]
        return cls(
            tuple(names),
            {
                name: one
                for name, one in zip(names, data, strict=True)
                if isinstance(one, FleetData)
            },
            model,
        )

    def check(
        self, algorithms: Sequence[AlgorithmSpec], settings: SimulationSettings, workers: int
    ) -> None:
        """
        Raises:
            ConfigError: other processes are to run what they cannot find, or a model of one's own
            is to be trained before.
        """
        if self.model is not None and settings.pretrain:
            raise ConfigError(
                f"pretrain {settings.pretrain!r}: a model of your own brings its weights; "
                "expected a model's name"
            )
        if workers != 1 and (
            self.fleets or self.model is not None or any(map(_in_memory, algorithms))
        ):
            raise ConfigError(
                f"workers = {workers}: a FleetData, a model of your own and a class that is in no "
                "file are compared in this process"
            )

    def data_of(self, job: Job) -> FleetData:
        """The data of a job, before its scenario.

        Raises:
            ShoalError: they cannot be read or assigned, or the scenario does not go with the
            partition.
        """
        if job.data not in self.fleets:
            return data_of(job)
        check_scenario(job.settings.scenario, job.partition)
        return fleet_of(self.fleets[job.data], str(job.partition), job.devices, job.settings.seed)

    def lasts(self, job: Job) -> bool:
        """Whether the key of a job says what it is a run of, also tomorrow."""
        return self.model is None and not _in_memory(job.settings.algorithm)

    def run(self, job: Job, on_round: Callable[[int], None]) -> dict[str, Any]:
        """Run a job in this process."""
        if self.model is None and job.data not in self.fleets:
            return run_job(job, on_round)
        objective = None if self.model is None else partial(_objective, self.model, job.settings)
        return run_job(job, on_round, fleet=self.data_of(job), objective=objective)


def _in_memory(algorithm: AlgorithmSpec) -> bool:
    """Whether it has a class that is at the top of no file."""
    return any(name.startswith(f"{PYTHON}:") for name in algorithm.sources)


def _objective(
    model: nn.Module | ModelMaker, settings: SimulationSettings, data: FleetData
) -> Supervised:
    return objective_on(model, data, settings.algorithm, settings.seed)


Data = FleetData | str | Path


@dataclass(frozen=True)
class CompareProgress:
    """A round of training of one of a comparison's runs is over; a run whose result was there
    already has all of its own."""

    algorithm: str
    seed: int
    data: str
    labels: str
    split: str
    round: int
    """Rounds of training of this run that are over."""
    done: int
    """Rounds of all runs that are over, of `total`."""
    total: int


@dataclass(frozen=True)
class Comparison:
    """Several algorithms on the same data, or in a grid of scenarios. docs/compare.md says what
    every field of a row is."""

    rows: list[dict[str, Any]]
    """A row for each algorithm, with the fields of ``compare.json``; of a grid those of its
    ``overall``, over all cells."""
    runs: list[dict[str, Any]] = field(repr=False)
    """The result of each run, seed by seed."""
    cells: list[dict[str, Any]] = field(default_factory=list, repr=False)
    """Of a grid, a row for each cell and algorithm: ``data``, ``split``, ``labels``, and the fields
    of a cell's row."""
    left_out: list[dict[str, Any]] = field(default_factory=list)
    """Of a grid, the cells that the data do not allow: ``data``, ``split``, ``labels``, and
    ``why``."""

    @property
    def table(self) -> "pd.DataFrame":
        """The rows as a DataFrame, nested fields as columns NAME.FIELD.

        Raises:
            ConfigError: pandas is not installed; `rows` needs none.
        """
        return to_frame(flat_rows(self.rows), ())

    @property
    def cell_table(self) -> "pd.DataFrame":
        """The rows of a grid's cells as a DataFrame, with the columns of ``compare.csv``.

        Raises:
            ConfigError: pandas is not installed; `cells` needs none.
        """
        return to_frame(flat_rows(self.cells), ())


def compare(
    algorithms: str | Sequence[Given],
    data: Data | Sequence[Data] = "watch",
    *,
    scenarios: bool = False,
    rounds: int = 20,
    local_epochs: int = 1,
    seeds: int | None = None,
    out: str | Path | None = None,
    partition: str = "user",
    attack: str = "",
    privacy: str = "",
    labels: str | int | Sequence[str | int] = "",
    split: str | Sequence[str] = "",
    newcomers: int = 0,
    reference: Given = "",
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
    on_progress: Callable[[CompareProgress], None] = lambda _progress: None,
) -> Comparison:
    """Compare algorithms, each over the seeds 0 to `seeds` - 1. The options are those of `shoal
    compare` (docs/compare.md).

    With `scenarios` it is a grid: `data`, `labels` and `split` may be lists, and every one of each
    is compared with every other.

    With `out`, tables and picture are written there, and a comparison that was interrupted goes on:
    the result of each run is a file, whose name is a digest of what it is a run of. A `FleetData`
    is known by its content. What is in memory alone, a model of your own or a class that is at the
    top of no file, has no such name, and its runs are made anew. Data and models by name are
    compared by `workers` processes (a script then needs ``if __name__ == "__main__":``), the others
    in this one.

    Raises:
        ConfigError: options that cannot be read, or do not fit each other, the data or the model.
        DataError: the data cannot be read, or do not allow what is asked of them.
    """
    words = dict(locals()) | {"hyper": hyper or {}}
    compared = tuple(with_privacy(algorithm, privacy) for algorithm in _algorithms(algorithms))
    for algorithm in compared:
        make_algorithm(algorithm)
    names = [str(algorithm) for algorithm in compared]
    base = str(with_privacy(algorithm_of(reference), privacy)) if reference else names[0]
    if base not in names:
        raise ConfigError(f"reference {reference}: expected one of {','.join(names)}")
    check(ComparisonWords, words)
    sets, counts, splits = (
        _listed(data),
        [str(count) for count in _listed(labels)],
        [str(way) for way in _listed(split)],
    )
    if scenarios and target is not None:
        raise ConfigError(f"target = {target:g}: with scenarios no rounds are counted")
    if not scenarios and max(map(len, (sets, counts, splits))) > 1:
        raise ConfigError("several data, labels or splits are a grid: expected scenarios=True")
    common = make_settings(
        words
        | {
            "model": model if isinstance(model, str) else "",
            "labels": "all" if scenarios or not counts else counts[0],
            "split": "own" if scenarios or not splits else splits[0],
        }
    )
    about = Compared.of(sets, None if isinstance(model, str) else model)
    about.check(compared, common, workers)
    folder = prepare_folder(Path(out), "out") if out is not None else None
    asked = Asked(
        about.names[0],
        compared,
        seeds or (SEEDS if scenarios else 1),
        read_partition(partition),
        devices,
        common,
    )
    run = partial(_run, about=about, folder=folder, workers=workers, on_progress=on_progress)
    if scenarios:
        return _in_grid(
            Grid(make_cells(about.names, counts, splits), asked), base, run, about, folder
        )
    return _in_one(asked, base, target, run, folder)


Run = Callable[[list[Job]], list[dict[str, Any]]]


def _in_one(
    asked: Asked, base: str, target: float | None, run: Run, folder: Path | None
) -> Comparison:
    results = run(asked.jobs())
    rows = tabulate(results, target, base)
    if folder is not None:
        write_comparison(folder, results, rows)
    return Comparison(rows, results)


def _in_grid(grid: Grid, base: str, run: Run, about: Compared, folder: Path | None) -> Comparison:
    cells, left_out = sort_out(grid, about.data_of)
    results = run(grid.all_jobs(cells))
    tables = tabulate_grid(grid, cells, results, left_out, base)
    if folder is not None:
        write_grid(folder, tables)
    return Comparison(
        tables.overall,
        results,
        tables.lines(),
        [{**place_of(cell), "why": why} for cell, why in left_out.items()],
    )


def _run(
    jobs: list[Job],
    about: Compared,
    folder: Path | None,
    workers: int,
    on_progress: Callable[[CompareProgress], None],
) -> list[dict[str, Any]]:
    """The results of these jobs, in order; those that `about` gives a lasting name are kept in the
    folder."""
    done, total = (
        dict.fromkeys((job.key for job in jobs), 0),
        sum(job.settings.rounds for job in jobs),
    )

    def tell(job: Job, number: int) -> None:
        if number > done[job.key]:
            done[job.key] = number
            settings = job.settings
            place = (
                str(settings.algorithm),
                settings.seed,
                job.data,
                str(settings.labels),
                str(settings.split),
            )
            on_progress(CompareProgress(*place, number, sum(done.values()), total))

    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="shoal-") as temporary, one_thread():
        for lasting in (True, False):
            part = [job for job in jobs if about.lasts(job) == lasting]
            runs = folder / "runs" if folder is not None and lasting else Path(temporary)
            if part:
                if about.model is None:
                    check_jobs(part, runs, about.data_of)
                results |= zip(
                    (job.key for job in part),
                    run_all(part, runs, workers, tell, about.run),
                    strict=True,
                )
    return [results[job.key] for job in jobs]


def _algorithms(given: str | Sequence[Given]) -> tuple[AlgorithmSpec, ...]:
    if isinstance(given, str):
        return read_algorithms(given)
    if not isinstance(given, Sequence):
        raise ConfigError(f"algorithms {given!r}: expected a list of names and classes")
    made = tuple(map(algorithm_of, given))
    if not made or len({str(algorithm) for algorithm in made}) < len(made):
        raise ConfigError(
            f"algorithms {', '.join(map(str, made)) or 'none'}: expected different names"
        )
    return made


def _listed(given: Any) -> list[Any]:
    if isinstance(given, Sequence) and not isinstance(given, str):
        return list(given)
    return [] if given == "" else [given]
