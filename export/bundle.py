"""Model + objective -> a signed bundle for devices, and the probe that the aggregator looks at models with."""

import io
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np
import onnx
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from algorithms.contract import Objective, Probe, TorchTensors
from export.capture import MIN_BATCH, Captured, capture_onnx, capture_program
from wire.bundle import Graph, Manifest, Window, pack
from wire.errors import ConfigError
from wire.tensors import Tensors, TensorSpec

TRACE_BATCH = 7
"""Batch size of the example the graphs are traced with; any that no layer has as a size of its own."""


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


def capture_graphs(objective: Objective, input_shape: tuple[int, ...]) -> Captures:
    """Capture ``step``, ``evaluate``, ``survey`` and ``predict`` of an objective for inputs (batch, \\*input_shape)."""
    tensors = objective.initial()
    batch = {"batch/x": torch.randn(TRACE_BATCH, *input_shape), "batch/y": torch.zeros(TRACE_BATCH, dtype=torch.int64)}
    hyper = {f"hyper/{name}": torch.tensor(float(value)) for name, value in objective.hyper.items()}
    model_only = {k: v for k, v in tensors.items() if k.startswith(("shared/", "statistic/", "private/"))}

    def part(inputs: TorchTensors, prefix: str) -> TorchTensors:
        return {k.removeprefix(prefix): v for k, v in inputs.items() if k.startswith(prefix)}

    def held(inputs: TorchTensors) -> TorchTensors:
        return {k: v for k, v in inputs.items() if not k.startswith(("batch/", "hyper/"))}

    def step(inputs: TorchTensors) -> TorchTensors:
        following, metrics = objective.step(held(inputs), part(inputs, "batch/"), part(inputs, "hyper/"))
        ordered = {f"next/{k}": following[k] for k in tensors if k in following}
        return ordered | {f"metric/{k}": v for k, v in metrics.items()}

    def evaluate(inputs: TorchTensors) -> TorchTensors:
        return {f"metric/{k}": v for k, v in objective.evaluate(held(inputs), part(inputs, "batch/")).items()}

    def survey(inputs: TorchTensors) -> TorchTensors:
        return {f"metric/{k}": v for k, v in objective.survey(held(inputs), part(inputs, "batch/")).items()}

    def predict(inputs: TorchTensors) -> TorchTensors:
        return {"output/probabilities": objective.predict(held(inputs), inputs["batch/x"])}

    graphs = {
        "step": capture_onnx(step, {**tensors, **batch, **hyper}),
        "evaluate": capture_onnx(evaluate, {**model_only, **batch}),
        "survey": capture_onnx(survey, {**model_only, **batch}),
        "predict": capture_onnx(predict, {**model_only, "batch/x": batch["batch/x"]}),
    }
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
    manifest = Manifest(
        name=name,
        version=bundle_version,
        algorithm=objective.name,
        created_by={package: version(package) for package in ("shoal", "torch", "onnx")} | {"python": platform.python_version()},
        classes=classes,
        window=window,
        min_batch=MIN_BATCH,
        hyper=dict(objective.hyper),
        tensors=captures.tensors,
        graphs={n: Graph(f"{n}.onnx", g.inputs, g.outputs) for n, g in captures.graphs.items()},
        files={},
    )
    return pack(manifest, {f"{n}.onnx": g.onnx for n, g in captures.graphs.items()}, captures.initial, key)


def save_probe(probe: Probe, tensors: TorchTensors) -> bytes:
    """A probe as one `torch.export` file, for an aggregator that does not have the model's code."""
    model = {k: v for k, v in tensors.items() if k.startswith(("shared/", "statistic/"))}

    def run(inputs: TorchTensors) -> TorchTensors:
        probabilities, met = probe.run({k: v for k, v in inputs.items() if k != "batch/x"}, inputs["batch/x"])
        results = {"probabilities": probabilities}
        for layer, (mean, variance) in zip(probe.norm_layers, met, strict=True):
            results |= {f"mean/{layer}": mean, f"variance/{layer}": variance}
        return results

    program, _ = capture_program(run, {**model, "batch/x": torch.randn(TRACE_BATCH, *probe.input_shape)})
    buffer = io.BytesIO()
    names = {"inputs": "\n".join(model), "layers": "\n".join(probe.norm_layers), "shape": ",".join(map(str, probe.input_shape))}
    torch.export.save(program, buffer, extra_files={"names.txt": "\n\n".join(names.values())})
    return buffer.getvalue()


def inspect_graph(data: bytes) -> dict[str, int]:
    """How often each ONNX operator occurs in a graph."""
    try:
        model = onnx.load_model_from_string(data)
    except Exception as error:
        raise ConfigError(f"ONNX graph of {len(data)} bytes: {error}") from None
    names, counts = np.unique([node.op_type for node in model.graph.node], return_counts=True)
    return {str(name): int(count) for name, count in zip(names, counts, strict=True)}
