"""``python -m benchmarks.virtual_time``: what virtual hours of rounds cost, without any training.

1,000 phones over a day, 100 updates in an aggregation, under each policy; and the same
with 20,000 phones over two hours. Writes ``benchmarks/results/virtual_time.json``.
"""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from aggregator.core.policies import read_policy
from benchmarks.results.report import put
from simulation.timing.campaign import TimedCampaign
from simulation.timing.fleet import JobSize, TimedFleet
from simulation.timing.profiles import make_profiles, read_profiles
from simulation.timing.report import describe

RESULTS = Path(__file__).parent / "results" / "virtual_time.json"
PROFILE = "phones:speed=10"
EXAMPLES = 5000
"""Examples of a job, epochs included: 8 minutes on the median phone at 10 examples a second, as a
small image network has it."""
BYTES = 5_000_000
POLICIES = (
    "sync:cohort=100:deadline=1800",
    "over-select:cohort=100:over=0.3:deadline=1800",
    "buffered:concurrency=100:buffer=100:deadline=1800",
    "buffered:concurrency=100:buffer=10:deadline=1800",
)
CASES = ((1_000, 24.0), (20_000, 2.0))
"""Devices and virtual hours."""


def measure(policy_text: str, devices: int, hours: float, seed: int = 0) -> dict[str, Any]:
    """One policy over so many virtual hours: seconds, and what `describe` says; an aggregation and
    a job in CPU time."""
    started_s, used_s = time.perf_counter(), time.process_time()
    fleet = TimedFleet(
        make_profiles(read_profiles(PROFILE), devices, seed),
        JobSize(np.full(devices, EXAMPLES), BYTES, BYTES),
        seed,
    )
    policy = TimedCampaign(read_policy(policy_text), fleet)
    made_s, slowest_s = time.process_time() - used_s, 0.0
    while policy.now_s < 3600 * hours:
        before_s = time.process_time()
        policy.next_batch()
        slowest_s = max(slowest_s, time.process_time() - before_s)
    wall_s, cpu_s = time.perf_counter() - started_s, time.process_time() - used_s
    report = describe(policy.tally, policy.now_s)
    return {
        "policy": policy_text,
        "profile": PROFILE,
        "examples": EXAMPLES,
        "num_devices": devices,
        "virtual_hours": hours,
        "wall_s": round(wall_s, 2),
        "cpu_s": round(cpu_s, 2),
        "made_s": round(made_s, 2),
        "ms_per_aggregation": round(1000 * (cpu_s - made_s) / report.aggregations, 3),
        "slowest_ms": round(1000 * slowest_s, 1),
        "us_per_job": round(1e6 * (cpu_s - made_s) / report.devices.invited, 2),
        **msgspec.to_builtins(report),
    }


def as_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows of `measure` as a table."""
    lines = [
        "| policy | devices | hours | CPU, s | aggregations | CPU ms each | jobs | CPU "
        "µs a job | useful | staleness |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        numbers = [
            f"{row['num_devices']:,}",
            f"{row['virtual_hours']:g}",
            f"{row['cpu_s']:.1f}",
            f"{row['aggregations']:,}",
            f"{row['ms_per_aggregation']:.1f}",
            f"{row['devices']['invited']:,}",
            f"{row['us_per_job']:.1f}",
            f"{100 * row['utilisation']['useful']:.0f} %",
            f"{row['staleness']['mean']:.2f}",
        ]
        lines.append(f"| `{row['policy']}` | {' | '.join(numbers)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure every policy, print a line for each, write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--share",
        type=float,
        default=1.0,
        help="share of the virtual hours, for a quick look; writes nothing below 1",
    )
    share = parser.parse_args().share
    rows = []
    for devices, hours in CASES:
        for policy in POLICIES:
            row = measure(policy, devices, share * hours)
            rows.append(row)
            print(
                f"{devices:>9,} devices, {share * hours:g} h, {policy}: {row['wall_s']} s "
                f"({row['cpu_s']} s of CPU), "
                f"{row['aggregations']:,} aggregations of {row['ms_per_aggregation']} ms, "
                f"{row['us_per_job']} µs a job",
                flush=True,
            )
    print(as_markdown(rows))
    if share >= 1:
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
        put("virtual-time", f"## Virtual time\n\n{as_markdown(rows)}")


if __name__ == "__main__":
    main()
