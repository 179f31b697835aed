"""Tables of a grid: one for each cell, and one over all cells. Pure.

docs/compare.md explains every field.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from aggregator.view.summary import spread
from simulation.comparison.grid import Cell, Grid, all_jobs
from simulation.comparison.table import (
    Result,
    Row,
    against,
    by_algorithm,
    mean_of,
    over_seeds,
    rounded,
    served,
)


@dataclass(frozen=True)
class GridTables:
    """Tables of a grid.

    `left_out` holds the cells that the data do not allow, each with the reason.
    """

    overall: list[Row]
    cells: dict[Cell, list[Row]]
    left_out: dict[Cell, str]

    def lines(self) -> list[Row]:
        """Return the rows of all cells, each with the fields of its cell."""
        return [{**cell._asdict(), **row} for cell, rows in self.cells.items() for row in rows]


def tabulate_grid(
    grid: Grid,
    found: Sequence[Result],
    left_out: Mapping[Cell, str],
    reference: str,
) -> GridTables:
    """Return the tables of a grid; `found` has one result per job of `all_jobs`, in its order."""
    by_key = dict(zip((job.key for job in all_jobs(grid)), found, strict=True))
    results = {cell: [by_key[job.key] for job in jobs] for cell, jobs in grid.items()}
    rows = {cell: cell_rows(its, reference) for cell, its in results.items()}
    overall = overall_rows(
        {str(cell): its for cell, its in rows.items()},
        {str(cell): its for cell, its in results.items()},
        reference,
    )
    return GridTables(overall, rows, dict(left_out))


NEAR = 0.005
"""Distance below the best accuracy within which an algorithm counts as near the best."""


def cell_rows(results: Sequence[Result], reference: str) -> list[Row]:
    """Return one row per algorithm from the results of one cell.

    The accuracies are those of the devices that train, or without labels those of the newcomers.
    """
    by_name = by_algorithm(results)
    tests = against(by_name, reference)
    rows: list[Row] = []
    for name, runs in by_name.items():
        spreads = [msgspec.to_builtins(spread(served(r).values())) for r in runs]
        of_newcomers = any(r["labels"] == "none" for r in runs)
        row: Row = {
            "algorithm": name,
            "seeds": len(runs),
            "devices": max(len(served(r)) for r in runs),
            "accuracy": over_seeds(spreads),
            "macro_f1": over_seeds(
                [
                    f1
                    for r in runs
                    if (
                        f1 := (r["newcomers"] or {}).get("macro_f1")
                        if of_newcomers
                        else r["macro_f1"]
                    )
                ]
            ),
        }
        row["failed"] = next((r["failed"] for r in runs if r.get("failed")), None)
        rows.append(row | {"against": tests.get(name)})
    best = max(
        (row["accuracy"]["mean"] for row in rows if row["accuracy"]["mean"] is not None),
        default=None,
    )
    for row in rows:
        mean = row["accuracy"]["mean"]
        row["below_best"] = None if mean is None or best is None else rounded(best - mean)
    return rows


def overall_rows(
    cells: Mapping[str, Sequence[Row]], results: Mapping[str, Sequence[Result]], reference: str
) -> list[Row]:
    """Return one row per algorithm over all cells, with equal weight per cell.

    Only cells in which every algorithm produced a model with every seed count, so that all means
    are over the same cells.

    Args:
        cells: rows of each cell, by the cell's name.
        results: results of each cell, by the cell's name.
        reference: the algorithm that the others are tested against.
    """
    whole = {
        name: rows
        for name, rows in cells.items()
        if not any(row["failed"] or row["below_best"] is None for row in rows)
    }
    tests = against(
        by_algorithm({**result, "cell": name} for name in whole for result in results[name]),
        reference,
    )
    rows: list[Row] = []
    for algorithm in dict.fromkeys(row["algorithm"] for rows in cells.values() for row in rows):
        algorithm_rows = [
            row for rows in whole.values() for row in rows if row["algorithm"] == algorithm
        ]
        below = [row["below_best"] for row in algorithm_rows]
        overall: Row = {
            "algorithm": algorithm,
            "cells": len(algorithm_rows),
            "accuracy": {
                key: mean_of(row["accuracy"][key] for row in algorithm_rows)
                for key in ("mean", "worst", "worst_tenth")
            },
            "macro_f1": {"mean": mean_of(row["macro_f1"]["mean"] for row in algorithm_rows)},
            "below_best": mean_of(below),
            "most_below_best": max(below, default=None),
            "near_best": sum(value <= NEAR for value in below),
        }
        rows.append(overall | {"against": tests.get(algorithm)})
    return rows
