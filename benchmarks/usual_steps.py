"""``python -m benchmarks.usual_steps``: weights of usual models after twenty steps, on everything
that trains them.

Workload: each model of `benchmarks.usual_models` without its dropout, FedAvg with a learning rate
of `LR` and a momentum of `MOMENTUM`, and the same 20 random batches of eight. The simulation trains
by the backend that `auto` takes, a board by ONNX Runtime, and a phone by ExecuTorch, with XNNPACK
and without it. The differences are from plain torch. It goes on where it was stopped; names as
arguments are the models to try. Writes ``benchmarks/results/usual_steps.json`` and a section of
RESULTS.md.
"""

import json
import math
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from algorithms.composition import make_objective, read_algorithm
from algorithms.core.contract import TorchTensors
from algorithms.models.adoption.adopt import adopt
from algorithms.models.adoption.dropout import DROPOUTS
from algorithms.models.classifier import Scale
from algorithms.objectives.fedavg import FedAvg
from benchmarks.results.report import describe_machine, put
from benchmarks.usual_models import USUAL
from export.bundle import RUNTIMES, capture_graphs, make_bundle
from export.describe import describe_bundle, to_numpy
from export.runtimes import load_graph, runtimes_of
from host.threads import one_thread
from simulation.engine.backend import choose
from simulation.engine.options import EngineOptions
from wire.arrays import names
from wire.arrays.tensors import Tensors
from wire.bundle import EXECUTORCH, PORTABLE, Window, unpack
from wire.errors import ShoalError

OUT = Path(__file__).parent / "results" / "usual_steps.json"
CLASSES, BATCH = 4, 8
STEPS = 20
LR, MOMENTUM = 0.05, 0.9
SLOWER = {"resnet18": 0.002}
"""Learning rates of models in which float32 is off by a thousandth after three steps at the usual
one, in plain torch too."""
FLOOR = 0.01
"""Minimum scale of a tensor's difference, as a fraction of what moved most of its role.

A bias before BatchNorm, for example, moves by rounding only.
"""
COLUMNS = {
    "simulation": "simulation",
    "onnx": "board",
    EXECUTORCH: "phone",
    PORTABLE: "phone, without XNNPACK",
}


def plain_model(name: str) -> nn.Module:
    """Return a model without dropout, so that it can be compared with one that draws from torch's
    own generator."""
    torch.manual_seed(1)
    usual = USUAL[name]
    model: nn.Module = usual.make(usual.shape, outputs_of(name))
    for layer in model.modules():
        if isinstance(layer, DROPOUTS):
            layer.p = 0.0
        if isinstance(layer, (nn.MultiheadAttention, nn.RNNBase)):
            layer.dropout = 0.0
    return model


def outputs_of(name: str) -> int:
    return math.prod(USUAL[name].shape) if USUAL[name].task == "reconstruction" else CLASSES


def objective_of(name: str) -> FedAvg:
    """Return FedAvg in the model's task, with channels of size 2."""
    usual = USUAL[name]
    task = "" if usual.task == "classification" else f"+{usual.task}"
    sizes = torch.full((usual.shape[0],), 2.0)
    scale = nn.Identity() if usual.vocabulary else Scale(sizes, len(usual.shape) - 1)
    model = adopt("mine", plain_model(name), usual.shape, outputs_of(name), scale, usual.vocabulary)
    objective = make_objective(read_algorithm(f"fedavg{task}"), model)
    assert isinstance(objective, FedAvg)
    return objective


def batches(name: str, steps: int) -> list[tuple[Tensor, Tensor]]:
    """Return batches of eight, with labels of the model's task."""
    usual, drawing = USUAL[name], torch.Generator().manual_seed(3)
    drawn = []
    for _ in range(steps):
        x = 3 * torch.randn(BATCH, *usual.shape, generator=drawing)
        if usual.vocabulary:
            x = torch.randint(usual.vocabulary, (BATCH, *usual.shape), generator=drawing)
        y = torch.randint(CLASSES, (BATCH,), generator=drawing)
        if usual.task == "multi-label":
            y = torch.randint(2, (BATCH, CLASSES), generator=drawing)
        elif usual.task == "regression":
            y = torch.randn(BATCH, CLASSES, generator=drawing)
        drawn.append((x, y))
    return drawn


def loss_of(name: str, answers: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the loss of a task as torch has it."""
    task = USUAL[name].task
    if task == "multi-label":
        return F.binary_cross_entropy_with_logits(answers, y.float())
    if task in ("regression", "reconstruction"):
        return F.mse_loss(answers, y if task == "regression" else x.flatten(1))
    return F.cross_entropy(answers, y)


def rate_of(name: str) -> float:
    return SLOWER.get(name, LR)


def plainly_trained(name: str, steps: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Return parameters and running statistics after steps of plain torch; nothing of Shoal."""
    model = deepcopy(plain_model(name)).to(dtype).train()
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm1d) and not layer.weight.requires_grad:
            layer.eval()
    optimizer = torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad], rate_of(name), MOMENTUM
    )
    for x, y in batches(name, steps):
        scaled = x if USUAL[name].vocabulary else (x / 2.0).to(dtype)
        optimizer.zero_grad()
        loss_of(name, model(scaled), scaled, y.to(dtype) if y.is_floating_point() else y).backward()
        optimizer.step()
    return weights_of(model)


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and running statistics of a module."""
    statistics = {n: value for n, value in model.named_buffers() if names.is_running_statistic(n)}
    return {n: value.detach() for n, value in model.named_parameters()} | statistics


def as_plain(tensors: TorchTensors, plain: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors of a `Classifier` by the names `plain` of the user's module.

    Raises:
        KeyError: one of them is missing.
    """
    values = names.part(tensors, names.SHARED) | names.part(tensors, names.STATISTIC)
    values |= {
        name.removeprefix("frozen."): value
        for name, value in names.part(tensors, names.SLOT).items()
        if name.startswith("frozen.")
    }
    body = {name.removeprefix("extractor.") for name in values if name.startswith("extractor.")}
    return {
        name: values[f"extractor.{name}" if name in body else f"head.{name.rpartition('.')[2]}"]
        for name in plain
    }


def simulated(name: str) -> tuple[str, Tensors]:
    """Return the backend of a simulation, and the tensors after its steps."""
    objective = objective_of(name)
    bundle = describe_bundle(objective, name="usual", classes=tuple("abcd"), window=window_of(name))
    backend = choose(objective, bundle.manifest, EngineOptions(), ["step"])
    x, y = (torch.cat(part).numpy() for part in zip(*batches(name, STEPS), strict=True))
    if USUAL[name].task == "multi-label":
        y = y.astype(np.int64)
    chosen = [np.arange(BATCH * step, BATCH * (step + 1)) for step in range(STEPS)]
    tensors = to_numpy(objective.initial())
    graphs: Any = backend.graphs
    assert graphs.trains("step")
    moved = graphs.train("step", tensors, x, y, chosen, hyper_of(name, objective))
    return backend.name, tensors | names.part(moved, names.NEXT)


def on_devices(name: str) -> dict[str, Tensors]:
    """Return the tensors after the exported steps, by runtime.

    Raises:
        ConfigError: a runtime cannot train the model.
    """
    objective = objective_of(name)
    step = {"step": objective.graphs()["step"]}
    objective.graphs = lambda: step  # type: ignore[method-assign]
    bundle = unpack(
        make_bundle(
            capture_graphs(objective, USUAL[name].shape, RUNTIMES),
            name="usual",
            bundle_version=1,
            objective=objective,
            classes=tuple("abcd"),
            window=window_of(name),
        )
    )
    after = {}
    for runtime in runtimes_of(bundle):
        run, tensors = load_graph(bundle, "step", runtime), dict(bundle.initial)
        for x, y in batches(name, STEPS):
            batch = {names.X: x.numpy(), names.Y: y.numpy()}
            tensors |= names.part(run(tensors | batch | hyper_of(name, objective)), names.NEXT)
        after[runtime] = tensors
    return after


def hyper_of(name: str, objective: FedAvg) -> Tensors:
    values = dict(objective.hyper) | {"lr": rate_of(name), "momentum": MOMENTUM}
    return {names.hyper(key): np.asarray(value, np.float32) for key, value in values.items()}


def window_of(name: str) -> Window:
    """Return the window of a model's examples."""
    usual = USUAL[name]
    *height, length = usual.shape[1:]
    return Window(
        tuple(f"c{i}" for i in range(usual.shape[0])),
        length,
        length if not height else 1,
        height=height[0] if height else 0,
        vocabulary=usual.vocabulary,
    )


def difference(
    after: dict[str, Tensor], plain: dict[str, Tensor], start: dict[str, Tensor]
) -> float:
    """Return the largest difference of a tensor, relative to how far plain steps moved it."""
    moved = {name: float((plain[name] - start[name]).abs().max()) for name in plain}
    largest = 0.0
    for statistic in (False, True):
        role = [name for name in plain if names.is_running_statistic(name) == statistic]
        floor = FLOOR * max((moved[name] for name in role), default=0.0)
        for name in role:
            apart = float((after[name] - plain[name]).abs().max())
            largest = max(largest, apart / (max(moved[name], floor) or 1.0))
    return largest


def differences(name: str) -> dict[str, Any]:
    """Return the backend of a model's simulation, and the difference after 20 steps by column.

    `float64` is how far plain torch in float32 itself is from float64.
    """
    start, plain = weights_of(plain_model(name)), plainly_trained(name, STEPS)
    exact = {n: v.float() for n, v in plainly_trained(name, STEPS, torch.float64).items()}
    backend, tensors = simulated(name)
    after: dict[str, Tensors] = {"simulation": tensors} | on_devices(name)
    row: dict[str, Any] = {"name": name, "backend": backend}
    row["float64"] = difference(plain, exact, start)
    for key, column in COLUMNS.items():
        arrays = {k: torch.from_numpy(np.array(v)) for k, v in after[key].items()}
        row[column] = difference(as_plain(arrays, plain), plain, start)
    return row


def text(results: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    columns = list(COLUMNS.values())
    lines = [
        f"Machine: {results['machine']}. Made by `python -m benchmarks.usual_steps`; numbers in "
        "`results/usual_steps.json`.",
        f"The largest difference of a weight or statistic from plain torch after {STEPS} steps of "
        f"FedAvg on batches of {BATCH}, relative to how far",
        "its tensor moved. Models without their dropout, whose numbers plain torch draws itself. "
        "The last column is plain torch in float32 beside float64.",
        "",
        f"| model | backend | {' | '.join(columns)} | float64 |",
        "|---" * (len(columns) + 3) + "|",
    ]
    for row in results["models"]:
        if "refused" in row:
            lines.append(f"| {row['name']} | refused: {row['refused']} |" + " |" * 5)
            continue
        numbers = " | ".join(f"{row[column]:.0e}" for column in (*columns, "float64"))
        lines.append(f"| {row['name']} | {row['backend']} | {numbers} |")
    return "\n".join(lines)


def main(*wanted: str, differ: Callable[[str], dict[str, Any]] = differences) -> None:
    """Try every model that has no result yet, and print the table."""
    rows = {}
    if OUT.exists():
        rows = {row["name"]: row for row in json.loads(OUT.read_text())["models"]}
    results: dict[str, Any] = {"machine": describe_machine(), "models": []}
    for name in wanted or USUAL:
        if wanted or name not in rows:
            with one_thread():
                try:
                    rows[name] = differ(name)
                except ShoalError as error:
                    rows[name] = {"name": name, "refused": str(error)}
            print(name, rows[name], flush=True)
        results["models"] = [rows[n] for n in USUAL if n in rows]
        OUT.write_text(json.dumps(results, indent=1) + "\n")
    put("usual_steps", f"## Usual models after 20 steps\n\n{text(results)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
