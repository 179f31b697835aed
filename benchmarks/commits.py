"""Measures commits a second of a service's database, of one event and of 64, and their times.

Run as ``python -m benchmarks.commits``, with ``--database postgresql://...`` for another database
beside SQLite on this machine's disk; writes ``benchmarks/results/commits.json``. Nothing else is
measured: `benchmarks.load` has the service around it.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from aggregator.fleet.events import Seen
from aggregator.fleet.records import Device
from aggregator.service.runner import GROUP
from aggregator.storage.engine import sqlite_url
from aggregator.storage.fleet_store import FleetStore
from benchmarks.results.report import describe_machine, keep

OUT = Path(__file__).parent / "results" / "commits.json"
SECONDS = 5.0
"""For so long each way is measured."""


def measure(url: str, count: int) -> dict[str, float]:
    """Return commits a second, and the median and the 99th percentile of one in milliseconds."""
    store, took_s = FleetStore(url), list[float]()
    fleet, names = store.load(), [f"device-{number}" for number in range(count)]
    end_s = time.perf_counter() + SECONDS
    while (began_s := time.perf_counter()) < end_s:
        seen = {name: Device(seen_s=began_s, online=True) for name in names}
        after = replace(fleet, devices=fleet.devices.update(seen))
        store.commit(
            fleet,
            after,
            set(names),
            [Seen(at_s=began_s, device_id=name, online=True) for name in names],
        )
        took_s.append(time.perf_counter() - began_s)
        fleet = after
    store.close()
    parts = statistics.quantiles(took_s, n=100)
    return {
        "commits_per_s": len(took_s) / sum(took_s),
        "median_ms": 1e3 * parts[49],
        "p99_ms": 1e3 * parts[98],
    }


def fsync_ms(folder: Path) -> float:
    """The median time that the disk takes to keep 4 KiB, in milliseconds."""
    took_s = list[float]()
    with (folder / "fsync").open("wb", buffering=0) as file:
        for _ in range(100):
            began_s = time.perf_counter()
            file.write(bytes(4096))
            os.fsync(file.fileno())
            took_s.append(time.perf_counter() - began_s)
    return 1e3 * statistics.median(took_s)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", default="")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        databases = {"SQLite": sqlite_url(Path(folder) / "shoal.db")} | (
            {"PostgreSQL": arguments.database} if arguments.database else {}
        )
        measured = {
            name: {str(events): measure(url, events) for events in (1, GROUP)}
            for name, url in databases.items()
        }
        results: dict[str, Any] = {
            "machine": describe_machine(),
            "fsync_ms": fsync_ms(Path(folder)),
            "load": os.getloadavg()[0],
            "databases": measured,
        }
    lines = [
        "| database | events in a commit | commits/s | events/s | median ms | 99 % ms |",
        "|---|---|---|---|---|---|",
    ]
    for name, ways in measured.items():
        for events, way in ways.items():
            rate = way["commits_per_s"]
            lines.append(
                f"| {name} | {events} | {rate:.0f} | {rate * int(events):,.0f} | "
                f"{way['median_ms']:.2f} | {way['p99_ms']:.2f} |"
            )
    disk = (
        f"PostgreSQL on the same machine, whose load was {results['load']:.0f}; fsync of 4 KiB: "
        f"{results['fsync_ms']:.2f} ms"
    )
    head = f"`python -m benchmarks.commits`. {results['machine']}; {disk}."
    text = "\n".join(["## Commits of a service's database", "", head, "", *lines])
    print(text)
    keep(results, arguments.out, OUT, "commits", text)


if __name__ == "__main__":
    main()
