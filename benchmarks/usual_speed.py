"""``python -m benchmarks.usual_speed``: twelve usual models by what `auto` takes, beside a plain
loop in torch and pfl-research.

Workload: 256 examples on each of 20 devices, FedAvg, one epoch in batches of 32 of SGD with
momentum, so many rounds that there are at least 3,200 steps, in two
turns of which the shorter one counts. An update is one device's epoch.
Everything runs on two cores: the simulation as `simulate` starts it, the plain loop as two
processes of one thread that share the devices, pfl-research as two processes joined by
torch.distributed (its guide's way), in an environment of its own (`runs/peers/venv-pfl`, made where
it is missing, with the versions of `benchmarks/peers/requirements/pfl.txt`). The seconds are those
of a process from its start to its end; CPU seconds are those of the process and of its children.

It goes on where it was stopped: what has a result for as many steps on this machine is not made
again. ``--steps 640`` is a short run, whose results go where ``--out`` says; ``--limit`` bounds
each run, and one that takes longer has its reason in the table.
"""

import argparse
import json
import math
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.peers.environments import InstallationFailed, install, python_of
from benchmarks.peers.systems import SYSTEMS
from benchmarks.results.report import describe_machine, put
from benchmarks.speed_models import (
    BATCH,
    CLASSES,
    DEVICES,
    EXAMPLES,
    MODELS,
    MOMENTUM,
    RATE,
    device,
    train_plainly,
)

OUT = Path(__file__).parent / "results" / "usual_speed.json"
STEPS, TURNS = 3_200, 2
WAYS = ("auto", "plain", "pfl")
VENVS = Path("runs/peers")
PFL = next(system for system in SYSTEMS if system.name == "pfl-2")


def by_shoal(name: str, backend: Any, rounds: int) -> None:
    """A simulation as a user starts it; prints the backend that it took."""
    from algorithms.composition import make_objective, read_algorithm
    from algorithms.models.adoption.adopt import adopt
    from benchmarks.backends import fleet_of
    from simulation.engine.options import EngineOptions
    from simulation.settings import SimulationSettings
    from simulation.simulate import simulate

    make, shape = MODELS[name]
    fleet = fleet_of(shape, DEVICES)
    objective = make_objective(
        read_algorithm("fedavg"), adopt(name, make(), shape, CLASSES, nn.Identity())
    )
    settings = SimulationSettings(
        read_algorithm("fedavg"),
        rounds,
        1,
        batch_size=BATCH,
        hyper={"lr": RATE, "momentum": MOMENTUM},
    )
    print(
        simulate(
            fleet, settings, lambda _progress: None, objective, EngineOptions(backend)
        ).summary.backend
    )


def by_loop(name: str, first: int, rounds: int) -> None:
    """Half of the devices of a plain loop; without the other half's models, whose sum costs nothing
    beside training."""
    torch.set_num_threads(1)
    make, shape = MODELS[name]
    data = [device(n, shape) for n in range(first, DEVICES, 2)]
    train_plainly(
        make().train(), [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in data], rounds
    )


def commands_of(way: str, name: str, rounds: int) -> list[list[str]]:
    """The processes that run side by side."""
    if way == "pfl":
        return [
            [str(python_of(PFL, VENVS)), "-m", "benchmarks.peers.run_pfl_usual", name, str(rounds)]
        ]
    ours = [sys.executable, "-m", "benchmarks.usual_speed"]
    if way == "plain":
        return [[*ours, "loop", name, str(n), str(rounds)] for n in (0, 1)]
    return [[*ours, "shoal", name, way, str(rounds)]]


def timed(commands: list[list[str]], limit_s: float) -> dict[str, Any]:
    """Wall and CPU seconds of processes that run side by side, and what the first one says last; or
    the reason why there are none."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    running = [
        subprocess.Popen(
            c, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        for c in commands
    ]
    try:
        said = [
            process.communicate(timeout=max(1.0, limit_s - (time.perf_counter() - began)))
            for process in running
        ]
    except subprocess.TimeoutExpired:
        return {"reason": f"not done after {limit_s:.0f} s"}
    finally:
        for process in running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    for process, (_, errors) in zip(running, said, strict=True):
        if process.returncode:
            return {
                "reason": f"ended with {process.returncode}: "
                f"{(errors.strip().splitlines() or [''])[-1]}"
            }
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_s": wall, "cpu_s": cpu, "said": (said[0][0].split() or [""])[-1]}


def ready(way: str) -> str:
    """Empty, or why a way cannot be measured here."""
    if way != "pfl":
        return ""
    try:
        install(PFL, VENVS, partial(print, flush=True), 900)
    except (InstallationFailed, OSError) as error:
        return f"not installed: {error}"
    return ""


def measure(name: str, way: str, steps: int, limit_s: float) -> dict[str, Any]:
    """One model by one way."""
    rounds = -(-steps // (DEVICES * EXAMPLES // BATCH))
    row = {
        "model": name,
        "way": way,
        "updates": rounds * DEVICES,
        "load": round(os.getloadavg()[0], 1),
    }
    if reason := ready(way):
        return row | {"reason": reason}
    return row | timed(commands_of(way, name, rounds), limit_s)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as Markdown, one line for each model; then what has no result, and why."""
    lines = [
        "| model | `auto` takes | updates/s, auto | plain loop | pfl-research | auto / plain "
        "| by CPU time | auto / pfl | by CPU time | load |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(row["model"] for row in rows):
        by = {row["way"]: row for row in rows if row["model"] == name and "reason" not in row}
        cells = [name, by["auto"]["said"] if "auto" in by else ""]
        cells += [f"{by[w]['updates'] / by[w]['wall_s']:.1f}" if w in by else "" for w in WAYS]
        for way in WAYS[1:]:
            cells += (
                f"{by[way][unit] / by['auto'][unit]:.1f}" if {way, "auto"} <= by.keys() else ""
                for unit in ("wall_s", "cpu_s")
            )
        load = max(row["load"] for row in rows if row["model"] == name)
        lines.append("| " + " | ".join([*cells, f"{load:.0f}"]) + " |")
    reasons = [
        f"- {row['model']}, {row['way']}: {row['reason']}" for row in rows if "reason" in row
    ]
    return "\n".join([*lines, *(["", "Without a result:", "", *reasons] if reasons else [])])


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.usual_speed", description="Usual models by all ways, start included."
    )
    parser.add_argument(
        "--steps", type=int, default=STEPS, help="steps of training in a run, at least"
    )
    parser.add_argument(
        "--models", nargs="+", choices=list(MODELS), default=list(MODELS), metavar="MODEL"
    )
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds that one run may take")
    parser.add_argument(
        "--out",
        type=Path,
        default=OUT,
        help="where the results are kept; the page of results has those of the default",
    )
    options = parser.parse_args(arguments)
    if options.steps < 1 or options.limit <= 0:
        parser.error("steps and limit are above 0")
    if options.out == OUT and options.steps != STEPS:
        parser.error(
            f"results of other than {STEPS} steps are not those of the page: say where they go "
            "with --out"
        )
    return options


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Measure what has no result yet, model by model and way by way, print and keep."""
    options, machine = read_options(arguments), describe_machine()
    known = json.loads(options.out.read_text()) if options.out.exists() else {}
    same = (known.get("machine"), known.get("steps")) == (machine, options.steps)
    found = {
        (row["model"], row["way"]): row
        for row in known.get("rows", ())
        if same and "reason" not in row
    }
    for name in options.models:
        ways = [way for way in options.ways if (name, way) not in found]
        for way in ways * TURNS:
            row = measure(name, way, options.steps, options.limit)
            print(row, flush=True)
            best = found.get((name, way), row)
            found[name, way] = min(best, row, key=lambda r: r.get("cpu_s", math.inf))
        rows = [found[key] for key in ((m, w) for m in MODELS for w in WAYS) if key in found]
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(
            json.dumps({"machine": machine, "steps": options.steps, "rows": rows}, indent=1) + "\n"
        )
    rows = [found[key] for key in ((m, w) for m in MODELS for w in WAYS) if key in found]
    print(table(rows))
    if options.out == OUT:
        note = (
            f"Machine: {machine}. {options.steps:,} steps of each, start included, the better of "
            f"{TURNS} turns. Where others work"
            " on the machine too, the load says so, and the ratios by CPU time are the surer "
            "ones. Made by"
            " `python -m benchmarks.usual_speed`."
        )
        put(
            "usual-speed",
            f"## Usual models, plain PyTorch and pfl-research\n\n{note}\n\n{table(rows)}",
        )
    return rows


if __name__ == "__main__":
    if sys.argv[1:2] == ["shoal"]:
        by_shoal(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    elif sys.argv[1:2] == ["loop"]:
        by_loop(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        main()
