"""`make chaos`: real processes, every fault many times at random moments, one table."""

import argparse
import json
import random
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import benchmarks.results
from algorithms.composition import read_algorithm
from benchmarks.results.report import describe_machine, keep
from tests.chaos.deployment import DEADLINE_S, GRACE_S, PATIENCE_S, Deployment
from tests.chaos.faults import FAULTS
from tests.chaos.run import try_faults
from tests.support import postgres
from tests.support.bundles import write_bundle
from tests.support.fleets import synthetic_fleet

OUT = Path(benchmarks.results.__file__).with_name("chaos.json")
POSTGRES_OUT = OUT.with_name("chaos_postgres.json")


HEAD = """| fault | tried | acknowledged updates lost | counted twice | stalled \
| median time to a round, s |
|---|---|---|---|---|---|
"""


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = []
    for name, row in results["faults"].items():
        if row["skipped"]:
            lines.append(f"| {name} | skipped: {row['skipped']} | | | | |")
            continue
        counts = (
            f"{len(row['lost'])} of {row['acknowledged']} | {len(row['twice'])} in "
            f"{row['rounds']} rounds | {len(row['stalled'])}"
        )
        lines.append(f"| {name} | {row['tried']} | {counts} | {row['median_s']} |")
    return HEAD + "\n".join(lines)


def postgres_section(results: dict[str, Any]) -> str:
    """The part of that section for a database in PostgreSQL."""
    return f"""The same with a database in PostgreSQL, in {results["minutes"]:.0f} minutes
(`make chaos ARGS=--postgres`); numbers in `results/chaos_postgres.json`.

{table(results)}"""


def section(results: dict[str, Any]) -> str:
    """The section of the page of results."""
    return f"""## Faults

Machine: {results["machine"]}. Made by `make chaos` in {results["minutes"]:.0f} minutes; numbers in
`results/chaos.json`. One service and three `shoal-edge` processes on {results["broker"]},
`--deadline {DEADLINE_S:.0f} --grace {GRACE_S:.0f}`; faults at random moments, in random order.

{table(results)}

*Lost*: a device was told that its update is safe before its round was closed, and the record of
that round lacks it, or the device was asked for it again (but where blobs or pages are damaged,
where asking again is the cure). *Counted twice*: a round's sums or its new model are not those of
one update of each of its devices, computed again from what went over the broker. *Stalled*: no
round was aggregated within two deadlines and the rest of a device that missed one,
{PATIENCE_S:.0f} s after the fault. The time runs from the fault, or from its end where it lasts
(disk, clock, messages). What a client with another device's certificate can do is tested in
`tests/wire/test_access.py`."""


def main() -> None:
    """Try all faults, print the table, keep it."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=20.0, help="how long; every fault is tried once at least"
    )
    parser.add_argument("--only", default="", help="faults whose name has this in it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--folder", type=Path, help="where everything is kept; a temporary folder otherwise"
    )
    parser.add_argument(
        "--postgres", action="store_true", help="the service has a database in PostgreSQL"
    )
    parser.add_argument("--out", type=Path)
    told = parser.parse_args()
    faults = [fault for fault in FAULTS if told.only in fault.name]
    with ExitStack() as opened:
        folder = told.folder or Path(opened.enter_context(tempfile.TemporaryDirectory()))
        server = None
        if told.postgres:
            elsewhere = opened.enter_context(postgres.elsewhere())
            server = opened.enter_context(postgres.running(elsewhere))
        data = synthetic_fleet(num_devices=3, num_windows=120)
        if not (folder / "bundle").exists():
            (folder / "bundle").mkdir(parents=True)
            write_bundle(folder / "bundle", data, read_algorithm("fedavg"))
        with Deployment(data, folder / "bundle", folder, postgres=server) as deployment:
            rows = try_faults(
                deployment,
                faults,
                told.minutes * 60,
                random.Random(told.seed),
                lambda text: print(text, flush=True),
            )
            broker = deployment.broker.name
    results = {
        "machine": describe_machine(),
        "minutes": told.minutes,
        "broker": broker,
        "seed": told.seed,
    }
    results["faults"] = {name: row.report() for name, row in rows.items()}
    usual = POSTGRES_OUT if told.postgres else OUT
    if told.only:
        told.out.write_text(json.dumps(results, indent=1) + "\n") if told.out else None
    elif told.postgres:
        keep(results, told.out or usual, usual, "chaos-postgres", postgres_section(results))
    else:
        keep(results, told.out or usual, usual, "chaos", section(results))
    print(table(results))
    raise SystemExit(1 if any(row.failures for row in rows.values()) else 0)


if __name__ == "__main__":
    main()
