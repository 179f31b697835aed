"""The function `shoal.compare`: `shoal compare` from Python, in one scenario or a grid of them."""

import re
import tempfile
import warnings
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
from shoal.api.pointing import pointing
from shoal.api.result import Result
from shoal.api.run import make_settings
from shoal.api.tables import to_frame
from shoal.reports.files import write_comparison, write_grid
from shoal.reports.tables import flat_rows
from simulation.comparison.grid import SEEDS, all_jobs, make_cells, make_grid, sort_out
from simulation.comparison.grid_table import tabulate_grid
from simulation.comparison.processes import check_jobs, run_all
from simulation.comparison.runs import Job, data_of, jobs_of, read_algorithms, run_job
from simulation.comparison.table import tabulate
from simulation.datasets.catalog import cuts_of
from simulation.datasets.doubts import doubts
from simulation.datasets.windows import FleetData, digest_of
from simulation.objective import ModelMaker, objective_on
from simulation.scenario import scenario_of
from simulation.settings import ComparisonWords, SimulationSettings
from simulation.simulate import SimulationResult
from wire.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Compared:
    """Data sets and a model of a comparison that are given as objects."""

    fleets: Mapping[str, FleetData]
    """Data by the name of the data set and the beginning of their digest."""
    model: nn.Module | ModelMaker | None = None
    """Model of every run; None if the settings name one."""
    models: Path | None = None
    """Folder of the runs' models; None to write none."""

    @property
    def keep(self) -> Callable[[Job, SimulationResult], None] | None:
        """A function that writes the models of a run; None without a folder."""
        return None if self.models is None else partial(_save_models, self.models)

    def data_of(self, job: Job) -> FleetData:
        """Return the data of a job, before its scenario is applied.

        Raises:
            ShoalError: the data cannot be read or assigned, or the scenario does not fit the
                partition.
        """
        if job.data not in self.fleets:
            return data_of(job)
        settings, scenario = job.settings, scenario_of(job.settings)
        return fleet_of(
            self.fleets[job.data],
            settings.partition,
            settings.devices,
            settings.seed,
            scenario,
            cuts_of(settings),
        )

    def run(self, job: Job, on_round: Callable[[int], None]) -> dict[str, Any]:
        """Run a job in this process."""
        if self.model is None and job.data not in self.fleets:
            return run_job(job, on_round, keep=self.keep)
        objective = None if self.model is None else partial(_objective, self.model, job.settings)
        fleet = self.data_of(job)
        return run_job(job, on_round, fleet=fleet, objective=objective, keep=self.keep)


def _save_models(folder: Path, job: Job, outcome: SimulationResult) -> None:
    """Write the models of a run's groups to a folder named by its algorithm, seed and key."""
    algorithm = re.sub(r"[^A-Za-z0-9=.+-]+", "-", str(job.settings.algorithm))[-80:]
    Result(outcome).save(folder / f"{algorithm}-seed-{job.settings.seed}-{job.key}", [])


def _in_memory(algorithm: AlgorithmSpec) -> bool:
    """Return True if the algorithm has a class that is not at the top level of a file."""
    return any(name.startswith(f"{PYTHON}:") for name in algorithm.sources)


def _objective(
    model: nn.Module | ModelMaker, settings: SimulationSettings, data: FleetData
) -> Supervised:
    return objective_on(model, data, settings.algorithm, settings.seed)


Data = FleetData | str | Path


@dataclass(frozen=True)
class CompareProgress:
    """Progress of a comparison after one round of training of one of its runs.

    A run whose result exists already is reported with all of its rounds.
    """

    algorithm: str
    seed: int
    data: str
    labels: str
    split: str
    round: int
    """Number of finished rounds of this run."""
    finished_rounds: int
    """Number of finished rounds of all runs, of `total`."""
    total: int
    runs_over: int
    """Number of finished runs, of `runs`."""
    runs: int


@dataclass(frozen=True)
class Comparison:
    """Several algorithms on the same data, or in a grid of scenarios.

    docs/compare.md explains every field of a row.
    """

    rows: list[dict[str, Any]]
    """A row for each algorithm, as in ``compare.json``; in a grid, a row over all cells."""
    runs: list[dict[str, Any]] = field(repr=False)
    """Results of the runs, by seed."""
    reference: str = ""
    """Name of the algorithm that the others are tested against."""
    cells: list[dict[str, Any]] = field(default_factory=list, repr=False)
    """A row for each cell and algorithm of a grid; empty without a grid.

    Its fields are ``data``, ``split``, ``labels``, and those of a cell's row.
    """
    left_out: list[dict[str, Any]] = field(default_factory=list)
    """Cells that the data do not allow, with ``data``, ``split``, ``labels`` and ``why``."""
    files: tuple[Path, ...] = ()
    """Paths of the files that were written; empty if `compare` has no folder."""

    @property
    def table(self) -> "pd.DataFrame":
        """The rows as a DataFrame, with nested fields as columns NAME.FIELD.

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


@pointing()
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
    exportable: str = "warn",
    pretrain: str = "",
    cohort: int = 0,
    window: int = 0,
    stride: int = 0,
    steps: int = 0,
    rate: float = 0.0,
    profiles: str = "",
    policy: str = "",
    secret: bool = False,
    min_sum: int = 5,
    workers: int | None = 1,
    on_progress: Callable[[CompareProgress], None] = lambda _progress: None,
) -> Comparison:
    """Compare algorithms, each over the seeds 0 to `seeds` - 1.

    The options are those of `shoal compare` (docs/compare.md). With `scenarios` the comparison is a
    grid: `data`, `labels` and `split` may be lists, or texts with commas, and every combination of
    them is a cell.

    With `out`, tables, picture and the models of every run's groups (`models`) are written there,
    and an interrupted comparison resumes. The result of each run is a file, whose name is a digest
    of the run's settings. A `FleetData` is identified by its content. A model of your own, or a
    class that is not at the top level of a file, has no such name, so its runs are repeated.

    Data and models by name are compared by `workers` processes (a script then needs ``if __name__
    == "__main__":``), objects in this process.

    Raises:
        ConfigError: options that cannot be read, or do not fit each other, the data or the model.
        DataError: the data cannot be read, or do not allow the scenario.
    """
    words = dict(locals()) | {"hyper": hyper or {}, "privacy": ""}
    del words["algorithms"]
    check(ComparisonWords, words)
    compared, base = _read(algorithms, reference, privacy)
    if scenarios and target is not None:
        raise ConfigError(
            f"target must be left out with scenarios, which count no rounds, got {target:g}"
        )
    of_one = [data] if isinstance(data, str) and not scenarios else _listed(data)
    values = {"data": of_one, "labels": _listed(labels), "split": _listed(split)}
    for name, several in values.items():
        if len(several) > 1 and not scenarios:
            value = ",".join(map(str, several))
            raise ConfigError(f"{name} must be a single value without scenarios, got {value}")
        words[name] = str(several[0]) if several and not scenarios else None
    words["model"] = model if isinstance(model, str) else ""
    settings, *_ = [make_settings(words | {"algorithm": each}) for each in compared]
    fleets = {
        f"{one.name}@{digest_of(one)[:16]}" if isinstance(one, FleetData) else str(one): one
        for one in of_one
    }
    if not fleets:
        raise ConfigError("data must be a name, a path or a FleetData, or a list of these, got []")
    objects = {name: one for name, one in fleets.items() if isinstance(one, FleetData)}
    folder = prepare_folder(Path(out), "out") if out is not None else None
    models = folder / "models" if folder is not None else None
    about = Compared(objects, None if isinstance(model, str) else model, models)
    _check_objects(about, compared, settings, workers)
    run = partial(_run, about=about, folder=folder, workers=workers, on_progress=on_progress)
    if not scenarios:
        results = run(jobs_of(next(iter(fleets)), compared, seeds or 1, settings))
        rows = tabulate(results, target, base)
        files = [] if folder is None else write_comparison(folder, results, rows)
        return Comparison(rows, results, base, files=tuple(files))
    cells = make_cells(list(fleets), *(list(map(str, values[n])) for n in ("labels", "split")))
    grid, left_out = sort_out(make_grid(cells, compared, seeds or SEEDS, settings), about.data_of)
    results = run(all_jobs(grid))
    tables = tabulate_grid(grid, results, left_out, base)
    return Comparison(
        tables.overall,
        results,
        base,
        tables.lines(),
        [{**cell._asdict(), "why": why} for cell, why in left_out.items()],
        tuple([] if folder is None else write_grid(folder, tables)),
    )


def _read(
    choices: str | Sequence[Given], reference: Given, privacy: str
) -> tuple[tuple[AlgorithmSpec, ...], str]:
    """Return the algorithms of a comparison, and the name of the reference.

    Raises:
        ConfigError: there is no algorithm, one is there twice, one cannot be read or made, or the
            reference is none of them.
    """
    if not isinstance(choices, str | Sequence):
        raise ConfigError(f"algorithms must be a list of names and classes, got {choices!r}")
    read = list(
        read_algorithms(choices) if isinstance(choices, str) else map(algorithm_of, choices)
    )
    if not read or len({str(algorithm) for algorithm in read}) < len(read):
        raise ConfigError(
            "algorithms must have at least one name, and none twice, got "
            f"{', '.join(map(str, read)) or 'none'}"
        )
    base_spec = algorithm_of(reference) if reference else read[0]
    base_spec, *read = (spec.with_privacy(privacy) for spec in (base_spec, *read))
    for algorithm in read:
        make_algorithm(algorithm)
    names, base = [str(algorithm) for algorithm in read], str(base_spec)
    if base not in names:
        raise ConfigError(f"reference must be one of {', '.join(names)}, got {reference}")
    return tuple(read), base


def _check_objects(
    about: Compared,
    algorithms: Sequence[AlgorithmSpec],
    settings: SimulationSettings,
    workers: int | None,
) -> None:
    """Raise ConfigError if objects do not fit the other options.

    Raises:
        ConfigError: other processes would need an object of this process, or a model of one's own
            is to be pretrained.
    """
    if about.model is not None and settings.pretrain:
        raise ConfigError(
            "pretrain must be left out with a model of your own, which brings its weights, got "
            f"{settings.pretrain!r}"
        )
    if workers != 1 and (
        about.fleets or about.model is not None or any(map(_in_memory, algorithms))
    ):
        raise ConfigError(
            "workers must be 1 with a FleetData, a model of your own or a class outside of any "
            f"file, got {workers}"
        )


def _run(
    jobs: list[Job],
    about: Compared,
    folder: Path | None,
    workers: int | None,
    on_progress: Callable[[CompareProgress], None],
) -> list[dict[str, Any]]:
    """Run the jobs and return their results in order.

    `folder` keeps the results of jobs with a lasting name.
    """
    rounds_by_job, total = (
        dict.fromkeys((job.key for job in jobs), 0),
        sum(job.settings.rounds for job in jobs),
    )

    def tell(job: Job, number: int) -> None:
        if number > rounds_by_job[job.key]:
            rounds_by_job[job.key] = number
            settings = job.settings
            place = (
                str(settings.algorithm),
                settings.seed,
                job.data,
                settings.labels,
                settings.split,
            )
            over = sum(rounds_by_job[each.key] >= each.settings.rounds for each in jobs)
            so_far = (number, sum(rounds_by_job.values()), total, over, len(jobs))
            on_progress(CompareProgress(*place, *so_far))

    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="shoal-") as temporary, one_thread():
        for lasting in (True, False):
            part = [
                job
                for job in jobs
                if (about.model is None and not _in_memory(job.settings.algorithm)) == lasting
            ]
            runs = folder / "runs" if folder is not None and lasting else Path(temporary)
            if part:
                if about.model is None:
                    fleets = {fleet.name: fleet for fleet in check_jobs(part, runs, about.data_of)}
                    for fleet in fleets.values():
                        for doubt in doubts(fleet):
                            warnings.warn(doubt, stacklevel=4)
                results |= zip(
                    (job.key for job in part),
                    run_all(part, runs, workers, tell, about.run, about.keep),
                    strict=True,
                )
    return [results[job.key] for job in jobs]


def _listed(given: Any) -> list[Any]:
    """Return one value or several as a list; a text is split at commas."""
    if isinstance(given, str):
        return [value.strip() for value in given.split(",") if value.strip()]
    return list(given) if isinstance(given, Sequence) else [given]
