"""``python -m benchmarks.clustering``: how the grouping of DistFL scales. Writes
``benchmarks/results/clustering.json``.

Time and peak memory of the significance test over N = 100 to 100,000 synthetic signatures, whether
the groups are the true ones and those of the exact test, general-purpose clusterings of
scikit-learn on the same rows, and the server's side of DistFL as a whole. Every case runs in a
process of its own, one after the other. `OMP_NUM_THREADS` says with how many threads.
"""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.cluster import HDBSCAN, Birch, MiniBatchKMeans
from sklearn.metrics import adjusted_rand_score

from algorithms.algorithm import State, encode_memory
from algorithms.core.contract import GroupingMemory, LocalModel
from algorithms.core.keys import NEWCOMER
from algorithms.core.probe import make_probe, whole_model
from algorithms.groupings import significance
from algorithms.groupings.bootstrap import Draws
from algorithms.groupings.distfl import DistFL, pre_aggregate
from algorithms.groupings.knowledge import Extraction, extract_knowledge
from algorithms.groupings.responses import respond
from algorithms.groupings.significance import find_groups
from algorithms.groupings.views import Responses, View
from algorithms.models.har_cnn import HarCnn
from benchmarks.results.report import describe_machine, put
from wire.arrays import names
from wire.arrays.tensors import Array

OUT = Path(__file__).parent / "results" / "clustering.json"
SIZES = (100, 1_000, 10_000, 100_000)
MODELS = (100, 1_000, 10_000)
CLASSES, CHANNELS, FEATURES = 6, 96, 64
"""Sizes of the synthetic signatures: classes, channels of all BatchNorm layers, features of the
last layer. HarCnn has 96 channels."""
KINDS = ("label skew", "turned inputs", "a group of 3 %", "a group of 1 %", "alike")
EXACT = 1_000
"""The exact test, quadratic in memory and more in time, is run on fleets of up to so many devices,
with 99 bootstrap populations."""


def signatures(kind: str, count: int, seed: int = 0) -> tuple[dict[str, Array], Array, Array]:
    """Views (N, D) float32, examples (N,) and the true groups (N,). A device's rows are means over
    60 to 400 examples of its own."""
    rng = np.random.default_rng(seed)
    examples = rng.integers(60, 400, count)
    noise = np.sqrt(200 / examples)[:, None].astype(np.float32)
    truth, shares, places = (
        np.zeros(count, np.int64),
        np.full((1, CLASSES), 1 / CLASSES),
        np.zeros((1, CHANNELS)),
    )
    if kind == "label skew":
        truth = rng.choice(5, count, p=[0.4, 0.3, 0.15, 0.1, 0.05])
        shares = np.array(
            [np.where(np.isin(range(CLASSES), (g, g + 1)), 0.4, 0.05) for g in range(5)]
        )
    elif kind == "turned inputs":
        truth, places = rng.integers(0, 4, count), rng.normal(size=(4, CHANNELS)) * 0.8
    elif kind.startswith("a group"):
        truth = (rng.permutation(count) < float(kind.split()[3]) / 100 * count).astype(np.int64)
        shares = np.array([shares[0], np.where(np.arange(CLASSES) < 2, -0.45, 0.025)])
    pattern = rng.normal(size=(CLASSES, CLASSES * FEATURES)).astype(np.float32)
    labels = (shares.astype(np.float32) @ pattern)[
        truth if len(shares) > 1 else np.zeros(count, np.int64)
    ]
    labels += 0.04 * noise * rng.standard_normal(labels.shape, np.float32)
    statistics = places.astype(np.float32)[truth if len(places) > 1 else np.zeros(count, np.int64)]
    statistics += (
        noise
        * rng.standard_normal(statistics.shape, np.float32)
        * np.geomspace(1, 0.1, CHANNELS, dtype=np.float32)
    )
    return {"labels": labels, "statistics": statistics}, examples, truth


def devices(count: int, models: bool) -> tuple[list[LocalModel], Array]:
    """A first round of turned inputs: with surveys, or with whole models of four kinds (HarCnn for
    9 x 128 windows, 6 classes)."""
    torch.manual_seed(0)
    views, examples, truth = signatures("turned inputs", count)
    base = (
        {k: v.detach().numpy() for k, v in whole_model(HarCnn(9, 128, CLASSES)).items()}
        if models
        else {}
    )
    rng = np.random.default_rng(1)
    own = [
        {
            k: 0.05 * rng.standard_normal(v.shape, np.float32)
            for k, v in base.items()
            if "running" not in k
        }
        for _ in range(4)
    ]
    made = []
    for i in range(count):
        tensors = {
            k: v + own[truth[i]][k] + 0.02 * rng.standard_normal(v.shape, np.float32)
            if k in own[0]
            else v
            for k, v in base.items()
        }
        survey = {
            names.MEAN_OF + "norm": views["statistics"][i],
            names.VARIANCE_OF + "norm": np.ones(CHANNELS, np.float32),
        }
        survey["gradient"] = views["labels"][i].reshape(CLASSES, FEATURES)
        responses = {names.response("survey", k): v for k, v in survey.items()}
        made.append(LocalModel(f"d{i:06}", int(examples[i]), 1, NEWCOMER, tensors, responses))
    return made, truth


class Clock:
    """Seconds, and memory beyond what the inputs take."""

    def __init__(self) -> None:
        self.before_mb = _peak_mb()
        self.started_s = time.perf_counter()

    def stop(self) -> dict[str, float]:
        """Return the time and memory used since the start."""
        return {
            "seconds": round(time.perf_counter() - self.started_s, 3),
            "more_mb": round(max(0.0, _peak_mb() - self.before_mb)),
            "peak_mb": round(_peak_mb()),
        }


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _agreement(truth: Array, labels: Sequence[Any] | Array) -> dict[str, Any]:
    return {"groups": len(set(labels)), "ari": round(float(adjusted_rand_score(truth, labels)), 4)}


def measure_find_groups(count: int, kind: str) -> dict[str, Any]:
    """The significance test over two views, and beside it the exact test where that can be."""
    views, examples, truth = signatures(kind, count)
    clock = Clock()
    labels, tests = find_groups(views, examples)
    found = clock.stop() | _agreement(truth, labels) | {"tests": len(tests)}
    return found | _compare_with_exact(views, examples, truth, labels)


def _compare_with_exact(
    views: Mapping[str, View | Array], examples: Array, truth: Array, labels: Array
) -> dict[str, Any]:
    """The exact test beside the labels found by samples, where there are few enough devices for it
    and too many to go without samples."""
    if not significance.SAMPLE < len(examples) <= EXACT:
        return {}
    significance.SAMPLE, significance.DRAWS = len(examples), Draws(99, enough=5)
    started_s = time.perf_counter()
    exact, _ = find_groups(views, examples)
    seconds = round(time.perf_counter() - started_s, 1)
    agreement = round(float(adjusted_rand_score(exact, labels)), 4)
    return {"exact": _agreement(truth, exact) | {"seconds": seconds}, "ari_with_exact": agreement}


def measure_sklearn(count: int, kind: str, name: str) -> dict[str, Any]:
    """A clustering of scikit-learn on both views side by side, each over its spread.
    MiniBatchKMeans is told the number of groups; BIRCH its threshold, half the mean distance from
    the centre; HDBSCAN the smallest group, 1 % of the fleet."""
    views, _, truth = signatures(kind, count)
    rows = np.hstack([v / np.sqrt(v.var(0).sum()) for v in views.values()])
    spread = float(np.linalg.norm(rows - rows.mean(0), axis=1).mean())
    makers: dict[str, Callable[[], Any]] = {
        "MiniBatchKMeans, told k": lambda: MiniBatchKMeans(
            int(truth.max()) + 1, random_state=0, n_init=3
        ),
        "BIRCH": lambda: Birch(threshold=spread / 2, n_clusters=None),
        "HDBSCAN": lambda: HDBSCAN(min_cluster_size=max(5, count // 100), copy=True),
    }
    clock = Clock()
    labels = makers[name]().fit_predict(rows)
    return clock.stop() | _agreement(truth, labels)


def measure_surveys(count: int) -> dict[str, Any]:
    """DistFL's first round by surveys, a round of 1 % newcomers, and the size of what is kept."""
    models, truth = devices(count, models=False)
    newcomers = [
        LocalModel(f"e{m.device_id}", m.num_examples, 1, NEWCOMER, {}, m.responses)
        for m in models[: max(1, count // 100)]
    ]
    grouping, clock = DistFL(), Clock()
    grouped = grouping.group(GroupingMemory(), models, None, 0)
    found = clock.stop() | _agreement(
        truth, [grouped.memory.membership[m.device_id] for m in models]
    )
    started_s = time.perf_counter()
    payload = encode_memory(State({}, grouped.memory))
    found |= {
        "encode_s": round(time.perf_counter() - started_s, 3),
        "memory_mb": round(len(payload) / 2**20, 1),
    }
    started_s = time.perf_counter()
    later = grouping.group(grouped.memory, newcomers, None, 0)
    found |= {
        "newcomers": len(newcomers),
        "newcomers_s": round(time.perf_counter() - started_s, 3),
        "notes": str(later.notes)[:40],
    }
    return found


def measure_responses(count: int) -> dict[str, Any]:
    """DistFL's round by responses, and its parts: z = 200 inputs, 60 iterations."""
    models, truth = devices(count, models=True)
    probe = make_probe(HarCnn(9, 128, CLASSES), (9, 128))
    parts: dict[str, float] = {}
    clock = Clock()
    average = _timed(parts, "pre_aggregate", lambda: pre_aggregate(models))
    inputs, _ = _timed(
        parts, "extract_knowledge", lambda: extract_knowledge(average, probe, Extraction(), 0)
    )
    view = Responses(_timed(parts, "respond", lambda: respond(models, probe, inputs)))
    examples = np.array([m.num_examples for m in models])
    labels, _ = _timed(parts, "find_groups", lambda: find_groups({"responses": view}, examples))
    _timed(
        parts,
        "views to look at",
        lambda: view.distances(np.arange(min(count, significance.SAMPLE))),
    )
    found = (
        clock.stop()
        | _agreement(truth, labels)
        | {"parts": parts, "threads": torch.get_num_threads()}
    )
    sample = models[:50]
    started_s = time.perf_counter()
    slow = respond(sample, replace(probe, predict=None, predict_folded=None, network=None), inputs)
    found["respond_ms_per_model"] = {"here": round(1000 * parts["respond"] / count, 2)}
    found["respond_ms_per_model"]["by probe.run"] = round(
        1000 * (time.perf_counter() - started_s) / len(sample), 2
    )
    found["largest_difference"] = float(np.abs(slow - view.responses[: len(sample)]).max())
    return found | _compare_with_exact({"responses": view}, examples, truth, labels)


def _timed(parts: dict[str, float], name: str, call: Callable[[], Any]) -> Any:
    started_s = time.perf_counter()
    made = call()
    parts[name] = round(time.perf_counter() - started_s, 3)
    return made


CASES: dict[str, Callable[..., dict[str, Any]]] = {
    "find_groups": measure_find_groups,
    "scikit-learn": measure_sklearn,
    "surveys": measure_surveys,
    "responses": measure_responses,
}


def plan(sizes: Sequence[int] = SIZES) -> list[tuple[str, int, tuple[str, ...]]]:
    """Every case: what is measured, on how many devices, and with which arguments."""
    cases: list[tuple[str, int, tuple[str, ...]]] = [
        ("find_groups", n, (kind,)) for n in sizes for kind in KINDS
    ]
    for name in ("MiniBatchKMeans, told k", "BIRCH", "HDBSCAN"):
        most = 1_000 if name == "HDBSCAN" else 10_000  # HDBSCAN takes minutes for 10,000
        cases += [
            ("scikit-learn", n, (kind, name))
            for n in sizes
            if n <= most
            for kind in ("label skew", "a group of 3 %", "alike")
        ]
    return (
        cases
        + [("surveys", n, ()) for n in sizes]
        + [("responses", n, ()) for n in sizes if n in MODELS]
    )


def main() -> None:
    """Measure everything, each case in a process of its own, and write the results."""
    if len(sys.argv) > 1:
        name, size, *words = sys.argv[1:]
        print(json.dumps(CASES[name](int(size), *words)))
        return
    results: dict[str, Any] = {
        "machine": describe_machine(),
        "threads": os.environ.get("OMP_NUM_THREADS", "default"),
        "cases": [],
    }
    for case, count, arguments in plan():
        command = [sys.executable, "-m", "benchmarks.clustering", case, str(count), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=1800)
        results["cases"].append(
            {
                "case": case,
                "devices": count,
                "arguments": arguments,
                **json.loads(done.stdout.splitlines()[-1]),
            }
        )
        print(case, count, *arguments, done.stdout.splitlines()[-1], flush=True)
        OUT.write_text(json.dumps(results, indent=1) + "\n")
    put("clustering", f"## Finding groups in large fleets\n\n{table(results)}")
    print(table(results))


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        f"Machine: {results['machine']}; OMP_NUM_THREADS: {results['threads']}. Memory is the "
        "process's peak, inputs included.",
        "",
        "| what | data | devices | s | peak MB | groups | ARI with the truth | ARI with the exact "
        "test |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in results["cases"]:
        kind, *name = row["arguments"] or [
            "four kinds of models" if row["case"] == "responses" else "turned inputs"
        ]
        what = {
            "find_groups": "significance test",
            "surveys": "DistFL, surveys",
            "responses": "DistFL, responses",
        }.get(row["case"], *name)
        measured = (
            f"{row['seconds']:.2f} | {row['peak_mb']:,} | {row['groups']} | {row['ari']:.3f} | "
            f"{row.get('ari_with_exact', '')}"
        )
        lines.append(f"| {what} | {kind} | {row['devices']:,} | {measured} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
