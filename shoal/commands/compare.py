"""The command `shoal compare`: several algorithms on the same simulated fleets, over several seeds.

The comparison is in one scenario, or in a grid of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
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
        str, typer.Option(help="Algorithms, separated by commas: fedavg,distfl,dbe+distfl+irls.")
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
            help="Compare in a grid: --data, --labels and --split take several values, separated "
            "by commas; labels "
            "all,20,5,1,none and split time,session when not given.",
        ),
    ] = False,
    reference: Annotated[
        str,
        typer.Option(
            help="Algorithm that the others are tested against; the first when not given."
        ),
    ] = "",
    labels: Annotated[
        str, typer.Option(help="As for `shoal simulate`; several values with --scenarios.")
    ] = "",
    split: Annotated[
        str, typer.Option(help="As for `shoal simulate`; several values with --scenarios.")
    ] = "",
    comparison: Annotated[dict[str, Any], Options((ComparisonWords,))],
    words: Annotated[dict[str, Any], Options((SimulationSettings,), without=LEFT_OUT)],
) -> Any:
    """Compare algorithms in one table and one picture.

    An interrupted comparison resumes when the same command is given again.
    """
    from rich.console import Console

    from shoal.api.comparison import compare
    from shoal.reports.comparison_page import MEANINGS
    from shoal.waiting import working

    console = Console()
    with working(console) as say:

        def show(progress: CompareProgress) -> None:
            over = f"{progress.runs_over} of {progress.runs} runs finished"
            say(f"{progress.runs} runs", progress.finished_rounds, progress.total, over)

        say(f"reading {data}")
        grid = {"scenarios": scenarios, "reference": reference, "labels": labels, "split": split}
        settings = words | comparison | grid
        results = compare(algorithms, data, **settings, out=out, on_progress=show)
    headings = _print_grid(results, console) if scenarios else _print_comparison(results, console)
    for heading in headings:
        if meaning := MEANINGS.get("to" if heading.startswith("to ") else heading):
            console.print(f"  {heading:<14}  {meaning}", style="dim", soft_wrap=True)
    console.print(f"written: {', '.join(map(str, results.files))}", soft_wrap=True)
    console.print(f"Open {out / 'report.html'} in a browser.", soft_wrap=True)
    return json.loads((out / "compare.json").read_text())


def _print_comparison(results: Comparison, console: Console) -> Iterable[str]:
    """Print the table of a comparison, and return its headings."""
    from shoal.reports.tables import comparison_columns
    from simulation.comparison.table import least_p

    rows = results.rows
    columns = comparison_columns(rows)
    _print_rows(rows, columns, console)
    if (least := least_p(rows)) > 0.05:
        console.print(
            f"With so few devices and so many comparisons, p cannot be below {least:.2g}: a real "
            "difference may look like chance.",
            soft_wrap=True,
        )
    skew = results.runs[0]["heterogeneity"]
    numbers = ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in skew.items())
    console.print(f"heterogeneity of the devices' data (seed 0): {numbers}", soft_wrap=True)
    return columns


def _print_grid(results: Comparison, console: Console) -> Iterable[str]:
    """Print the tables of a grid, and return their headings."""
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
        f"Means over {results.rows[0]['cells']} of {len(cells)} cells: those in which every run "
        "ended with a model"
    )
    console.print(f"[bold]{whole}[/bold]; reference {results.reference}", soft_wrap=True)
    columns = overall_columns(results.rows)
    _print_rows(results.rows, columns, console)
    of_cells = (heading for rows in cells.values() for heading in cell_columns(rows))
    return dict.fromkeys([*of_cells, *columns])


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
