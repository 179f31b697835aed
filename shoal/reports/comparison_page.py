"""The reports of a comparison and of a grid of scenarios, as HTML."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from aggregator.http.pages.rendering import render
from aggregator.http.pages.words import percent
from shoal.asked import Asked
from shoal.reports.pages import (
    SHADES,
    Line,
    Shade,
    changed_first,
    chart_pair,
    kind_of,
    shades,
)
from shoal.reports.tables import Columns, cell_columns, comparison_columns, overall_columns
from simulation import cost
from simulation.comparison.grid_table import GridTables
from simulation.comparison.table import by_algorithm, served

MOST_DEVICES = 100
"""Maximum number of devices in a report's table: the worst ones."""
MEANINGS = {
    "accuracy %": "mean over devices, and half the width of its 95 % interval over 3 seeds or more",
    "mean %": "mean accuracy over the cells in which every run ended with a model",
    "worst %": "accuracy of the worst device",
    "tenth %": "mean accuracy of the worst tenth of the devices",
    "F1 %": "macro F1",
    "gain": "mean difference to the reference over devices, in points, and the half width of its "
    "95 % interval",
    "p": "of Wilcoxon's signed-rank test over devices, with Holm's correction",
    "ARI": "agreement of the groups with the known ones: 1 is equality, 0 is chance",
    "MB up": "sent by all devices",
    "MB down": "sent to all devices",
    "to": "rounds of training until this mean accuracy",
    "hours": "hours on the virtual clock until that accuracy",
    "attack %": "success rate of the attack",
    "apart": "seeds in which no honest device shares a group with an attacker",
    "time s": "seconds of a run",
    "personal model": "the one that most devices chose, and their share; compare.json has all",
    "below": "points below the best of the cell",
    "most below": "the most points below the best of a cell",
    "best in": "cells in which it is the best, or at most 0.5 points below",
}
"""Explanations of the tables' headings; self-explanatory headings are left out."""


class Table(NamedTuple):
    """A table with a row for each algorithm."""

    title: str
    names: list[str]
    columns: Columns
    best: int | None
    """Index of the row with the highest accuracy; None if no row has one."""
    failures: list[tuple[str, str]]


def comparison_page(
    results: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]], question: Asked
) -> str:
    """Return the report of a comparison as HTML.

    `results` are its runs, `rows` the rows of its table (`simulation.comparison.table.tabulate`).
    """
    runs = by_algorithm(results)
    over_rounds, over_bytes = chart_pair(
        {(name, kind_of(i)): mean_line(its) for i, (name, its) in enumerate(runs.items())}
    )
    return _render(
        title=", ".join(dict.fromkeys(str(r["data"]) for r in results)),
        verdict=_verdict(rows),
        tables=[_table("Algorithms", rows, comparison_columns(rows))],
        over_rounds=over_rounds,
        over_bytes=over_bytes,
        devices=_devices(runs),
        groups=_groups(runs),
        confusions=_confusions(runs),
        costs=_costs(runs),
        cells=[],
        num_seeds=max((row["seeds"] for row in rows), default=0),
        question=question,
    )


def grid_page(tables: GridTables, question: Asked) -> str:
    """Return the report of a grid as HTML."""
    cells = {str(cell): rows for cell, rows in tables.cells.items()}
    cell_tables = [_table(name, rows, cell_columns(rows)) for name, rows in cells.items()]
    whole = (
        f"Means over {tables.overall[0]['cells'] if tables.overall else 0} of {len(cells)} cells: "
        "those in which every run ended with a model"
    )
    return _render(
        title="a grid of scenarios",
        verdict=_verdict(tables.overall),
        tables=[_table(whole, tables.overall, overall_columns(tables.overall)), *cell_tables],
        over_rounds=None,
        over_bytes=None,
        devices=[],
        cells=[
            (name, [_shade(row["accuracy"]["mean"]) for row in rows])
            for name, rows in cells.items()
        ],
        num_seeds=max((row["seeds"] for rows in cells.values() for row in rows), default=0),
        left_out=[(str(cell), why) for cell, why in tables.left_out.items()],
        question=question,
    )


def _render(question: Asked, left_out: Sequence[tuple[str, str]] = (), **shown: Any) -> str:
    settings = changed_first(question.settings)
    shown = {"groups": [], "confusions": [], "costs": [], "assumed": cost} | shown
    return render(
        "comparison.html",
        meanings=MEANINGS,
        settings=settings,
        command=question.command,
        left_out=left_out,
        **shown,
    )


def mean_line(runs: Sequence[Mapping[str, Any]]) -> Line:
    """Return the mean accuracy of several seeds after each round.

    The line is as long as the shortest run. A round without an accuracy in one seed has None.
    """
    length = min((len(r["accuracy_by_round"]) for r in runs), default=0)
    line = []
    for i in range(length):
        values = [r["accuracy_by_round"][i] for r in runs]
        sent = [
            sum(r["bytes_by_round"][i].values()) if i < len(r.get("bytes_by_round", ())) else 0
            for r in runs
        ]
        line.append(
            (i + 1, fmean(sent) if all(sent) else 0.0, None if None in values else fmean(values))
        )
    return line


def _table(title: str, rows: Sequence[Mapping[str, Any]], columns: Columns) -> Table:
    means = {
        i: row["accuracy"]["mean"]
        for i, row in enumerate(rows)
        if row["accuracy"]["mean"] is not None
    }
    failures = [(row["algorithm"], row["failed"]) for row in rows if row.get("failed")]
    return Table(
        title,
        [row["algorithm"] for row in rows],
        columns,
        max(means, key=means.__getitem__, default=None),
        failures,
    )


def _verdict(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the best algorithm and the evidence for it, in one or two sentences."""
    ended = [row for row in rows if row["accuracy"]["mean"] is not None]
    if not ended:
        return "No algorithm ended with a model everywhere."
    best = max(ended, key=lambda row: row["accuracy"]["mean"])
    text = (
        f"{best['algorithm']} has the highest mean accuracy, {percent(best['accuracy']['mean'])}."
    )
    if test := best.get("against"):
        gain = (
            f"{100 * test['difference']:+.1f} points (p = {test['p']:.2g}, {test['pairs']} devices)"
        )
        return f"{text} Against {test['reference']} that is {gain}."
    if len(ended) > 1:
        second = max(
            (row for row in ended if row is not best), key=lambda row: row["accuracy"]["mean"]
        )
        p = f", p = {second['against']['p']:.2g}" if second.get("against") else ""
        return (
            f"{text} Next is {second['algorithm']} with {percent(second['accuracy']['mean'])}{p}."
        )
    return text


def _devices(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[tuple[str, list[Shade]]]:
    """Return for each device the mean over seeds of its accuracy with each algorithm.

    The worst device by the mean over algorithms comes first.
    """
    means: dict[str, dict[str, float]] = {}
    for name, results in runs.items():
        accuracies = [served(run) for run in results]
        for device_id in sorted({d for by_device in accuracies for d in by_device}):
            means.setdefault(device_id, {})[name] = fmean(
                by_device[device_id] for by_device in accuracies if device_id in by_device
            )
    order = sorted(means, key=lambda d: (fmean(means[d].values()), d))[:MOST_DEVICES]
    return [(d, [_shade(means[d].get(name)) for name in runs]) for d in order]


def _groups(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[tuple[str, list[int | None]]]:
    """Return for each device its group with each algorithm in the first seed.

    The list is empty if every algorithm has one group.
    """
    first = [its[0].get("group_by_device", {}) for its in runs.values()]
    if all(len(set(groups.values())) < 2 for groups in first):
        return []
    order = sorted(
        {d for groups in first for d in groups},
        key=lambda d: ([(groups.get(d) is None, groups.get(d) or 0) for groups in first], d),
    )[:MOST_DEVICES]
    return [(d, [groups.get(d) for groups in first]) for d in order]


def _confusions(
    runs: Mapping[str, Sequence[Mapping[str, Any]]],
) -> list[tuple[str, list[str], list[list[Shade]]]]:
    """Return the confusion of each algorithm over all seeds.

    Each is the algorithm, the classes, and a coloured table: how often a test window of the row's
    class is taken for the column's class.
    """
    confusions = []
    for name, its in runs.items():
        counts = [np.array(run["confusion"]) for run in its if run.get("confusion")]
        if counts:
            cells = shades(np.sum(counts, axis=0), by_row=True)
            confusions.append((name, list(its[0]["classes"]), cells))
    return confusions


class Cost(NamedTuple):
    """Cost of a round for a device, as the mean over seeds.

    Estimates are for a phone three times slower than this machine's core.
    """

    name: str
    windows: float
    bytes_down: float
    bytes_up: float
    estimate: cost.Estimate


def _costs(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Cost]:
    costs = []
    for name, its in runs.items():
        counted = [cost.RoundWork(**run["cost"]) for run in its if run.get("cost")]
        if counted:
            windows, down, up = (
                fmean(getattr(c, what) for c in counted)
                for what in ("windows", "bytes_down", "bytes_up")
            )
            _, phone, _ = zip(*map(cost.estimates, counted), strict=True)
            means = [
                fmean(getattr(each, what) for each in phone) for what in cost.Estimate._fields[1:]
            ]
            costs.append(Cost(name, windows, down, up, cost.Estimate(phone[0].speed, *means)))
    return costs


def _shade(accuracy: float | None) -> Shade:
    return ("-", 0) if accuracy is None else (f"{100 * accuracy:.1f}", round(SHADES * accuracy))
