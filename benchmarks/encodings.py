"""Savings and costs of updates in int8: ``python -m benchmarks.encodings``.

Bytes of an update on the wire for two models; the error of several roundings, on changes from the
watches' training; accuracy on the watches with float32 and int8 side by side. Writes
``benchmarks/results/encodings.json`` and a section of RESULTS.md.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from aggregator.view.summary import Summary
from algorithms.composition import read_algorithm
from benchmarks.results.report import describe_machine, put
from benchmarks.stopwatch import seconds_of
from edge_client.work.executor import Executor
from export.describe import describe_bundle
from simulation.datasets.windows import FleetData
from simulation.engine.graphs.eager import EagerGraphs
from simulation.objective import objective_for_fleet
from simulation.partition import make_fleet, read_partition
from simulation.settings import SimulationSettings
from simulation.simulate import simulate
from wire.arrays import names
from wire.arrays.quantised import BLOCK, LARGEST, decoded, encoded
from wire.arrays.tensors import Array, Tensors
from wire.bundle import Bundle
from wire.codec import encode_update
from wire.messages import Encoding, Metrics, Plan, Train, Update

OUT = Path(__file__).parent / "results" / "encodings.json"
ENCODINGS: tuple[Encoding, ...] = ("float32", "int8")
ALGORITHMS, SEEDS, ROUNDS = ("distfl", "fedavg"), 3, 15
MODELS = ("har-cnn", "cnn4", "har-cnn-dbe")
WHY = """\
All three are small beside what a round moves. Error feedback leaves the least in the sum, but a
device would have to keep what was lost until it is asked again, for a model that others have
changed meanwhile. Rounding to the nearest would lose what stays below half a step of its block in
every round. Rounding at random needs no memory and has no such bias: Shoal does that."""
DIGEST, RUN = "a" * 64, "b" * 32


def bundle_of(fleet: FleetData, model: str) -> tuple[Bundle, EagerGraphs]:
    objective = objective_for_fleet(fleet, read_algorithm("fedavg"), 0, model)
    return describe_bundle(
        objective, name=fleet.name, classes=fleet.classes, window=fleet.window
    ), EagerGraphs(objective)


def size_of_updates(fleet: FleetData, model: str) -> dict[str, Any]:
    """Bytes of an update of a round of training in each encoding, and what it takes a device and
    the aggregator, in ms."""
    layout, rng = bundle_of(fleet, model)[0].manifest.reported("step"), np.random.default_rng(0)
    tensors = {name: rng.normal(0, 1e-3, shape).astype(np.float32) for name, _, shape in layout}
    message = Update(
        RUN,
        1_795_305_600,
        10,
        0,
        "p01-left",
        DIGEST,
        160,
        5,
        Metrics(63, 41.2512, 50),
        Metrics(160, 80.5312, 120),
        105_320,
        0.125,
    )
    payloads = {
        e: len(encode_update(message, encoded(tensors, e, 1, "p01-left"))) for e in ENCODINGS
    }
    sent = encoded(tensors, "int8", 1, "p01-left")
    times = {
        "encode_ms": 1000 * min(seconds_of(lambda: encoded(tensors, "int8", 1, "p01-left"), 20)),
        "decode_ms": 1000 * min(seconds_of(lambda: decoded(sent, layout), 20)),
    }
    return {
        "model": model,
        "parameters": sum(v.size for v in tensors.values()),
        "bytes": payloads,
        **times,
    }


def changes_of_rounds(fleet: FleetData) -> Array:
    """The changes (rounds, devices, D) that the devices made in rounds of FedAvg in float32."""
    bundle, graphs = bundle_of(fleet, "har-cnn")
    model, rounds = names.of_role(bundle.initial, *names.EXCHANGED), []
    executors = {
        d: Executor(bundle, graphs, windows) for d, windows in sorted(fleet.devices.items())
    }
    for number in range(1, ROUNDS + 1):
        results: list[Tensors] = []
        for device_id, executor in executors.items():
            plan = Plan(
                "r", 1, number, 0, device_id, bundle.digest, DIGEST, (Train(32),), number, 1e12
            )
            results.append(executor.execute(plan, model, {}, lambda _: {}).tensors)
        mean = {key: np.mean([r[key] for r in results], 0) for key in results[0]}
        model = {
            key: mean[key] if key in mean else value + mean[names.delta(names.name_of(key))]
            for key, value in model.items()
        }
        rounds.append(
            [
                np.concatenate([v.ravel() for _, v in sorted(names.part(r, names.DELTA).items())])
                for r in results
            ]
        )
    return np.array(rounds)


def errors_of(changes: Array) -> list[dict[str, Any]]:
    """For each way of rounding: the error of one update, of a round's mean, and of the sum of all
    rounds' means, each as a share of the norm of what it is the error of. With error feedback a
    device adds what was lost of its last change to the next one: S. P. Karimireddy, Q. Rebjock, S.
    Stich, M. Jaggi. Error feedback fixes SignSGD and other gradient compression schemes. ICML 2019.
    """
    rng = np.random.default_rng(0)

    def at_random(change: Array) -> Array:
        return _rounded(change, lambda steps: np.floor(steps + rng.random(steps.shape, np.float32)))

    def nearest(change: Array) -> Array:
        return _rounded(change, np.rint)

    def measure(name: str, way: Callable[[Array], Array], feedback: bool) -> dict[str, Any]:
        lost, sent = np.zeros_like(changes[0]), np.empty_like(changes)
        for number, made in enumerate(changes):
            wanted = made + lost if feedback else made
            sent[number] = [way(change) for change in wanted]
            lost = wanted - sent[number]
        pairs = {
            "update": (sent, changes),
            "mean": (sent.mean(1), changes.mean(1)),
            "run": (sent.mean(1).sum(0), changes.mean(1).sum(0)),
        }
        shares = {
            k: np.linalg.norm(a - b, axis=-1) / np.linalg.norm(b, axis=-1)
            for k, (a, b) in pairs.items()
        }
        return {"way": name, **{k: float(np.mean(share)) for k, share in shares.items()}}

    return [
        measure("at random", at_random, False),
        measure("to the nearest", nearest, False),
        measure("to the nearest, with error feedback", nearest, True),
    ]


def _rounded(change: Array, way: Callable[[Array], Array]) -> Array:
    """A change in blocks as `wire.arrays.quantised` cuts one tensor."""
    blocks = np.pad(change, (0, -len(change) % BLOCK)).reshape(-1, BLOCK)
    scales = np.abs(blocks).max(1, keepdims=True) / np.float32(LARGEST)
    steps = np.divide(blocks, scales, out=np.zeros_like(blocks), where=scales > 0)
    return np.asarray((np.clip(way(steps), -LARGEST, LARGEST) * scales).ravel()[: len(change)])


def accuracy_of(fleet: FleetData, algorithm: str, encoding: Encoding) -> dict[str, Any]:
    """Mean and worst accuracy after the last round, and bytes from the devices, by seed."""

    def run(seed: int) -> Summary:
        settings = SimulationSettings(
            read_algorithm(algorithm), ROUNDS, seed=seed, update_encoding=encoding
        )
        return simulate(fleet, settings).summary

    runs = [run(seed) for seed in range(SEEDS)]
    found: dict[str, Any] = {
        "mean": [r.accuracy.mean for r in runs],
        "worst": [r.accuracy.worst for r in runs],
    }
    return {
        "algorithm": algorithm,
        "encoding": encoding,
        **found,
        "bytes_up": [r.bytes.up for r in runs],
    }


def text(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        f"Machine: {results['machine']}. Made by `python -m benchmarks.encodings`; numbers in "
        "`results/encodings.json`.",
        "",
    ]
    lines += [
        "| model | numbers exchanged | bytes of an update, float32 | int8 | bytes a number | ms "
        "to encode | to decode |"
    ]
    lines += ["|---|---|---|---|---|---|---|"]
    for r in results["sizes"]:
        sizes = (
            f"{r['bytes']['float32']:,} | {r['bytes']['int8']:,} | "
            f"{r['bytes']['int8'] / r['parameters']:.3f}"
        )
        lines += [
            f"| {r['model']} | {r['parameters']:,} | {sizes} | {r['encode_ms']:.1f} | "
            f"{r['decode_ms']:.1f} |"
        ]
    lines += [
        "",
        f"Errors on the changes of 20 watches in {ROUNDS} rounds of FedAvg, as shares of the norm "
        "of what was to be sent:",
        "",
    ]
    lines += [
        "| rounded | one update | the mean of a round | the sum of the rounds |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {e['way']} | {e['update']:.2%} | {e['mean']:.3%} | {e['run']:.3%} |"
        for e in results["errors"]
    ]
    lines += [
        "",
        WHY,
        "",
        f"Accuracy on the watches: 20 devices, {ROUNDS} rounds of 1 epoch, seeds 0 to {SEEDS - 1}:",
        "",
    ]
    lines += [
        "| | mean accuracy by seed | mean | worst device, mean | MB from the devices |",
        "|---|---|---|---|---|",
    ]
    for r in results["accuracy"]:
        means = ", ".join(f"{100 * value:.1f}" for value in r["mean"])
        told = (
            f"{np.mean(r['mean']):.2%} | {np.mean(r['worst']):.1%} | "
            f"{np.mean(r['bytes_up']) / 1e6:.1f}"
        )
        lines += [f"| {r['algorithm']}, {r['encoding']} | {means} | {told} |"]
    return "\n".join(lines)


def main() -> None:
    """Measure, write the results, print the tables."""
    fleet = make_fleet("watch", read_partition("user"), None, 0)
    results = {
        "machine": describe_machine(),
        "sizes": [size_of_updates(fleet, model) for model in MODELS],
        "errors": errors_of(changes_of_rounds(fleet)),
        "accuracy": [
            accuracy_of(fleet, algorithm, encoding)
            for algorithm in ALGORITHMS
            for encoding in ENCODINGS
        ],
    }
    OUT.write_text(json.dumps(results, indent=1) + "\n")
    put("encodings", f"## Updates in int8\n\n{text(results)}")
    print(text(results))


if __name__ == "__main__":
    main()
