"""`python -m benchmarks.papers [--full] [--only KEY ...]`: the papers' comparisons, run again, with the papers' numbers beside ours.

Runs that are finished are kept in `runs/papers` and not made again. The tables go into their section of benchmarks/RESULTS.md, and
into benchmarks/results/papers.json.
"""

import argparse
import json
import platform
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from benchmarks.papers import autocfl, cgau, dbe, distfl, feddisk, signature
from benchmarks.papers.table import Table
from benchmarks.results.report import put
from simulation.compare import Job

HERE = Path(__file__).parents[1]
TABLES: list[Table] = [*signature.TABLES, *distfl.TABLES, *dbe.TABLES, *autocfl.TABLES, *feddisk.TABLES, *cgau.TABLES]


def main() -> None:
    """Run the tables asked for, and write what came out."""
    parser = argparse.ArgumentParser(prog="benchmarks.papers")
    parser.add_argument("--full", action="store_true", help="the papers' own settings: days on two cores")
    parser.add_argument("--only", nargs="+", default=[], help="keys of tables, or beginnings of keys")
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--out", type=Path, default=Path("runs/papers"))
    arguments = parser.parse_args()
    chosen = [t for t in TABLES if not arguments.only or t.key.startswith(tuple(arguments.only))]
    console = Console()
    measured = {}
    for table in chosen:
        started_s = time.monotonic()
        rounds = sum(job.settings.rounds for job in table.jobs(arguments.full))
        done: dict[str, int] = {}
        with Progress(TextColumn(f"{table.key:24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console) as progress:
            task = progress.add_task("", total=rounds)

            def tell(job: Job, number: int, done: dict[str, int] = done, progress: Progress = progress, task: TaskID = task) -> None:
                done[job.key] = max(done.get(job.key, 0), number)
                progress.update(task, completed=sum(done.values()))

            measured[table.key] = table.measure(arguments.out, arguments.full, arguments.workers, tell)
        console.print(table.markdown(measured[table.key]), f"{time.monotonic() - started_s:.0f} s", soft_wrap=True)
    wants_cgau = not arguments.only or any("cgau".startswith(only[:4]) for only in arguments.only)
    write(measured, arguments.full, {"cgau": cgau.extra()} if wants_cgau and not arguments.full else {})


def write(measured: dict[str, dict[str, list[dict[str, object]]]], full: bool, sections: dict[str, str]) -> None:
    """Put what was measured beside what was measured before, as JSON and as tables."""
    path = HERE / "results" / ("papers_full.json" if full else "papers.json")
    path.parent.mkdir(exist_ok=True)
    kept = json.loads(path.read_text()) if path.exists() else {}
    kept |= {**sections, "machine": f"{platform.machine()}, {platform.processor() or platform.system()}", **measured}
    path.write_text(json.dumps(kept, indent=1) + "\n")
    if full:
        return
    shown = [t for t in TABLES if t.key in kept]
    body = "\n".join(t.markdown(kept[t.key]) for t in shown)
    extra = kept.get("cgau", "")
    findings = (HERE / "papers" / "findings.md").read_text()
    intro = "## The papers\n\nScaled settings (`make papers`); the number behind a slash is the paper's, in its own setting.\n\n"
    put("papers", f"{intro}{findings}\n{body}\n{extra}")


if __name__ == "__main__":
    main()
