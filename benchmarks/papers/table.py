"""What a paper's table or figure is here: settings, the paper's numbers, and how both are printed side by side."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from algorithms.registry import read_algorithm
from simulation.compare import Asked, Job, run_all
from simulation.engine.workers.attacks import read_attack
from simulation.partition import read_partition
from simulation.simulate import SimulationSettings
from simulation.table import tabulate

Metric = Callable[[Mapping[str, Any]], float | None]
Row = Mapping[str, Any]


def accuracy(row: Row) -> float | None:
    """Mean accuracy over devices and seeds, in per cent; under attack, over the honest devices."""
    return None if row["accuracy"]["mean"] is None else 100 * float(row["accuracy"]["mean"])


def success_rate(row: Row) -> float | None:
    """Attack success rate, in per cent."""
    rate = row.get("attack", {}).get("success_rate")
    return None if rate is None else 100 * float(rate)


def groups(row: Row) -> float | None:
    """Number of groups found."""
    return float(row["groups"]["count"])


def agreement(row: Row) -> float | None:
    """Adjusted Rand index of the groups with the true ones."""
    found = row["groups"]["ari"]
    return None if found is None else float(found)


def apart(row: Row) -> float | None:
    """Share of seeds in which no honest device shared a group with an attacker."""
    attack = row.get("attack")
    return None if attack is None else float(attack["told_apart"]) / float(row["seeds"])


def newcomers(row: Row) -> float | None:
    """Mean accuracy of devices that came after training, in per cent."""
    mean = row.get("newcomers", {}).get("mean")
    return None if mean is None else 100 * float(mean)


def rounds(row: Row) -> float | None:
    """Rounds of training until the target accuracy."""
    reached = row["rounds_to_target"]
    return None if reached is None else float(reached)


@dataclass(frozen=True)
class Setting:
    """One column: the data, how they are assigned, and what is run on them. `full` holds what the paper's own setting has instead."""

    data: str
    partition: str = "user"
    rounds: int = 20
    local_epochs: int = 1
    seeds: int = 1
    batch_size: int = 32
    hyper: Mapping[str, float] = field(default_factory=dict)
    model: str = ""
    attack: str = ""
    newcomers: int = 0
    full: Mapping[str, Any] = field(default_factory=dict)

    def asked(self, algorithms: Sequence[str], full: bool) -> Asked:
        """The comparison of these algorithms in this setting."""
        own = replace(self, **self.full) if full else self
        common = SimulationSettings(
            rounds=own.rounds,
            local_epochs=own.local_epochs,
            batch_size=own.batch_size,
            hyper=dict(own.hyper),
            model=own.model,
            attack=read_attack(own.attack) if own.attack else None,
            newcomers=own.newcomers,
        )
        return Asked(own.data, tuple(map(read_algorithm, algorithms)), own.seeds, read_partition(own.partition), None, common)


@dataclass(frozen=True)
class Table:
    """A table or figure of a paper. `algorithms` maps a name as `shoal` knows it to the paper's; `paper` holds the paper's numbers by
    the paper's name, metric and column; `only` restricts a column to some algorithms."""

    key: str
    title: str
    columns: Mapping[str, Setting]
    algorithms: Mapping[str, str]
    metrics: Mapping[str, Metric] = field(default_factory=lambda: {"accuracy, %": accuracy})
    paper: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    about: str = ""
    """What is different here, and what came out."""
    only: Mapping[str, Iterable[str]] = field(default_factory=dict)
    tall: bool = False
    """Whether settings are rows and there is one algorithm."""

    def jobs(self, full: bool) -> list[Job]:
        """Every run the table needs."""
        return [job for name in self.columns for job in self.asked(name, full).jobs()]

    def asked(self, column: str, full: bool) -> Asked:
        """The comparison behind a column."""
        return self.columns[column].asked(tuple(self.only.get(column, self.algorithms)), full)

    def measure(self, folder: Path, full: bool, workers: int | None, tell: Callable[[Job, int], None]) -> dict[str, Any]:
        """Run what is missing; the rows of every column, as `shoal compare` has them."""
        run_all(self.jobs(full), folder, workers, tell)
        return {name: tabulate(run_all(self.asked(name, full).jobs(), folder)) for name in self.columns}

    def markdown(self, measured: Mapping[str, Sequence[Row]]) -> str:
        """Ours, and the paper's number behind a slash where it has one."""
        if self.tall:
            return self._tall(measured)
        heads = [(column, metric) for column in self.columns for metric in self.metrics]
        single = len(self.metrics) == 1
        names = [column if single else f"{column}: {metric}" for column, metric in heads]
        lines = [f"### {self.title}", "", f"| {next(iter(self.metrics)) if single else ''} | {' | '.join(names)} |"]
        lines.append("|---" * (len(heads) + 1) + "|")
        for algorithm, label in self.algorithms.items():
            cells = []
            for column, metric in heads:
                row = next((r for r in measured[column] if r["algorithm"] == algorithm), None)
                ours = None if row is None else self.metrics[metric](row)
                theirs = self.paper.get((label, metric, column))
                cells.append(_cell(ours, row, metric) + ("" if theirs is None else f" / {theirs:g}"))
            shown = label if label == algorithm else f"{label} (`{algorithm}`)"
            lines.append(f"| {shown} | {' | '.join(cells)} |")
        return "\n".join([*lines, "", self.about, ""]) if self.about else "\n".join([*lines, ""])

    def _tall(self, measured: Mapping[str, Sequence[Row]]) -> str:
        lines = [f"### {self.title}", "", f"| | {' | '.join(self.metrics)} |", "|---" * (len(self.metrics) + 1) + "|"]
        for column in self.columns:
            row = measured[column][0]
            lines.append(f"| {column} | {' | '.join(_cell(made(row), row, name) for name, made in self.metrics.items())} |")
        return "\n".join([*lines, "", self.about, ""])


def _cell(value: float | None, row: Row | None, metric: str) -> str:
    if value is None or row is None:
        return "diverged" if row is not None and row.get("failed") else "-"
    text = f"{value:.1f}" if "%" in metric else f"{value:.2f}".rstrip("0").rstrip(".")
    spread = row["accuracy"]["std"]
    return f"{text} ±{100 * spread:.1f}" if metric.startswith("accuracy") and row["seeds"] > 1 and spread is not None else text
