"""`python -m benchmarks.peers`: Shoal beside other systems for simulating federated learning, on
one workload, in turns.

Every system is installed from PyPI into an environment of its own (`runs/peers/venv-NAME`) when
that is missing. One that cannot be installed or does not finish is in the results with the reason.
benchmarks/results/peers.json is written by complete runs only; a part of the systems, or another
size, goes where `--out` says.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.status import Status

from benchmarks.peers.environments import InstallationFailed, install, python_of
from benchmarks.peers.memory import Tree
from benchmarks.peers.systems import SYSTEMS, System, choose
from benchmarks.peers.table import OURS, Run, check_work, markdown, summarize
from benchmarks.peers.workload import write_data
from benchmarks.results.report import describe_machine, put

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "peers.json"
DEVICES, ROUNDS, REPEATS = 100, 5, 3
QUIET = 10.0
"""Percent of the machine that other work may use before a run without being told of."""
LOCAL = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
"""Nothing is reported to anybody."""


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Install what is missing, run in turns, print the table, and return its rows."""
    options = read_options(arguments)
    systems = choose(options.only)
    console = Console()
    reasons = {}
    for environment in dict.fromkeys(s.environment for s in systems if s.environment):
        system = next(s for s in systems if s.environment == environment)
        with console.status(f"{environment}: looking at its environment") as status:
            try:
                install(system, options.venvs, partial(_show, status), options.timeout)
            except (InstallationFailed, OSError) as error:
                reasons[environment] = f"not installed: {error}"
                console.print(f"{environment} is left out, {reasons[environment]}", style="yellow")
    runs = measure(
        systems,
        options,
        reasons,
        lambda text: console.print(text, highlight=False, markup=False, soft_wrap=True),
    )
    rows = [summarize(s, runs[s.name], runs.get(OURS, []), options.devices) for s in systems]
    check_work(rows)
    for row in rows:
        row |= {"machine": describe_machine()}
    out = options.out or (RESULTS if is_complete(options, systems) else None)
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(rows, indent=1) + "\n")
    if out == RESULTS:
        put("peers", f"## Beside other systems\n\n{markdown(rows)}")
    console.print(
        markdown(rows),
        f"\nWritten to {out}." if out else "\nNot written: part of a run (--out FILE keeps it).",
        soft_wrap=True,
    )
    return rows


def _show(status: Status, line: str) -> None:
    status.update(line[:120])


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.peers", description="Shoal beside other systems on one workload."
    )
    parser.add_argument(
        "--only", nargs="+", default=[], help=f"of {', '.join(s.name for s in SYSTEMS)}"
    )
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--devices", type=int, default=DEVICES)
    parser.add_argument(
        "--timeout",
        type=float,
        default=900.0,
        help="seconds for one run, and for each step of an installation",
    )
    parser.add_argument(
        "--venvs", type=Path, default=Path("runs/peers"), help="folder of the environments"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=None,
        help="where the results go instead of benchmarks/results/peers.json",
    )
    options = parser.parse_args(arguments)
    if min(options.repeats, options.rounds, options.devices) < 1:
        parser.error("repeats, rounds and devices start at 1")
    return options


def is_complete(options: argparse.Namespace, systems: Sequence[System]) -> bool:
    """Return True if this is the comparison whose results are stored."""
    return (
        len(systems) == len(SYSTEMS)
        and (options.devices, options.rounds) == (DEVICES, ROUNDS)
        and options.repeats >= REPEATS
    )


def measure(
    systems: Sequence[System],
    options: argparse.Namespace,
    reasons: dict[str, str],
    tell: Callable[[str], None],
) -> dict[str, list[Run]]:
    """Every system once per turn, so that a slow quarter of an hour of the machine falls on all of
    them."""
    runs: dict[str, list[Run]] = {s.name: [] for s in systems}
    with tempfile.TemporaryDirectory(prefix="shoal-peers-") as scratch:
        data = Path(scratch) / "data"
        write_data(data, options.devices)
        for turn in range(options.repeats):
            for system in systems:
                reason = reasons.get(system.environment)
                run = (
                    {"reason": reason} if reason else run_once(system, options, data, Path(scratch))
                )
                runs[system.name].append(run)
                tell(
                    f"turn {turn + 1} of {options.repeats}, {system.name}: "
                    f"{describe(run, system.devices(options.devices))}"
                )
    return runs


def describe(run: Run, devices: int) -> str:
    """One run in a line."""
    if "reason" in run:
        return str(run["reason"])
    best, megabytes = devices / min(run["rounds_s"]), run["peak_bytes"] / 1e6
    others = (
        f"; other work kept {run['busy_before']:.0f} % of the cores busy"
        if run["busy_before"] > QUIET
        else ""
    )
    return (
        f"{best:.1f} updates/s in its best round, {run['wall_s']:.0f} s, {megabytes:,.0f} MB, "
        f"loss {run['final_loss']:.3f}{others}"
    )


def run_once(
    system: System, options: argparse.Namespace, data: Path, scratch: Path
) -> dict[str, Any]:
    """Start a runner, watch its memory, wait, and leave nothing of it behind."""
    devices = system.devices(options.devices)
    sizes = {
        "devices": devices,
        "rounds": options.rounds,
        "data": data,
        "processes": system.processes or devices,
        "threads": system.threads,
    }
    command = [
        str(python_of(system, options.venvs).absolute()),
        "-W",
        "ignore",
        "-m",
        f"benchmarks.peers.run_{system.runner}",
    ]
    command += [part for name, value in sizes.items() for part in (f"--{name}", str(value))]
    threads = str(system.threads)
    environment = (
        os.environ
        | LOCAL
        | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    )
    output, log = scratch / f"{system.name}.out", scratch / f"{system.name}.log"
    timed_out = False
    busy = psutil.cpu_percent(interval=1.0)
    with output.open("w") as to, log.open("w") as errors:
        started_s = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=to, stderr=errors, env=environment, cwd=scratch, start_new_session=True
        )
        with Tree(process.pid) as tree:
            try:
                process.wait(options.timeout)
            except subprocess.TimeoutExpired:
                timed_out = True
            wall_s = time.perf_counter() - started_s
        process.wait()
    if timed_out:
        return {"reason": f"no result after {options.timeout:g} s"}
    result = read_result(output.read_text())
    if process.returncode or result is None or len(result["rounds_s"]) != options.rounds:
        return {
            "reason": f"ended with {process.returncode}: "
            f"{last_line(log.read_text()) or last_line(output.read_text())}"
        }
    return result | {"wall_s": wall_s, "peak_bytes": tree.peak_bytes, "busy_before": busy}


def read_result(text: str) -> dict[str, Any] | None:
    """The runner's line among whatever a framework prints; the last one that is it."""
    for line in reversed(text.splitlines()):
        if line.startswith('{"rounds_s"'):
            return dict(json.loads(line))
    return None


def last_line(text: str) -> str:
    """The last line that says something, shortened."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


if __name__ == "__main__":
    sys.exit(0 if any(row["updates_per_s"] for row in main()) else 1)
