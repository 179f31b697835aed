"""``python -m benchmarks.gpu``: what an accelerator does for simulations and for means.

Workload: 256 examples of noise on each of 128 devices, one epoch in batches of 32 of SGD with
momentum; an update is one device's epoch. A run of few rounds is taken from one of more, so that
starts do not count. `auto` uses every core of the same machine. Where torch finds no CUDA, the
same work runs on the processor, with fewer devices, and is no measurement: it shows that
everything runs. Writes `results/gpu.json`, and the section of RESULTS.md where there is a card.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from algorithms.composition import make_objective, read_algorithm
from algorithms.core.stack import Stack
from algorithms.models.adoption.adopt import adopt
from benchmarks.backends import fleet_of, layers, perceptron
from benchmarks.load import RAM, measure_rounds
from benchmarks.results.report import describe_machine, keep
from benchmarks.server import LAYOUT, MEANS, make_arena
from benchmarks.speed_models import BATCH, CLASSES, EXAMPLES, MODELS, MOMENTUM, RATE, train_plainly
from simulation.datasets.windows import FleetData
from simulation.engine.options import EngineOptions
from simulation.settings import SimulationSettings
from simulation.simulate import simulate
from wire.errors import ConfigError

OUT = Path(__file__).parent / "results" / "gpu.json"
SERIES = (9, 128)
WORKLOADS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "CNN, 9 x 128": (lambda: layers(nn.ReLU), SERIES, "fedavg"),
    "CNN, 9 x 128, ditto": (lambda: layers(nn.ReLU), SERIES, "ditto"),
    "MLP, 9 x 128": (perceptron, SERIES, "fedavg"),
    "2-D CNN, 1 x 28 x 28": (*MODELS["2-D CNN, 1 x 28 x 28"], "fedavg"),
    "2-D CNN, 3 x 32 x 32": (*MODELS["2-D CNN, 3 x 32 x 32"], "fedavg"),
    "TCN, 9 x 128": (*MODELS["TCN, 9 x 128"], "fedavg"),
    "GRU of 64, 9 x 128": (*MODELS["GRU of 64, 9 x 128"], "fedavg"),
    "Transformer, 9 x 128": (*MODELS["Transformer, 9 x 128"], "fedavg"),
}
"""Model, shape of an example, and algorithm, by name."""


def simulated_s(name: str, fleet: FleetData, rounds: int, options: EngineOptions) -> float:
    """Seconds of a run.

    Raises:
        ConfigError: the backend cannot run the model.
    """
    make, shape, algorithm = WORKLOADS[name]
    spec = read_algorithm(algorithm)
    objective = make_objective(spec, adopt(name, make(), shape, CLASSES, nn.Identity()))
    hyper = {"lr": RATE, "momentum": MOMENTUM} if algorithm == "fedavg" else {"lr": RATE}
    settings = SimulationSettings(spec, rounds, 1, batch_size=BATCH, hyper=hyper)
    began = time.perf_counter()
    simulate(fleet, settings, lambda _progress: None, objective, options)
    return time.perf_counter() - began


def examples_on(place: torch.device, fleet: FleetData) -> list[tuple[Tensor, Tensor]]:
    """Examples x and classes y of each device."""
    return [
        (torch.from_numpy(w.train_x).to(place), torch.from_numpy(w.train_y).to(place))
        for w in fleet.devices.values()
    ]


def plain_s(name: str, fleet: FleetData, rounds: int, place: torch.device) -> float:
    """Seconds of a plain loop in torch, with examples on the card from the start."""
    model, data = WORKLOADS[name][0]().to(place).train(), examples_on(place, fleet)
    _wait(place)
    began = time.perf_counter()
    train_plainly(model, data, rounds)
    _wait(place)
    return time.perf_counter() - began


def pfl_s(name: str, fleet: FleetData, rounds: int, place: torch.device) -> float:
    """Seconds of pfl-research in one process; it takes the accelerator that it finds."""
    from benchmarks.peers.run_pfl import simulate as simulate_pfl

    data = examples_on(place, fleet)
    seconds, _ = simulate_pfl(WORKLOADS[name][0](), data.__getitem__, len(data), rounds)
    return sum(seconds)


def engines(devices: int, rounds: int, place: torch.device) -> list[Any]:
    """Updates per second of each model by each way; or why there are none."""
    on_card = EngineOptions("batched", workers=devices, device=str(place))
    by_measurement = EngineOptions(device="auto")
    ways: dict[str, Callable[[str, FleetData, int], float]] = {
        "auto": lambda name, fleet, n: simulated_s(name, fleet, n, EngineOptions()),
        "device auto": lambda name, fleet, n: simulated_s(name, fleet, n, by_measurement),
        "batched": lambda name, fleet, n: simulated_s(name, fleet, n, on_card),
        "plain loop": lambda name, fleet, n: plain_s(name, fleet, n, place),
    }
    if place.type == "cuda":  # on a processor a round takes minutes
        in_bf16 = EngineOptions("batched", workers=devices, device=str(place), bf16=True)
        ways["batched, bf16"] = lambda name, fleet, n: simulated_s(name, fleet, n, in_bf16)
    if find_spec("pfl"):
        ways["pfl-research"] = lambda name, fleet, n: pfl_s(name, fleet, n, place)
    shapes = {shape for _, shape, _ in WORKLOADS.values()}
    fleets = {shape: fleet_of(shape, devices) for shape in shapes}
    rows: dict[str, dict[str, Any]] = {name: {"model": name} for name in WORKLOADS}
    for way, seconds in ways.items():
        for name, (_, shape, algorithm) in WORKLOADS.items():
            if algorithm != "fedavg" and way in ("plain loop", "pfl-research"):
                continue
            fleet = fleets[shape]
            if way in ("plain loop", "pfl-research"):  # one device after the other: a few will do
                fleet = replace(fleet, devices=dict(list(fleet.devices.items())[:16]))
            try:
                first = seconds(name, fleet, 1)  # caches are there from now on
                short = seconds(name, fleet, 1)
                spent = seconds(name, fleet, 1 + rounds) - short
                rows[name][way] = len(fleet.devices) * rounds / spent
                print(f"{way}, {name}: {rows[name][way]:.0f}/s; first {first:.2f} s", flush=True)
            except Exception as error:  # a way that fails is a row of the table
                rows[name][way] = f"{type(error).__name__}: {str(error)[:160]}"
                print(f"{way}, {name}: {rows[name][way]}", flush=True)
    return list(rows.values())


def memory(devices: int, together: int, place: torch.device) -> dict[str, Any]:
    """Peaks of the card and of the process in a run of 2 rounds with so many devices at a time;
    for a process of its own."""
    name = next(iter(WORKLOADS))
    fleet = fleet_of(WORKLOADS[name][1], devices)
    row: dict[str, Any] = {"devices": devices, "together": together}
    try:
        spent = simulated_s(
            name, fleet, 2, EngineOptions("batched", workers=together, device=str(place))
        )
    except ConfigError as error:
        return row | {"reason": str(error)}
    card = torch.cuda.max_memory_allocated() / 2**20 if place.type == "cuda" else 0.0
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    return row | {"card_mib": card, "process_mib": host, "seconds": spent}


def means(number: int, place: torch.device, turns: int) -> list[Any]:
    """Milliseconds of each mean over models in the processor's memory: by numpy there, and by torch
    on the card, copy included."""
    arena = make_arena(number)
    counts = np.random.default_rng(1).integers(50, 500, number)
    rows = []
    for name, mean in MEANS.items():
        if name == "irls" and number > 200:
            continue

        def here(mean: Any = mean) -> Any:
            return mean.combine(Stack(arena), counts, LAYOUT, 0).flat

        def there(mean: Any = mean) -> Any:
            moved = torch.from_numpy(arena).to(place)
            return mean.combine(Stack(moved), counts, LAYOUT, 0).flat

        row: dict[str, Any] = {"mean": name, "models": number}
        for way, call in (("processor", here), ("card", there)):
            try:
                call()
                row[way] = 1000 * statistics.median(_timed(call) for _ in range(turns))
            except Exception as error:  # a way that fails is a row of the table
                row[way] = f"{type(error).__name__}: {str(error)[:160]}"
        print(json.dumps(row), flush=True)
        rows.append(row)
    return rows


def services(number: int, place: torch.device) -> list[Any]:
    """Milliseconds from a round's last acknowledgement to the first plan of the next, by mean."""
    rows = []
    for mean in ("weighted", "median", "krum"):
        row: dict[str, Any] = {"mean": mean, "devices": number}
        for way, accelerator in (("processor", "cpu"), ("card", str(place))):
            with tempfile.TemporaryDirectory(dir=RAM) as folder:
                parts = (Path(folder), number, f"fedavg+{mean}", accelerator)
                row[way] = measure_rounds(*parts)["pause_ms"]
        print(json.dumps(row), flush=True)
        rows.append(row)
    return rows


def _timed(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _wait(place: torch.device) -> None:
    if place.type == "cuda":
        torch.cuda.synchronize(place)


def section(kept: dict[str, Any]) -> str:
    """The results as Markdown."""
    ways = list(dict.fromkeys(way for row in kept["engines"] for way in row if way != "model"))
    lines = [
        "## On a GPU",
        "",
        f"Machine: {kept['machine']}. Made by `make gpu`. Updates a second, an update being one "
        f"device's epoch of {EXAMPLES} examples in batches of {BATCH}; the rest of a round is in "
        "it. `auto` uses the processor's cores, `device auto` the faster of these and the "
        "card, and the others the card.",
        "",
        f"| model | {' | '.join(ways)} |",
        f"|---|{'---|' * len(ways)}",
    ]
    for row in kept["engines"]:
        cells = [row.get(way, "") for way in ways]
        told = ["fails" if isinstance(c, str) and c else f"{c:.0f}" if c else "" for c in cells]
        lines.append(f"| {row['model']} | {' | '.join(told)} |")
    lines += [
        "",
        "| devices | at a time | MiB on the card | MiB of the process |",
        "|---|---|---|---|",
    ]
    for row in kept["memory"]:
        told = (
            [row["reason"], ""]
            if "reason" in row
            else [f"{row['card_mib']:,.0f}", f"{row['process_mib']:,.0f}"]
        )
        lines.append(f"| {row['devices']:,} | {row['together']:,} | {' | '.join(told)} |")
    lines += [
        "",
        "Means of models of 45,190 parameters, which come from the processor's memory; ms.",
        "",
        "| mean | models | processor | card |",
        "|---|---|---|---|",
    ]
    for row in kept["means"]:
        cells = [row[way] for way in ("processor", "card")]
        told = ["fails" if isinstance(c, str) else f"{c:,.1f}" for c in cells]
        lines.append(f"| {row['mean']} | {row['models']:,} | {' | '.join(told)} |")
    lines += [
        "",
        "Milliseconds from a round's last acknowledgement to the first plan of the next, of a "
        "service that combines models on the processor, or on the card (`--accelerator cuda`).",
        "",
        "| mean | devices | processor | card |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {row['mean']} | {row['devices']:,} | {row['processor']:,.0f} | {row['card']:,.0f} |"
        for row in kept["services"]
    ]
    lines += [
        "",
        "cuDNN's GRU does not differentiate under `vmap`. IRLS of 1,000 models is left out. A "
        "small network over time spends most of a round in Python: the card pays where a step is "
        "heavy.",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print as it comes."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu")
    parser.add_argument("--devices", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", type=int, help="print what so many devices at a time take")
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args(arguments)
    place = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if asked.memory:
        print(json.dumps(memory(asked.devices, asked.memory, place)))
        return
    card = torch.cuda.get_device_name(0) if place.type == "cuda" else "no GPU used"
    kept: dict[str, Any] = {"machine": describe_machine(card)}
    print(kept["machine"], flush=True)
    on_card = place.type == "cuda"
    if not on_card:
        print("No CUDA device: a small run on the processor checks only that everything runs.")
    devices, rounds = (asked.devices, asked.rounds) if on_card else (2, 1)
    kept["engines"] = engines(devices, rounds, place)
    kept["memory"] = []
    for together in (128, 1000) if on_card else (4,):
        command = [sys.executable, "-m", "benchmarks.gpu", "--memory", str(together)]
        command += ["--devices", "1000" if on_card else "8"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        print(done.stdout.strip(), flush=True)
        kept["memory"].append(json.loads(done.stdout))
    kept["means"] = [row for n in ((200, 1000) if on_card else (50,)) for row in means(n, place, 5)]
    kept["services"] = [r for n in ((200, 1000) if on_card else (8,)) for r in services(n, place)]
    if on_card:
        keep(kept, asked.out, OUT, "gpu", section(kept))
    else:
        print(section(kept))


if __name__ == "__main__":
    main()
