"""`shoal compare`: several algorithms on the same simulated fleets, over several seeds."""

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from aggregator.core.cohort import read_policy
from algorithms.registry import make_algorithm
from shoal.commands import options as opt
from shoal.comparison_picture import draw_comparison
from shoal.folders import prepare_folder
from shoal.report import percent
from shoal.warn import warn
from simulation.compare import Asked, Job, check_jobs, read_algorithms, run_all, tabulate
from simulation.datasets.windows import one_class
from simulation.engine.workers.attacks import read_attack
from simulation.partition import read_partition
from simulation.simulate import SimulationSettings
from simulation.timing.profiles import read_profiles


def compare(
    algorithms: Annotated[str, typer.Option(help="Names with commas between them: fedavg,distfl,dbe+distfl+irls.")],
    data: opt.Data = "watch",
    rounds: opt.Rounds = 20,
    local_epochs: opt.LocalEpochs = 1,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 0 to N - 1: initial weights, order of batches, partition, attackers.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder for compare.json, compare.csv, compare.png and each run's result.")] = Path(
        "runs/compare"
    ),
    partition: opt.Partition = "user",
    attack: opt.Attack = "",
    privacy: opt.PrivacyName = "",
    newcomers: Annotated[int, typer.Option(min=0, help="So many devices are held out of training and join when it is over.")] = 0,
    target: Annotated[
        float | None, typer.Option(min=0, max=1, help="Accuracy to count rounds to; 95 % of the best when not given.")
    ] = None,
    devices: opt.Devices = None,
    batch_size: opt.BatchSize = 32,
    update_encoding: opt.UpdateEncoding = "float32",
    lr: opt.Lr = None,
    hyper: opt.Hyper = None,
    model: opt.ModelName = "",
    pretrain: opt.Pretrain = "",
    cohort: opt.Cohort = 0,
    profiles: opt.Profiles = "",
    policy: opt.Policy = "",
    workers: Annotated[int | None, typer.Option(min=1, help="Runs at the same time; one for each core when not given.")] = None,
) -> None:
    """Compare algorithms in one table and one picture. Started again, it goes on where it was interrupted."""
    console = Console()
    compared = tuple(opt.with_privacy(algorithm, privacy) for algorithm in read_algorithms(algorithms))
    for algorithm in compared:
        make_algorithm(algorithm)
    common = SimulationSettings(
        rounds=rounds,
        local_epochs=local_epochs,
        batch_size=batch_size,
        hyper=opt.hyper_values(lr, hyper),
        update_encoding=opt.read_encoding(update_encoding),
        model=model,
        attack=opt.chosen(attack, read_attack),
        pretrain=pretrain,
        newcomers=newcomers,
        cohort=cohort,
        profiles=opt.chosen(profiles, read_profiles),
        policy=opt.chosen(policy, read_policy),
    )
    asked = Asked(data, compared, seeds, read_partition(partition), devices, common)
    jobs = asked.jobs()
    prepare_folder(out)
    for fleet in check_jobs(jobs, out / "runs")[:1]:
        warn(one_class(fleet))
    counted = (MofNCompleteColumn(), TextColumn("rounds in"), TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("left"))
    columns = (TextColumn("{task.description}"), BarColumn(), *counted)
    with Progress(*columns, console=console) as progress:
        done = {job.key: 0 for job in jobs}
        task = progress.add_task(f"{len(jobs)} runs", total=rounds * len(jobs))

        def tell(job: Job, number: int) -> None:
            done[job.key] = max(done[job.key], number)
            progress.update(task, completed=sum(done.values()))

        results = run_all(jobs, out / "runs", workers, tell)
    rows = tabulate(results, target)
    (out / "compare.json").write_text(json.dumps(rows, indent=1) + "\n")
    write_csv(out / "compare.csv", rows)
    draw_comparison(out / "compare.png", results, rows)
    for table in comparison_tables(rows, console.width):
        console.print(table)
        console.print()
    for row in rows:
        if "failed" in row:
            console.print(f"[bold]{row['algorithm']}[/bold] ended without a model: {row['failed']}", soft_wrap=True)
    skew = results[0]["heterogeneity"]
    console.print("heterogeneity (seed 0): " + ", ".join(f"{name} {value:.3g}" for name, value in skew.items()), soft_wrap=True)
    console.print(f"written: {out / 'compare.json'}, {out / 'compare.csv'}, {out / 'compare.png'}", soft_wrap=True)


GAP = 2
"""Columns of a terminal between those of the table."""


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """The rows with their nested fields as NAME.FIELD columns."""
    flat = [_flat(row) for row in rows]
    names = list(dict.fromkeys(name for row in flat for name in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(flat)


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in row.items():
        flat |= {f"{name}.{key}": v for key, v in value.items()} if isinstance(value, dict) else {name: value}
    return flat


def comparison_tables(rows: Sequence[Mapping[str, Any]], width: int) -> list[Table]:
    """One row per algorithm, without columns that say nothing here; a second table and so on where one would be wider than `width`."""
    cells: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "accuracy %": lambda r: "-" if "failed" in r else f"{_percent(r['accuracy']['mean'])} ±{100 * (r['accuracy']['std'] or 0):.1f}",
        "worst %": lambda r: _percent(r["accuracy"]["worst"]),
        "groups": lambda r: _number(r["groups"]["count"], "g"),
        "ARI": lambda r: _number(r["groups"]["ari"], ".2f"),
        "MB up": lambda r: f"{r['bytes']['up'] / 1e6:.1f}",
        "down": lambda r: f"{r['bytes']['down'] / 1e6:.1f}",
        "to " + percent(rows[0]["target"]): lambda r: _number(r["rounds_to_target"], "g"),
        "hours": lambda r: "-" if r["time_to_target_s"] is None else f"{r['time_to_target_s'] / 3600:.3g}",
        "epsilon": lambda r: _number(r["epsilon"], ".2f"),
        "ASR %": lambda r: _percent(r["attack"]["success_rate"]) if "attack" in r else "-",
        "apart": lambda r: f"{r['attack']['told_apart']}/{r['seeds']}" if "attack" in r else "-",
        "newcomers %": lambda r: _percent(r["newcomers"]["mean"]) if "newcomers" in r else "-",
        "s": lambda r: _number(r["wall_s"], ".0f"),
    }
    columns = {heading: [made(row) for row in rows] for heading, made in cells.items()}
    names = [row["algorithm"] for row in rows]
    name_width = min(max(map(len, ["algorithm", *names])), width // 4)
    tables: list[dict[str, list[str]]] = []
    left = 0
    for heading, column in columns.items():
        if any(cell != "-" for cell in column):
            needed = GAP + max(map(len, (heading, *column)))
            if needed > left:
                tables.append({})
                left = width - name_width
            tables[-1][heading] = column
            left -= needed
    return [_table(names, name_width, shown) for shown in tables]


def _table(names: Sequence[str], name_width: int, columns: Mapping[str, Sequence[str]]) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0), header_style="bold")  # the box adds 1
    table.add_column("algorithm", overflow="fold", width=name_width)
    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for cells in zip(names, *columns.values(), strict=True):
        table.add_row(*cells)
    return table


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
