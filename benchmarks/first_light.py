"""``make bench``: the main job, measured. Writes ``benchmarks/results/first_light.json``, and its
section of ``benchmarks/RESULTS.md``.

Grouping and accuracy over seeds for each signature, UCI HAR as twenty users, and what a training
step costs on a device: the exported graph in onnxruntime beside eager torch, one thread each, in
turns, medians.
"""

import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import adjusted_rand_score

from algorithms.composition import read_algorithm
from benchmarks.results.report import describe_machine, put
from edge_client.graphs.onnx import OnnxGraphs
from export.publish import publish
from simulation.datasets.catalog import load_data
from simulation.datasets.windows import FleetData, select_devices
from simulation.engine.graphs.eager import EagerGraphs
from simulation.objective import objective_for_fleet
from simulation.partition import partition, read_partition
from simulation.settings import SimulationSettings
from simulation.simulate import simulate
from wire.arrays import names
from wire.identity.keys import new_key

HERE = Path(__file__).parent
SEEDS = range(5)


def run(
    data: FleetData, algorithm: str, seed: int, rounds: int = 20, epochs: int = 1
) -> dict[str, Any]:
    """One simulation: its accuracy, its groups, and how well these agree with the truth where there
    is one."""
    summary = simulate(
        data, SimulationSettings(read_algorithm(algorithm), rounds, epochs, seed)
    ).summary
    found: dict[str, Any] = {
        "mean": summary.accuracy.mean,
        "worst": summary.accuracy.worst,
        "groups": summary.groups.count,
    }
    found["updates_per_s"] = summary.updates_per_s
    if data.truth:
        ids = sorted(data.devices)
        found["ari"] = round(
            adjusted_rand_score(
                [data.truth[d] for d in ids], [summary.devices[d].group for d in ids]
            ),
            3,
        )
    return found


def measure_step(data: FleetData, steps: int = 60, repeats: int = 5) -> dict[str, float]:
    """Milliseconds per training step of 32 windows, the two runtimes in turns."""
    objective = objective_for_fleet(data, read_algorithm("distfl"), 0)
    bundle = publish(
        objective, data.window, data.classes, data.sample(), new_key(), name=data.name
    ).bundle
    torch.set_num_threads(1)
    eager = EagerGraphs(objective_for_fleet(data, read_algorithm("fedavg"), 0))
    graphs: dict[str, OnnxGraphs | EagerGraphs] = {
        "onnxruntime": OnnxGraphs(bundle),
        "eager torch": eager,
    }
    windows = next(iter(data.devices.values()))
    hyper = {names.hyper(k): np.asarray(v, np.float32) for k, v in bundle.manifest.hyper.items()}
    inputs = {
        **bundle.initial,
        **hyper,
        names.X: windows.train_x[:32],
        names.Y: windows.train_y[:32],
    }
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(repeats):
        for name, graph in graphs.items():
            graph.run("step", inputs)
            started_s = time.perf_counter()
            for _ in range(steps):
                graph.run("step", inputs)
            times[name].append(1000 * (time.perf_counter() - started_s) / steps)
    return {name: round(statistics.median(values), 3) for name, values in times.items()}


def main() -> None:
    """Measure everything, print as it goes, write the results."""
    watch = load_data("watch")
    results: dict[str, Any] = {"watch": {}, "machine": describe_machine()}
    cases = {"fedavg": "fedavg", "distfl, both": "distfl"}
    cases |= {
        f"distfl, {s}": f"distfl:signature={s}"
        for s in ("responses", "noise", "statistics", "labels")
    }
    for name, algorithm in cases.items():
        results["watch"][name] = [run(watch, algorithm, seed) for seed in SEEDS]
        print(name, results["watch"][name], flush=True)
    results["watch assigned at random"] = [
        run(partition(watch, read_partition("iid"), seed), "distfl", seed) for seed in SEEDS
    ]
    if os.environ.get("SHOAL_DATA"):
        uci = select_devices(load_data("uci-har"), 20)
        results["uci-har, 20 users"] = {
            name: [run(uci, name, seed, epochs=2) for seed in range(3)]
            for name in ("fedavg", "distfl")
        }
        print(results["uci-har, 20 users"], flush=True)
    results["ms_per_step"] = measure_step(watch)
    (HERE / "results" / "first_light.json").write_text(json.dumps(results, indent=1) + "\n")
    put("first-light", as_text(results))
    print(as_text(results))


def as_text(results: dict[str, Any]) -> str:
    """The results as the page that is kept."""
    lines = [
        "## The main job",
        "",
        f"Machine: {results['machine']}. Made by `make bench`; numbers in "
        "`results/first_light.json`.",
        "",
    ]
    lines += [
        "### The watches: 20 devices, 20 rounds of 1 epoch, 5 seeds",
        "",
        "| | groups found | ARI with the arm | mean accuracy | worst device |",
        "|---|---|---|---|---|",
    ]
    for name, runs in results["watch"].items():
        lines.append(_row(name, runs))
    lines.append(
        _row("distfl, the windows assigned at random", results["watch assigned at random"])
    )
    gain = 100 * (_mean(results["watch"]["distfl, both"]) - _mean(results["watch"]["fedavg"]))
    lines += [
        "",
        f"DistFL is {gain:.1f} points above FedAvg. The arms show in what the data are "
        "(`statistics`); in what trained models respond",
        "(the paper's signature, and its ablation with noise) they do not show on these data.",
        "",
    ]
    if "uci-har, 20 users" in results:
        lines += [
            "### UCI HAR: users 1 to 20, split in time, 20 rounds of 2 epochs, 3 seeds",
            "",
            "| | groups found | ARI | mean accuracy | worst device |",
            "|---|---|---|---|---|",
        ]
        lines += [_row(name, runs) for name, runs in results["uci-har, 20 users"].items()]
        lines.append("")
    step = results["ms_per_step"]
    ratio = step["onnxruntime"] / step["eager torch"]
    lines += [
        "### A training step on a device",
        "",
        "| | ms per step of 32 windows, 1 thread |",
        "|---|---|",
    ]
    lines += [f"| {name} | {value:.2f} |" for name, value in step.items()]
    lines += ["", f"Ratio {ratio:.2f}; medians of five turns each in one process.", ""]
    return "\n".join(lines)


def _mean(runs: list[dict[str, Any]]) -> float:
    return statistics.fmean(r["mean"] for r in runs)


def _row(name: str, runs: list[dict[str, Any]]) -> str:
    groups = ", ".join(str(r["groups"]) for r in runs)
    ari = ", ".join(f"{r['ari']:.2f}" for r in runs) if "ari" in runs[0] else "-"
    return (
        f"| {name} | {groups} | {ari} | {100 * _mean(runs):.1f} % | "
        f"{100 * statistics.fmean(r['worst'] for r in runs):.1f} % |"
    )


if __name__ == "__main__":
    main()
