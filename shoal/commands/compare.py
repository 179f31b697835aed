"""The command `shoal compare`: several algorithms on the same simulated fleets, over several seeds.

The comparison is in one scenario, or in a grid of them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.command import Options, command
from shoal.commands import options as opt
from simulation.settings import ComparisonWords, SimulationSettings

if TYPE_CHECKING:
    from rich.console import Console

    from shoal.api.comparison import CompareProgress, Comparison
    from shoal.reports.tables import Columns


LEFT_OUT = ("algorithm", "seed", "patience", "min_delta", "labels", "split")
"""Settings that each run of a comparison sets itself, or that keep the default of simulations."""


@command(loads="shoal.api.comparison")
def compare(
    *,
    algorithms: Annotated[
        str, typer.Option(help="Names with commas between them: fedavg,distfl,dbe+distfl+irls.")
    ],
    data: opt.Data = "watch",
    out: Annotated[
        Path,
        typer.Option(
            help="Folder for compare.json, compare.csv, compare.png and each run's result."
        ),
    ] = Path("runs/compare"),
    scenarios: Annotated[
        bool,
        typer.Option(
            "--scenarios",
            help="A grid: --data, --labels and --split take several values with commas between "
            "them; labels "
            "all,20,5,1,none and split time,session when not given.",
        ),
    ] = False,
    reference: Annotated[
        str,
        typer.Option(
            help="The algorithm that the others are tested against; the first when not given."
        ),
    ] = "",
    labels: Annotated[
        str, typer.Option(help="As of `shoal simulate`; with --scenarios several, with commas.")
    ] = "",
    split: Annotated[
        str, typer.Option(help="As of `shoal simulate`; with --scenarios several, with commas.")
    ] = "",
    comparison: Annotated[dict[str, Any], Options((ComparisonWords,))],
    words: Annotated[dict[str, Any], Options((SimulationSettings,), without=LEFT_OUT)],
) -> Any:
    """Compare algorithms in one table and one picture.

    A comparison that was interrupted resumes when it is started again.
    """
    from rich.console import Console

    from shoal.api.comparison import compare
    from shoal.waiting import working

    console = Console()
    with working(console) as say:

        def show(progress: CompareProgress) -> None:
            over = f"{progress.runs_over} of the runs are over"
            say(f"{progress.runs} runs", progress.done, progress.total, over)

        say(f"reading {data}")
        grid = {"scenarios": scenarios, "reference": reference, "labels": labels, "split": split}
        settings = words | comparison | grid
        results = compare(algorithms, data, **settings, out=out, on_progress=show)
    if scenarios:
        _print_grid(results, console)
    else:
        _print_comparison(results, console)
    console.print(f"written: {', '.join(map(str, results.files))}", soft_wrap=True)
    return json.loads((out / "compare.json").read_text())


def _print_comparison(results: Comparison, console: Console) -> None:
    from shoal.reports.tables import comparison_columns
    from simulation.comparison.table import least_p

    rows = results.rows
    _print_rows(rows, comparison_columns(rows), console)
    if (least := least_p(rows)) > 0.05:
        reason = "so few devices, and as many comparisons, allow no p below"
        console.print(
            f"{reason} {least:.2g}: a difference may be real and look like chance", soft_wrap=True
        )
    skew = results.runs[0]["heterogeneity"]
    numbers = ", ".join(f"{name} {value:.3g}" for name, value in skew.items())
    console.print(f"heterogeneity (seed 0): {numbers}", soft_wrap=True)


def _print_grid(results: Comparison, console: Console) -> None:
    from shoal.reports.tables import cell_columns, overall_columns
    from simulation.comparison.grid import Cell

    names = Cell._fields
    by_cell = groupby(results.cells, lambda row: Cell(*(row[name] for name in names)))
    cells = {cell: list(rows) for cell, rows in by_cell}
    for cell, rows in cells.items():
        console.print(f"[bold]{cell}[/bold]", soft_wrap=True)
        _print_rows(rows, cell_columns(rows), console)
    for one in results.left_out:
        place = Cell(*(one[name] for name in names))
        console.print(f"[bold]{place}[/bold] left out: {one['why']}", soft_wrap=True)
    whole = (
        f"over the cells in which every run ended with a model, {results.rows[0]['cells']} of "
        f"{len(cells)}"
    )
    console.print(f"[bold]{whole}[/bold]; against {results.reference}", soft_wrap=True)
    _print_rows(results.rows, overall_columns(results.rows), console)


def _print_rows(rows: Sequence[dict[str, Any]], columns: Columns, console: Console) -> None:
    from shoal.reports.tables import tables

    for table in tables(rows, columns, console.width):
        console.print(table)
        console.print()
    for row in rows:
        if row.get("failed"):
            console.print(
                f"[bold]{row['algorithm']}[/bold] ended without a model: {row['failed']}",
                soft_wrap=True,
            )
