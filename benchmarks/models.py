"""``python -m benchmarks.models``: models as their users write them, on both runtimes of devices.

Workload: each model of `benchmarks.usual_models`, taken as it is, with FedAvg's step, evaluation and prediction exported for ONNX and
ExecuTorch; then 20 steps on every runtime beside eager torch, with 64 random examples. The seconds are those of the export, on one thread.
It goes on where it was stopped. Writes ``benchmarks/results/models.json`` and a section of RESULTS.md.
"""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from algorithms.core.contract import GraphFunction
from algorithms.models.adopt import adopt
from algorithms.models.classifier import Scale
from algorithms.objectives.fedavg import FedAvg
from benchmarks.results.report import describe_machine, put
from benchmarks.usual_models import IMAGES, WINDOWS
from export.bundle import RUNTIMES, capture_graphs, make_bundle
from export.parity import check_parity
from host.threads import one_thread
from wire import names
from wire.bundle import Window, unpack
from wire.errors import ShoalError

OUT = Path(__file__).parent / "results" / "models.json"
CLASSES = ("a", "b", "c", "d")
STEPS = 20
GRAPHS = ("step", "evaluate", "predict")


class ThreeGraphs(FedAvg):
    """FedAvg without the graphs that groupings ask for."""

    def graphs(self) -> dict[str, GraphFunction]:
        graphs = super().graphs()
        return {name: graphs[name] for name in GRAPHS}


def tried(name: str) -> dict[str, Any]:
    """What becomes of a model: its sizes, the seconds of its export, and how far 20 steps are from eager torch; or why it is refused."""
    shape = (3, 24) if name in WINDOWS else (1, 28, 28)
    window = Window(tuple(f"c{i}" for i in range(shape[0])), shape[-1], 1, height=shape[1] if len(shape) == 3 else 0)
    torch.manual_seed(0)
    began = time.perf_counter()
    try:
        module = (WINDOWS | IMAGES)[name](shape, len(CLASSES))
        objective = ThreeGraphs(adopt(name, module, shape, len(CLASSES), Scale(torch.ones(shape[0]), len(shape) - 1)))
        exported = capture_graphs(objective, shape, RUNTIMES)
        bundle = unpack(make_bundle(exported, name="usual", bundle_version=1, objective=objective, classes=CLASSES, window=window))
        seconds = time.perf_counter() - began
        drawing = np.random.default_rng(0)
        x, y = drawing.standard_normal((64, *shape)).astype(np.float32), drawing.integers(0, len(CLASSES), 64)
        parity = check_parity(bundle, objective, x, y, STEPS)
    except ShoalError as error:
        return {"name": name, "refused": str(error)}
    sizes = {spec.key: int(np.prod(spec.shape)) for spec in bundle.manifest.tensors}
    sent = sum(names.of_role(sizes, *names.EXCHANGED).values())
    frozen = sum(size for key, size in sizes.items() if key.startswith(names.slot("frozen.")))
    return {
        "name": name,
        "sent": sent,
        "frozen": frozen,
        "bundle_bytes": len(bundle.payload),
        "export_s": seconds,
        "step_error": parity.step_error,
        "drift": parity.graph_drift,
        "eager_drift": parity.eager_drift,
    }


def text(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        f"Machine: {results['machine']}. Made by `python -m benchmarks.models`; numbers in `results/models.json`.",
        f"Windows (3, 24), images (1, 28, 28). Differences are from eager torch over {STEPS} steps, the larger one of ONNX Runtime's and",
        "ExecuTorch's, relative to the tensor's scale; eager float32 itself drifts from float64 by the last column.",
        "",
        "| model | values sent | frozen | bundle, KiB | export, s | one step off | after 20 steps | eager float32 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in results["models"]:
        if "refused" in row:
            lines.append(f"| {row['name']} | refused: {row['refused']} |" + " |" * 6)
            continue
        sizes = f"{row['sent']:,} | {row['frozen']:,} | {row['bundle_bytes'] / 1024:.0f} | {row['export_s']:.0f}"
        lines.append(f"| {row['name']} | {sizes} | {row['step_error']:.0e} | {row['drift']:.0e} | {row['eager_drift']:.0e} |")
    return "\n".join(lines)


def main() -> None:
    """Try every model that has no result yet, and print the table."""
    machine = describe_machine()
    known = json.loads(OUT.read_text()) if OUT.exists() else {}
    rows = {row["name"]: row for row in known.get("models", ())} if known.get("machine") == machine else {}
    results: dict[str, Any] = {"machine": machine, "models": []}
    for name in WINDOWS | IMAGES:
        if name not in rows:
            with one_thread():
                rows[name] = tried(name)
            print(name, rows[name], flush=True)
        results["models"] = [rows[n] for n in WINDOWS | IMAGES if n in rows]
        OUT.write_text(json.dumps(results, indent=1) + "\n")
    put("models", f"## Models as users write them\n\n{text(results)}")
    print(text(results))


if __name__ == "__main__":
    main()
