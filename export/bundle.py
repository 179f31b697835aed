"""Model + objective -> a signed bundle for devices, and the probe that the aggregator looks at models with."""

import io
import platform
from dataclasses import dataclass
from importlib.metadata import version

import msgspec
import numpy as np
import onnx
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from algorithms.contract import Objective, Probe, TorchTensors
from export.capture import Captured, capture_onnx, capture_program
from export.describe import TRACE_BATCH, example_inputs, manifest_of, named, responses_of, specs_of, to_numpy
from wire.bundle import Graph, Window, pack
from wire.errors import ConfigError
from wire.tensors import Tensors, TensorSpec


@dataclass(frozen=True)
class Captures:
    """The graphs of one objective, before they are packed."""

    graphs: dict[str, Captured]
    initial: Tensors
    tensors: tuple[TensorSpec, ...]


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
    manifest = manifest_of(objective, captures.tensors, graphs, name, bundle_version, created_by, classes, window)
    return pack(manifest, {f"{n}.onnx": g.onnx for n, g in captures.graphs.items()}, captures.initial, key)


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
    extra = {"names.txt": "\n\n".join(names.values()), "plan.json": msgspec.json.encode(probe.plan).decode()}
    torch.export.save(program.exported, buffer, extra_files=extra)
    return buffer.getvalue()


def inspect_graph(data: bytes) -> dict[str, int]:
    """How often each ONNX operator occurs in a graph."""
    try:
        model = onnx.load_model_from_string(data)
    except Exception as error:
        raise ConfigError(f"ONNX graph of {len(data)} bytes: {error}") from None
    names, counts = np.unique([node.op_type for node in model.graph.node], return_counts=True)
    return {str(name): int(count) for name, count in zip(names, counts, strict=True)}
