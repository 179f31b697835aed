"""`python -m benchmarks.papers [--night] [--only KEY ...]`: the papers' comparisons, run again,
with the papers' numbers beside ours.

Without `--night` it takes an hour on two cores; with it, a night: the papers' own sizes where they
can be had, and all their methods. Every run that is finished is a file in `runs/papers` and is not
made again, so that whatever ends it, the next call goes on from there. With `--missing` it goes on
from the results instead, so that several machines make a night one after another. What is measured
goes to benchmarks/results/papers.json after each table; the tables in benchmarks/RESULTS.md and
benchmarks/REPRODUCTION.md are made from that file, as they are by `--write` alone.
"""

import argparse
import time
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from benchmarks.papers import autocfl, cgau, dbe, distfl, feddisk, feddisk_oracle, signature
from benchmarks.papers.reproduction import write_claims
from benchmarks.papers.results import Results
from benchmarks.papers.table import Table
from benchmarks.results.report import put
from simulation.comparison.runs import Job

HERE = Path(__file__).parents[1]


class Section(Protocol):
    """Comparison that fits no `Table`: it measures by itself, stores finished parts in the folder,
    and shows its results."""

    def measure(self, out: Path, night: bool) -> dict[str, Any]:
        """Everything that was found."""

    def markdown(self, found: dict[str, Any]) -> str:
        """Return the results as text."""


TABLES: list[Table] = [
    *distfl.TABLES,
    *dbe.TABLES,
    *autocfl.TABLES,
    *feddisk.TABLES,
    *signature.TABLES,
]
SECTIONS: dict[str, Section] = {"cgau": cgau.Section(), "feddisk-oracle": feddisk_oracle.Section()}


def main() -> None:
    """Run the tables asked for, and write what came out after each."""
    parser = argparse.ArgumentParser(prog="benchmarks.papers")
    parser.add_argument("--night", action="store_true", help="for a night on two cores")
    parser.add_argument(
        "--only", nargs="+", default=[], help="keys of tables, or beginnings of keys"
    )
    parser.add_argument(
        "--write", action="store_true", help="run nothing: write the pages from the results"
    )
    parser.add_argument(
        "--missing",
        action="store_true",
        help="leave out what the results have, whichever machine made it",
    )
    parser.add_argument(
        "--finished",
        action="store_true",
        help="run nothing more: take in what is finished of tables that are not",
    )
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--out", type=Path, default=Path("runs/papers"))
    arguments = parser.parse_args()
    results, console = Results(HERE / "results" / "papers.json"), Console()
    chosen = (
        []
        if arguments.write
        else [key for key in (*(t.key for t in TABLES), *SECTIONS) if _asked(key, arguments.only)]
    )
    for table in [t for t in TABLES if t.key in chosen]:
        if arguments.missing:
            table = table.lacking(results.of(table.key), arguments.night)
        if arguments.finished:
            measured = table.collect(arguments.out, arguments.night)
            if any(measured.values()):
                results.keep(table.key, measured, arguments.night)
            continue
        measure(table, arguments.night, arguments.out, arguments.workers, results, console)
        write(results)
    for key in [k for k in SECTIONS if k in chosen and not arguments.finished]:
        results.keep(key, SECTIONS[key].measure(arguments.out, arguments.night), arguments.night)
        console.print(SECTIONS[key].markdown(results.of(key)), soft_wrap=True)
        write(results)
    write(results)


def _asked(key: str, only: list[str]) -> bool:
    return not only or key.startswith(tuple(only))


def measure(
    table: Table, night: bool, out: Path, workers: int | None, results: Results, console: Console
) -> None:
    """Run what a table lacks, with a bar for its rounds, and keep what it measured."""
    jobs = table.jobs(night, out)
    if not jobs:
        console.print(
            f"{table.key}: nothing to run"
            if night
            else f"{table.key}: for a night (--night), or measured already"
        )
        return
    started_s = time.monotonic()
    done: dict[str, int] = {}
    with Progress(
        TextColumn(f"{table.key:24}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    ) as progress:
        task: TaskID = progress.add_task(
            "", total=sum(job.settings.rounds for job in {j.key: j for j in jobs}.values())
        )

        def tell(job: Job, number: int) -> None:
            done[job.key] = max(done.get(job.key, 0), number)
            progress.update(task, completed=sum(done.values()))

        results.keep(table.key, table.measure(out, night, workers, tell), night)
    console.print(
        table.markdown(results.of(table.key)),
        f"{time.monotonic() - started_s:.0f} s",
        soft_wrap=True,
    )


def write(results: Results) -> None:
    """The pages, from the results."""
    tables = [t.markdown(results.of(t.key)) for t in TABLES if results.of(t.key)]
    missing = "; ".join(t.title for t in TABLES if not results.of(t.key))
    sections = [
        section.markdown(results.of(key)) for key, section in SECTIONS.items() if results.of(key)
    ]
    intro = (
        "## The papers\n\nMade by `make papers` (an hour) and `make papers NIGHT=1` (a night); "
        "the number behind a slash is the paper's. "
        "± is a 95 % interval over seeds. [REPRODUCTION.md](REPRODUCTION.md) says claim by claim "
        f"what came of them.{f' Not yet run: {missing}.' if missing else ''}"
    )
    put("papers", "\n".join([intro, "", *tables, *sections]))
    write_claims(results, HERE / "REPRODUCTION.md")


if __name__ == "__main__":
    main()
