"""Model + objective -> a signed bundle for devices, and the probe that the aggregator looks at models with."""

import io
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import TypeVar

import numpy as np
import onnx
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from algorithms.contract import GraphFunction, Objective, Probe, TorchTensors
from export.capture import MIN_BATCH, Captured, capture_onnx, capture_program
from wire.bundle import Bundle, Graph, Manifest, Window, pack, unpack
from wire.errors import ConfigError
from wire.tensors import Tensors, TensorSpec

TRACE_BATCH = 7
"""Batch size of the example the graphs are traced with; any that no layer has as a size of its own."""
T = TypeVar("T")
NO_FILE = "none"
"""The file of a graph that is described only: in a simulation the objective's functions run themselves."""


@dataclass(frozen=True)
class Captures:
    """The graphs of one objective, before they are packed."""

    graphs: dict[str, Captured]
    initial: Tensors
    tensors: tuple[TensorSpec, ...]


def to_numpy(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    """Torch tensors as numpy arrays, by the same names."""
    return {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}


def specs_of(tensors: Mapping[str, torch.Tensor]) -> tuple[TensorSpec, ...]:
    """The manifest's entries of tensors named ``ROLE/NAME``."""
    specs = []
    for key, tensor in tensors.items():
        role, name = key.split("/", 1)
        specs.append(TensorSpec(name, role, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)))  # type: ignore[arg-type]
    return tuple(specs)


def example_inputs(objective: Objective, window: tuple[int, ...], batch_size: int = TRACE_BATCH) -> TorchTensors:
    """One value for everything that a graph may read, by the names that graphs use: tensors, a batch of examples of shape `window`, its
    columns, random inputs, hyper-parameters."""
    batch = {"batch/x": torch.randn(batch_size, *window), "batch/y": torch.zeros(batch_size, dtype=torch.int64)}
    columns = {f"batch/{name}": torch.ones(batch_size, *shape) for name, shape in objective.columns.items()}
    drawn = {
        f"batch/{name}": torch.rand(batch_size, *shape) if name.startswith("uniform/") else torch.randn(shape)
        for name, shape in objective.random.items()
    }
    hyper = {f"hyper/{name}": torch.tensor(float(value)) for name, value in objective.hyper.items()}
    return objective.initial() | batch | columns | drawn | hyper


def named(function: GraphFunction) -> Callable[[TorchTensors], TorchTensors]:
    """A graph function over one mapping of everything it may read."""

    def run(inputs: TorchTensors) -> TorchTensors:
        held = {k: v for k, v in inputs.items() if not k.startswith(("batch/", "hyper/"))}
        return function(held, part(inputs, "batch/"), part(inputs, "hyper/"))

    return run


def describe_graphs(objective: Objective, window: tuple[int, ...]) -> dict[str, Graph]:
    """The graphs of an objective as a manifest names them, without capturing any: each is run once."""
    inputs, described = example_inputs(objective, window), {}
    with torch.no_grad():
        for name, function in objective.graphs().items():
            outputs = named(function)(inputs)
            inputs |= {f"response/{name}.{n}": torch.zeros(shape) for n, shape in responses_of(outputs)}
            described[name] = Graph(NO_FILE, (), tuple(outputs), responses_of(outputs))
    return described


def responses_of(outputs: TorchTensors) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Name and shape of the metrics that go back as responses: all but the two that become an update's metrics."""
    metrics = [(k.removeprefix("metric/"), tuple(v.shape)) for k, v in outputs.items() if k.startswith("metric/")]
    return tuple((name, shape) for name, shape in metrics if name not in ("loss_sum", "num_correct"))


def capture_graphs(objective: Objective, window: tuple[int, ...]) -> Captures:
    """Capture every graph of an objective for examples of shape `window`.

    Raises:
        ConfigError: an operator of the model cannot be captured; the text names it.
    """
    tensors = objective.initial()
    inputs, graphs = example_inputs(objective, window), {}
    for name, function in objective.graphs().items():
        graphs[name] = capture_onnx(named(function), inputs)
        outputs = graphs[name].shapes
        inputs = inputs | {f"response/{name}.{n}": torch.zeros(shape) for n, shape in responses_of(outputs)}
    return Captures(graphs, to_numpy(tensors), specs_of(tensors))


def part(inputs: Mapping[str, T], prefix: str) -> dict[str, T]:
    """The entries whose names begin with `prefix`, without it."""
    return {k.removeprefix(prefix): v for k, v in inputs.items() if k.startswith(prefix)}


def make_bundle(
    captures: Captures,
    *,
    name: str,
    bundle_version: int,
    objective: Objective,
    classes: tuple[str, ...],
    window: Window,
    key: Ed25519PrivateKey | None = None,
) -> bytes:
    """Pack captured graphs into a bundle, signed when a key is given. The same content gives the same bytes."""
    created_by = {package: version(package) for package in ("shoal", "torch", "onnx")} | {"python": platform.python_version()}
    graphs = {n: Graph(f"{n}.onnx", g.inputs, g.outputs, responses_of(g.shapes)) for n, g in captures.graphs.items()}
    manifest = _manifest(objective, captures.tensors, graphs, name, bundle_version, created_by, classes, window)
    return pack(manifest, {f"{n}.onnx": g.onnx for n, g in captures.graphs.items()}, captures.initial, key)


def describe_bundle(objective: Objective, *, name: str, classes: tuple[str, ...], window: Window) -> Bundle:
    """A bundle whose graphs are described only: in a simulation the objective itself runs."""
    tensors = objective.initial()
    manifest = _manifest(objective, specs_of(tensors), describe_graphs(objective, window.shape), name, 1, {}, classes, window)
    return unpack(pack(manifest, {NO_FILE: b""}, to_numpy(tensors)))


def _manifest(
    objective: Objective,
    tensors: tuple[TensorSpec, ...],
    graphs: dict[str, Graph],
    name: str,
    bundle_version: int,
    created_by: dict[str, str],
    classes: tuple[str, ...],
    window: Window,
) -> Manifest:
    return Manifest(
        name=name,
        version=bundle_version,
        algorithm=objective.name,
        created_by=created_by,
        classes=classes,
        window=window,
        min_batch=MIN_BATCH,
        hyper=dict(objective.hyper),
        tensors=tensors,
        graphs=graphs,
        files={},
        columns=dict(objective.columns),
        random=dict(objective.random),
    )


def save_probe(probe: Probe, model: TorchTensors) -> bytes:
    """A probe as one `torch.export` file, for an aggregator that does not have the model's code. `model` holds a value of everything it
    needs."""

    def run(inputs: TorchTensors) -> TorchTensors:
        probabilities, met = probe.run({k: v for k, v in inputs.items() if k != "batch/x"}, inputs["batch/x"])
        results = {"probabilities": probabilities}
        for layer, (mean, variance) in zip(probe.norm_layers, met, strict=True):
            results |= {f"mean/{layer}": mean, f"variance/{layer}": variance}
        return results

    program = capture_program(run, {**model, "batch/x": torch.randn(TRACE_BATCH, *probe.input_shape)})
    buffer = io.BytesIO()
    read = [name for name in program.inputs if name != "batch/x"]
    names = {"inputs": "\n".join(read), "layers": "\n".join(probe.norm_layers), "shape": ",".join(map(str, probe.input_shape))}
    torch.export.save(program.exported, buffer, extra_files={"names.txt": "\n\n".join(names.values())})
    return buffer.getvalue()


def inspect_graph(data: bytes) -> dict[str, int]:
    """How often each ONNX operator occurs in a graph."""
    try:
        model = onnx.load_model_from_string(data)
    except Exception as error:
        raise ConfigError(f"ONNX graph of {len(data)} bytes: {error}") from None
    names, counts = np.unique([node.op_type for node in model.graph.node], return_counts=True)
    return {str(name): int(count) for name, count in zip(names, counts, strict=True)}
