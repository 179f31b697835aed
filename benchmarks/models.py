"""``python -m benchmarks.models``: usual models as their users write them, simulated, exported,
and run on both runtimes of devices.

Workload: each model of `benchmarks.usual_models`, taken as it is. First a round of FedAvg in a
simulation of two devices with 32 random examples each, by the backend that `auto` takes. Then its
step, evaluation and prediction are exported for ONNX and ExecuTorch, and make 20 steps on every
runtime beside eager torch, with 64 random examples. The seconds are those of the export, on one
thread. It goes on where it was stopped; names as arguments are the models to try. Writes
``benchmarks/results/models.json`` and a section of RESULTS.md.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import shoal
from algorithms.composition import make_objective, read_algorithm
from algorithms.core.contract import GraphFunction
from algorithms.models.adoption.from_file import as_classifier
from algorithms.models.classifier import Classifier
from algorithms.objectives.supervised import Supervised
from benchmarks.results.report import describe_machine, put
from benchmarks.usual_models import USUAL, Usual
from export.bundle import RUNTIMES, capture_graphs, make_bundle
from export.parity import check_parity
from host.threads import one_thread
from wire.arrays import names
from wire.bundle import Window, unpack
from wire.errors import ShoalError

OUT = Path(__file__).parent / "results" / "models.json"
CLASSES = ("a", "b", "c", "d")
STEPS = 20
GRAPHS = ("step", "evaluate", "predict")
FLIPS = (
    "In ResNet-18 a ReLU or a maximum flips at every other step, also in eager float32 beside "
    "float64: that is what its one step is off "
    "by. A graph may flip twice as often as eager float32 does, and in three quarters of the "
    "steps at most."
)
"""Said below the table."""


def window_of(usual: Usual) -> Window:
    """The window of a usual model's examples."""
    *height, length = usual.shape[1:]
    names_of = tuple(f"c{i}" for i in range(usual.shape[0]))
    return Window(
        names_of,
        length,
        length if not height else 1,
        height=height[0] if height else 0,
        vocabulary=usual.vocabulary,
    )


def examples(usual: Usual, count: int, seed: int = 0) -> tuple[Any, Any]:
    """Random examples x (count, \\*shape), and labels of the model's task."""
    drawing = np.random.default_rng(seed)
    x: Any = drawing.standard_normal((count, *usual.shape)).astype(np.float32)
    if usual.vocabulary:
        x = drawing.integers(0, usual.vocabulary, (count, *usual.shape))
    if usual.task == "regression":
        return x, drawing.standard_normal((count, len(CLASSES))).astype(np.float32)
    many = usual.task == "multi-label"
    return x, drawing.integers(0, 2, (count, len(CLASSES))) if many else np.arange(count) % len(
        CLASSES
    )


def objective_of(name: str) -> Supervised:
    """FedAvg in the model's task on the model, without the graphs that groupings ask for."""
    usual, algorithm = USUAL[name], read_algorithm(algorithm_of(name))
    outputs = algorithm.parts.task.outputs(usual.shape, len(CLASSES))
    torch.manual_seed(0)
    model: Classifier = as_classifier(
        name,
        usual.make(usual.shape, outputs),
        window_of(usual),
        outputs,
        torch.ones(usual.shape[0]),
    )
    objective = make_objective(algorithm, model)
    graphs: dict[str, GraphFunction] = {
        graph: function for graph, function in objective.graphs().items() if graph in GRAPHS
    }
    objective.graphs = lambda: graphs  # type: ignore[method-assign]
    return objective


def algorithm_of(name: str) -> str:
    task = USUAL[name].task
    return "fedavg" if task == "classification" else f"fedavg+{task}"


def simulated(name: str) -> dict[str, Any]:
    """One round as a Python program asks for it: the backend, and why no faster one."""
    usual = USUAL[name]
    x, y = examples(usual, 64)
    options: dict[str, Any] = {"vocabulary": usual.vocabulary} if usual.vocabulary else {}
    data = shoal.load(x, y, np.arange(64) // 32, **options)
    summary = shoal.simulate(
        data, algorithm=algorithm_of(name), model=usual.make, rounds=1, lr=0.01, batch_size=8
    ).summary
    return {"backend": summary.backend, "reason": summary.backend_reason}


def exported(name: str) -> dict[str, Any]:
    """Sizes, the seconds of the export, and how far 20 steps on every runtime are from eager
    torch."""
    usual, began = USUAL[name], time.perf_counter()
    objective = objective_of(name)
    graphs = capture_graphs(objective, usual.shape, RUNTIMES)
    packed = make_bundle(
        graphs,
        name="usual",
        bundle_version=1,
        objective=objective,
        classes=CLASSES,
        window=window_of(usual),
    )
    bundle, seconds = unpack(packed), time.perf_counter() - began
    parity = check_parity(bundle, objective, *examples(usual, 64), STEPS)
    sizes = {spec.key: int(np.prod(spec.shape)) for spec in bundle.manifest.tensors}
    return {
        "sent": sum(names.of_role(sizes, *names.EXCHANGED).values()),
        "frozen": sum(size for key, size in sizes.items() if key.startswith(names.slot("frozen."))),
        "bundle_bytes": len(bundle.payload),
        "export_s": seconds,
        "step_error": parity.step_error,
        "drift": parity.graph_drift,
        "eager_drift": parity.eager_drift,
    }


def tried(name: str) -> dict[str, Any]:
    """Return the outcome of a model, or the place and reason of its refusal."""
    try:
        return {"name": name, **simulated(name), **exported(name)}
    except ShoalError as error:
        return {"name": name, "refused": str(error)}


def text(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        f"Machine: {results['machine']}. Made by `python -m benchmarks.models`; numbers in "
        "`results/models.json`. Each model is simulated",
        "for a round (by the backend in the table), exported for ONNX Runtime and ExecuTorch, "
        f"and makes {STEPS} steps on both.",
        "Differences are from eager torch, the larger of the two, relative to the tensor's scale; "
        "eager float32 itself drifts from float64",
        "by the last column. MobileNetV3 and ResNet-18 are torchvision's layer for layer, written "
        "out, on images of 3 x 64 x 64.",
        "",
        "| model | backend | values sent | frozen | bundle, KiB | export, s | one step off | "
        "after 20 steps | eager float32 |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in results["models"]:
        if "refused" in row:
            lines.append(f"| {row['name']} | refused: {row['refused']} |" + " |" * 7)
            continue
        sizes = (
            f"{row['sent']:,} | {row['frozen']:,} | {row['bundle_bytes'] / 1024:,.0f} | "
            f"{row['export_s']:.0f}"
        )
        errors = f"{row['step_error']:.0e} | {row['drift']:.0e} | {row['eager_drift']:.0e}"
        lines.append(f"| {row['name']} | {row['backend']} | {sizes} | {errors} |")
    lines += ["", FLIPS]
    return "\n".join(lines)


def main(*wanted: str) -> None:
    """Try every model that has no result yet, and print the table."""
    machine = describe_machine()
    known = json.loads(OUT.read_text()) if OUT.exists() else {}
    rows = (
        {row["name"]: row for row in known.get("models", ())}
        if known.get("machine") == machine
        else {}
    )
    results: dict[str, Any] = {"machine": machine, "models": []}
    for name in wanted or USUAL:
        if wanted or name not in rows:
            with one_thread():
                rows[name] = tried(name)
            print(name, rows[name], flush=True)
        results["models"] = [rows[n] for n in USUAL if n in rows]
        OUT.write_text(json.dumps(results, indent=1) + "\n")
    put("models", f"## Models as users write them\n\n{text(results)}")
    print(text(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
