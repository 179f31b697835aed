"""A grid of scenarios: algorithms on every data set, number of labels, split and seed.

The runs are those of a comparison (`simulation.comparison.runs`), so an interrupted grid resumes
in the same way.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from msgspec.structs import replace

from algorithms.composition import AlgorithmSpec
from simulation.comparison.runs import Job, data_of, jobs_of
from simulation.datasets.windows import FleetData
from simulation.scenario import Labels, read_labels, scenario_of, set_scene
from simulation.settings import SimulationSettings
from simulation.splits import read_split
from wire.errors import ConfigError, DataError

LABELS: tuple[Labels, ...] = ("all", 20, 5, 1, "none")
SPLITS = ("time", "session")
SEEDS = 3
"""Default labels, splits and number of seeds of a grid: `LABELS`, `SPLITS` and `SEEDS`."""


class Cell(NamedTuple):
    """One scenario on one data set."""

    data: str
    split: str
    labels: Labels

    def __str__(self) -> str:
        count = "no" if self.labels == "none" else self.labels
        return f"{self.data}, {self.split}, {count} label{'' if count == 1 else 's'}"


Grid = Mapping[Cell, Sequence[Job]]
"""Runs of each cell, ordered by seed."""


def make_grid(
    cells: Iterable[Cell],
    algorithms: Sequence[AlgorithmSpec],
    seeds: int,
    settings: SimulationSettings,
) -> Grid:
    """Return the runs of each cell; `settings` are the ones that all runs share."""
    return {
        cell: jobs_of(
            cell.data,
            algorithms,
            seeds,
            replace(settings, labels=str(cell.labels), split=cell.split),
        )
        for cell in cells
    }


def all_jobs(grid: Grid) -> list[Job]:
    """Return the runs of all cells, ordered by seed.

    The results of the first seed are then complete for every cell before the second seed begins.
    """
    return sorted(chain.from_iterable(grid.values()), key=lambda job: job.settings.seed)


def make_cells(
    data: Sequence[str], labels: Sequence[str], splits: Sequence[str]
) -> tuple[Cell, ...]:
    """Return the cells of a grid; empty `labels` or `splits` stand for `LABELS` or `SPLITS`.

    Raises:
        ConfigError: a value is unreadable or occurs twice, or `data` is empty.
    """
    for name, values in (("data", data), ("labels", labels), ("split", splits)):
        if len(set(values)) < len(values) or not data:
            raise ConfigError(f"{name} must be different values, got {', '.join(values) or 'none'}")
    counts = [read_labels(text) for text in labels] or LABELS
    chosen = [read_split(text) for text in splits or SPLITS]
    for name, texts, count in (
        ("labels", labels, len(set(counts))),
        ("split", splits, len({(c.name, *c.options.items()) for c in chosen})),
    ):
        if count < len(texts):
            raise ConfigError(f"{name} must be different values, got {', '.join(texts)}")
    return tuple(
        Cell(name, str(split), count) for name in data for split in chosen for count in counts
    )


def sort_out(
    grid: Grid, data: Callable[[Job], FleetData] = data_of
) -> tuple[Grid, dict[Cell, str]]:
    """Return the cells of a grid that the data allow, and for each other cell the reason as text.

    `data` returns the fleet data of a job.

    Raises:
        ConfigError: the data allow no cell.
        ShoalError: the data cannot be read at all, the partition cannot be combined with any split,
        or there are more newcomers than devices.
    """
    left_out: dict[Cell, str] = {}
    for cell, (job, *_) in grid.items():
        fleet = data(job)
        try:
            set_scene(fleet, scenario_of(job.settings), job.settings.seed)
        except DataError as error:
            left_out[cell] = str(error)
    if len(left_out) == len(grid):
        raise ConfigError(
            "scenarios: no cell of the grid can run. Reason for the first: "
            f"{next(iter(left_out.values()))}"
        )
    return {cell: jobs for cell, jobs in grid.items() if cell not in left_out}, left_out
