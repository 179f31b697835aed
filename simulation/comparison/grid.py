"""A grid of scenarios: algorithms on every data set, with every number of labels and every split,
over several seeds.

The runs are those of a comparison (`simulation.comparison.runs`), so a grid that was interrupted
goes on in the same way.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from algorithms.spec import Choice
from simulation.comparison.runs import Asked, Job, data_of
from simulation.datasets.windows import FleetData
from simulation.scenario import Labels, read_labels, set_scene
from simulation.splits import read_split
from wire.errors import ConfigError, DataError

LABELS: tuple[Labels, ...] = ("all", 20, 5, 1, "none")
SPLITS = ("time", "session")
SEEDS = 3
"""What a grid has where nothing else is asked for."""


@dataclass(frozen=True)
class Cell:
    """One scenario on one data set."""

    data: str
    labels: Labels
    split: Choice

    def __str__(self) -> str:
        count = "no" if self.labels == "none" else self.labels
        return f"{self.data}, {self.split}, {count} label{'' if count == 1 else 's'}"


@dataclass(frozen=True)
class Grid:
    """What is asked for: cells, and in `asked` what all of them have in common; its data are not
    used."""

    cells: tuple[Cell, ...]
    asked: Asked

    def jobs(self, cell: Cell) -> list[Job]:
        """The runs of one cell, seed by seed."""
        settings = msgspec.structs.replace(
            self.asked.settings, labels=cell.labels, split=cell.split
        )
        return Asked(
            cell.data,
            self.asked.algorithms,
            self.asked.seeds,
            self.asked.partition,
            self.asked.devices,
            settings,
        ).jobs()

    def all_jobs(self, cells: Sequence[Cell]) -> list[Job]:
        """Those of several cells, seed by seed, so that the first seed of all cells is there
        first."""
        return sorted(
            (job for cell in cells for job in self.jobs(cell)), key=lambda job: job.settings.seed
        )


def make_cells(
    data: Sequence[str], labels: Sequence[str], splits: Sequence[str]
) -> tuple[Cell, ...]:
    """The cells of a grid; where `labels` or `splits` are empty it has `LABELS` and `SPLITS`.

    Raises:
        ConfigError: a value that cannot be read, no data, or a value twice.
    """
    for name, values in (("data", data), ("labels", labels), ("split", splits)):
        if len(set(values)) < len(values) or not data:
            raise ConfigError(f"{name} {', '.join(values)}: expected different values")
    counts = [read_labels(text) for text in labels] or LABELS
    chosen = [read_split(text) for text in splits or SPLITS]
    for name, texts, count in (
        ("labels", labels, len(set(counts))),
        ("split", splits, len({(c.name, *c.options.items()) for c in chosen})),
    ):
        if count < len(texts):
            raise ConfigError(f"{name} {', '.join(texts)}: expected different values")
    return tuple(Cell(name, count, split) for name in data for split in chosen for count in counts)


def read_cells(data: str, labels: str, splits: str) -> tuple[Cell, ...]:
    """The same from values with commas between them.

    Raises:
        ConfigError: as `make_cells`.
    """
    return make_cells(
        *(
            [value.strip() for value in text.split(",") if value.strip()]
            for text in (data, labels, splits)
        )
    )


def sort_out(
    grid: Grid, data: Callable[[Job], FleetData] = data_of
) -> tuple[list[Cell], dict[Cell, str]]:
    """The cells that the data allow, and why they do not allow the others. `data` gives those of a
    job.

    Raises:
        ConfigError: they allow no cell.
        ShoalError: data that cannot be read at all, or a partition with which nothing can be split,
        or more newcomers than devices.
    """
    allowed: list[Cell] = []
    left_out: dict[Cell, str] = {}
    for cell in grid.cells:
        job = grid.jobs(cell)[0]
        fleet = data(job)
        try:
            set_scene(fleet, job.settings.scenario, job.settings.seed)
            allowed.append(cell)
        except DataError as error:
            left_out[cell] = str(error)
    if not allowed:
        raise ConfigError(
            f"scenarios: the data allow no cell of the grid; {next(iter(left_out.values()))}"
        )
    return allowed, left_out
