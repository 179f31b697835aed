"""`shoal compare`: several algorithms on the same simulated fleets, over several seeds, in one
scenario or in a grid of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from host.files import prepare_folder
from shoal.command import Options, command, warn
from shoal.commands import options as opt
from simulation.settings import ComparisonWords, SimulationWords
from wire.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from simulation.comparison.grid import Grid
    from simulation.comparison.runs import Asked, Job


LEFT_OUT = ("algorithm", "seed", "patience", "min_delta", "labels", "split")
"""Settings that every run of a comparison has of its own, or as simulations do by default."""


@command(loads="simulation.comparison.runs")
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
    words: Annotated[dict[str, Any], Options((SimulationWords,), without=LEFT_OUT)],
) -> Any:
    """Compare algorithms in one table and one picture. Started again, it goes on where it was
    interrupted."""
    from rich.console import Console

    from algorithms.composition import make_algorithm, read_algorithm
    from shoal.api.settings import make_settings
    from shoal.campaign_settings import with_privacy
    from simulation.comparison.grid import SEEDS, Grid, read_cells
    from simulation.comparison.runs import Asked, read_algorithms
    from simulation.partition import read_partition

    privacy, target, workers = words["privacy"], comparison["target"], comparison["workers"]
    seeds = comparison["seeds"]
    console = Console()
    compared = tuple(with_privacy(algorithm, privacy) for algorithm in read_algorithms(algorithms))
    for algorithm in compared:
        make_algorithm(algorithm)
    base = with_privacy(read_algorithm(reference), privacy) if reference else compared[0]
    if base not in compared:
        raise ConfigError(f"--reference {reference}: expected one of --algorithms {algorithms}")
    if scenarios and target is not None:
        raise ConfigError(f"--target {target:g}: with --scenarios no rounds are counted")
    if not scenarios and (
        several := [f"{o} {v}" for o, v in (("--labels", labels), ("--split", split)) if "," in v]
    ):
        raise ConfigError(f"{several[0]}: several values are a grid, which --scenarios makes")
    labels_of_all, split_of_all = ("all", "own") if scenarios else (labels or "all", split or "own")
    common = make_settings(words | {"labels": labels_of_all, "split": split_of_all})
    asked = Asked(
        data,
        compared,
        seeds or (SEEDS if scenarios else 1),
        read_partition(words["partition"]),
        words["devices"],
        common,
    )
    if scenarios:
        _compare_scenarios(
            Grid(read_cells(data, labels, split), asked),
            str(base),
            prepare_folder(out),
            workers,
            console,
        )
    else:
        _compare(asked, str(base), target, prepare_folder(out), workers, console)
    return json.loads((out / "compare.json").read_text())


def _compare(
    asked: Asked,
    reference: str,
    target: float | None,
    out: Path,
    workers: int | None,
    console: Console,
) -> None:
    from shoal.reports.files import write_comparison
    from shoal.reports.tables import comparison_columns, tables
    from simulation.comparison.table import least_p, tabulate

    results = _run(asked.jobs(), out, workers, console)
    rows = tabulate(results, target, reference)
    files = write_comparison(out, results, rows)
    for table in tables(rows, comparison_columns(rows), console.width):
        console.print(table)
        console.print()
    _tell_of_failures(rows, console)
    if (least := least_p(rows)) > 0.05:
        told = "so few devices, and as many comparisons, allow no p below"
        console.print(
            f"{told} {least:.2g}: a difference may be real and look like chance", soft_wrap=True
        )
    skew = results[0]["heterogeneity"]
    console.print(
        "heterogeneity (seed 0): "
        + ", ".join(f"{name} {value:.3g}" for name, value in skew.items()),
        soft_wrap=True,
    )
    console.print(f"written: {', '.join(map(str, files))}", soft_wrap=True)


def _compare_scenarios(
    grid: Grid, reference: str, out: Path, workers: int | None, console: Console
) -> None:
    from shoal.reports.files import write_grid
    from shoal.reports.tables import cell_columns, overall_columns, tables
    from simulation.comparison.grid import sort_out
    from simulation.comparison.grid_table import tabulate_grid

    cells, left_out = sort_out(grid)
    found = tabulate_grid(
        grid, cells, _run(grid.all_jobs(cells), out, workers, console), left_out, reference
    )
    files = write_grid(out, found)
    for cell, rows in found.cells.items():
        console.print(f"[bold]{cell}[/bold]", soft_wrap=True)
        for table in tables(rows, cell_columns(rows), console.width):
            console.print(table)
            console.print()
        _tell_of_failures(rows, console)
    for cell, why in left_out.items():
        console.print(f"[bold]{cell}[/bold] left out: {why}", soft_wrap=True)
    whole = (
        f"over the cells in which every run ended with a model, {found.overall[0]['cells']} of "
        f"{len(cells)}"
    )
    console.print(f"[bold]{whole}[/bold]; against {reference}", soft_wrap=True)
    for table in tables(found.overall, overall_columns(found.overall), console.width):
        console.print(table)
        console.print()
    console.print(f"written: {', '.join(map(str, files))}", soft_wrap=True)


def _run(jobs: list[Job], out: Path, workers: int | None, console: Console) -> list[dict[str, Any]]:
    """Run what is missing, and say how far it is."""
    from shoal.waiting import rounds, steps
    from simulation.comparison.processes import check_jobs, run_all
    from simulation.datasets.doubts import doubts

    with steps(console, f"reading {', '.join({job.data: None for job in jobs})}"):
        fleets = {fleet.name: fleet for fleet in check_jobs(jobs, out / "runs")}
    for fleet in fleets.values():
        for said in doubts(fleet):
            warn(said)
    done = {job.key: 0 for job in jobs}
    with rounds(console, f"{len(jobs)} runs", sum(job.settings.rounds for job in jobs)) as told_of:

        def tell(job: Job, number: int) -> None:
            done[job.key] = max(done[job.key], number)
            over = sum(done[job.key] >= job.settings.rounds for job in jobs)
            told_of(sum(done.values()), f"{over} of the runs are over")

        return run_all(jobs, out / "runs", workers, tell)


def _tell_of_failures(rows: Sequence[dict[str, Any]], console: Console) -> None:
    for row in rows:
        if row["failed"]:
            console.print(
                f"[bold]{row['algorithm']}[/bold] ended without a model: {row['failed']}",
                soft_wrap=True,
            )
