"""A paper's table or figure: settings, the paper's numbers, and how to print both side by side."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from algorithms.composition import read_algorithm
from benchmarks.papers import har
from benchmarks.papers.budget import passes
from benchmarks.papers.intervals import estimate
from simulation.comparison.processes import run_all
from simulation.comparison.runs import Job, jobs_of
from simulation.comparison.table import tabulate
from simulation.settings import SimulationSettings

Metric = Callable[[Mapping[str, Any]], float | None]
Row = Mapping[str, Any]


def accuracy(row: Row) -> float | None:
    """Mean accuracy over devices and seeds, in per cent; under attack, over the honest devices."""
    return None if row["accuracy"]["mean"] is None else 100 * float(row["accuracy"]["mean"])


def pooled_best(row: Row) -> float | None:
    """Accuracy over all test examples together, of the round in which it is best, in per cent: how
    PFLlib reports. It chooses the round by the test part."""
    values = row.get("by_seed", {}).get("pooled_best")
    return statistics.fmean(values) if values else None


def best_round(row: Row) -> float | None:
    """Number of the round that `pooled_best` reports, a mean over seeds."""
    values = row.get("by_seed", {}).get("best_round")
    return statistics.fmean(values) if values else None


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


def rounds(row: Row) -> float | None:
    """Rounds of training until the target accuracy."""
    reached = row["rounds_to_target"]
    return None if reached is None else float(reached)


SEEDED: dict[Metric, str] = {
    accuracy: "accuracy",
    pooled_best: "pooled_best",
    best_round: "best_round",
}
"""Metrics of which a row has one number for each seed, under this name."""


def of_seeds(row: Row, metric: Metric) -> list[float]:
    """One number for each seed; none where the row has none."""
    found: list[float] = row.get("by_seed", {}).get(SEEDED.get(metric, ""), [])
    return found


def by_seed(results: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return one number for each seed, in their order, by each name of `SEEDED`; accuracies in per
    cent. Empty if a run of the algorithm has failed."""
    if any(r.get("failed") for r in results):
        return {}
    numbers: dict[str, list[float]] = {}
    if None not in (means := [r["accuracy"]["mean"] for r in results]):
        numbers["accuracy"] = [round(100 * mean, 4) for mean in means]
    pooled = [
        {n: v for n, v in enumerate(r["pooled_by_round"], 1) if v is not None} for r in results
    ]
    if all(pooled):
        numbers["best_round"] = [max(values, key=values.__getitem__) for values in pooled]
        numbers["pooled_best"] = [round(100 * max(values.values()), 4) for values in pooled]
    return numbers


@dataclass(frozen=True)
class Setting:
    """One column: the data, how they are assigned, and what is run on them. `night` holds what a
    night's run has instead."""

    data: str
    """Name of the data, as a user writes it, or a form of UCI HAR (`har.FORMS`)."""
    partition: str = "user"
    rounds: int = 20
    local_epochs: int = 1
    seeds: int = 1
    batch_size: int = 32
    hyper: Mapping[str, float] = field(default_factory=dict)
    model: str = ""
    attack: str = ""
    night: Mapping[str, Any] = field(default_factory=dict)

    def at(self, night: bool) -> "Setting":
        """Return the setting to run: the setting itself, or that of a night."""
        return replace(self, **self.night, night={}) if night else self

    def describe(self) -> str:
        """Return the amount of training, in words."""
        many, seeds = ("" if n == 1 else "s" for n in (self.rounds, self.seeds))
        passes = "one pass" if self.local_epochs == 1 else f"{self.local_epochs} passes"
        return (
            f"{self.rounds} round{many} of {passes}, batches of {self.batch_size}, {self.seeds} "
            f"seed{seeds}"
        )

    def asked(self, algorithms: Sequence[str], night: bool, folder: Path) -> list[Job]:
        """The comparison of these algorithms in this setting; `folder` is where forms of the data
        lie."""
        own = self.at(night)
        data = str(har.write(own.data, folder)) if own.data in har.FORMS else own.data
        common = SimulationSettings(
            rounds=own.rounds,
            local_epochs=own.local_epochs,
            batch_size=own.batch_size,
            hyper=dict(own.hyper),
            model=own.model,
            attack=own.attack,
            partition=own.partition,
        )
        return jobs_of(data, tuple(map(read_algorithm, algorithms)), own.seeds, common)


@dataclass(frozen=True)
class Table:
    """A table or figure of a paper. `algorithms` maps a name as `shoal` knows it to the paper's;
    `paper` holds the paper's numbers by the paper's name, metric and column; `only` restricts a
    column to some algorithms."""

    key: str
    title: str
    columns: Mapping[str, Setting]
    algorithms: Mapping[str, str]
    metrics: Mapping[str, Metric] = field(default_factory=lambda: {"accuracy, %": accuracy})
    paper: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    about: str = ""
    """Differences from the paper, and the outcome."""
    only: Mapping[str, Iterable[str]] = field(default_factory=dict)
    tall: bool = False
    """True if settings are rows and there is one algorithm."""
    hour: Sequence[str] | None = None
    """The algorithms that an hour has time for; None: all of them. The others, and the rows of a
    table without any, are a night's."""

    def jobs(self, night: bool, folder: Path) -> list[Job]:
        """Every run the table needs."""
        return [job for name in self.columns for job in self.asked(name, night, folder)]

    def asked(self, column: str, night: bool, folder: Path) -> list[Job]:
        """The comparison behind a column."""
        chosen = [
            a
            for a in self.only.get(column, self.algorithms)
            if night or self.hour is None or a in self.hour
        ]
        return self.columns[column].asked(chosen, night, folder)

    def lacking(self, measured: Mapping[str, Sequence[Row]], night: bool) -> "Table":
        """Return the table with those algorithms alone that were not trained as much with as many
        seeds."""

        def is_there(column: str, algorithm: str) -> bool:
            asked = self.columns[column].at(night)
            rows = [row for row in measured.get(column, []) if row["algorithm"] == algorithm]
            return any(
                row["seeds"] >= asked.seeds
                and row["trained"] == replace(asked, seeds=row["seeds"]).describe()
                for row in rows
            )

        left = {
            name: [a for a in self.only.get(name, self.algorithms) if not is_there(name, a)]
            for name in self.columns
        }
        return replace(self, only=left)

    def measure(
        self, folder: Path, night: bool, workers: int | None, tell: Callable[[Job, int], None]
    ) -> dict[str, Any]:
        """Run what is missing; the rows of every column, as `shoal compare` has them, with one
        number for each seed besides."""
        run_all(self.jobs(night, folder), folder, workers, tell)
        return self.collect(folder, night)

    def collect(self, folder: Path, night: bool) -> dict[str, Any]:
        """The rows of what is finished: a row counts the seeds that are there, which are the first
        ones."""
        measured: dict[str, Any] = {}
        for name, setting in self.columns.items():
            results = run_all(
                [
                    job
                    for job in self.asked(name, night, folder)
                    if (folder / f"{job.key}.json").exists()
                ],
                folder,
            )
            measured[name] = [
                row
                | {
                    "by_seed": by_seed([r for r in results if r["algorithm"] == row["algorithm"]]),
                    "trained": replace(setting.at(night), seeds=row["seeds"]).describe(),
                }
                for row in tabulate(results)
            ]
        return measured

    def markdown(self, measured: Mapping[str, Sequence[Row]]) -> str:
        """Ours, and the paper's number behind a slash where it has one; what was trained, and how
        many passes a method makes."""
        if self.tall:
            return self._tall(measured)
        measured = {column: measured.get(column, []) for column in self.columns}
        heads = [(column, metric) for column in self.columns for metric in self.metrics]
        single = len(self.metrics) == 1
        names = [column if single else f"{column}: {metric}" for column, metric in heads]
        lines = [
            f"### {self.title}",
            "",
            f"| {next(iter(self.metrics)) if single else ''} | {' | '.join(names)} | passes a "
            "round |",
        ]
        lines.append("|---" * (len(heads) + 2) + "|")
        for algorithm, label in self.algorithms.items():
            cells = []
            for column, metric in heads:
                row = next((r for r in measured[column] if r["algorithm"] == algorithm), None)
                ours = None if row is None else self.metrics[metric](row)
                theirs = self.paper.get((label, metric, column))
                seeds = [] if row is None else of_seeds(row, self.metrics[metric])
                cells.append(
                    _cell(ours, row, metric, seeds) + ("" if theirs is None else f" / {theirs:g}")
                )
            shown = label if label == algorithm else f"{label} (`{algorithm}`)"
            if any(row["algorithm"] == algorithm for rows in measured.values() for row in rows):
                lines.append(f"| {shown} | {' | '.join(cells)} | {passes(algorithm)} |")
        trained = {
            column: " or ".join(dict.fromkeys(row["trained"] for row in rows))
            for column, rows in measured.items()
            if rows
        }
        same = set(trained.values())
        budget = (
            f"{same.pop()}."
            if len(same) == 1
            else "; ".join(f"{column}: {text}" for column, text in trained.items()) + "."
        )
        return "\n".join([*lines, "", f"{budget[0].upper()}{budget[1:]} {self.about}".strip(), ""])

    def _tall(self, measured: Mapping[str, Sequence[Row]]) -> str:
        lines = [
            f"### {self.title}",
            "",
            f"| | {' | '.join(self.metrics)} |",
            "|---" * (len(self.metrics) + 1) + "|",
        ]
        for column in [c for c in self.columns if measured.get(c)]:
            row = measured[column][0]
            lines.append(
                f"| {column} | "
                f"{' | '.join(_cell(made(row), row, name) for name, made in self.metrics.items())} "
                "|"
            )
        return "\n".join([*lines, "", self.about, ""])


def _cell(value: float | None, row: Row | None, metric: str, seeds: Sequence[float] = ()) -> str:
    if value is None or row is None:
        return "diverged" if row is not None and row.get("failed") else "-"
    if len(seeds) > 1:
        return estimate(seeds).show()
    return f"{value:.1f}" if "%" in metric else f"{value:.2f}".rstrip("0").rstrip(".")
