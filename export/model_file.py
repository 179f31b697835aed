"""A model with its weights inside, in the forms that other programs read."""

import io
from collections.abc import Callable, Mapping

import numpy as np
import torch
from safetensors.numpy import save
from torch import Tensor

from algorithms.core.contract import Probe, TorchTensors
from algorithms.models.classifier import some_examples
from export.capture import trace
from export.describe import TRACE_BATCH
from export.lowering.executorch_program import to_executorch
from export.runtimes import load_whole
from wire.arrays import names
from wire.arrays.onnx_model import apart, whole_model
from wire.arrays.tensors import Array, Tensors
from wire.bundle import EXECUTORCH, Bundle
from wire.errors import BundleError, ConfigError
from wire.tasks import CLASSIFICATION, MULTI_LABEL, PRESENT, SEQUENCE, TaskName

FORMS = ("onnx", "pte", "pt", "safetensors")
"""What a file of a model may be, by the end of its name."""
SAME = 1e-4
"""So far may the probabilities of a program be from those of the bundle's own graph."""
WINDOWS = 16
"""On so many random windows are they compared."""


def to_onnx_file(bundle: Bundle, tensors: Tensors, about: Mapping[str, str]) -> bytes:
    """ONNX: the input ``x`` (n, \\*window), the output ``probabilities``; `about` is its metadata.

    Raises:
        BundleError: the bundle has nothing to make it from.
    """
    if onnx := whole_model(bundle, tensors, about):
        return onnx
    raise BundleError(
        f"bundle {bundle.manifest.name}: it has no template of the graph for predictions; export "
        "it with this version of Shoal"
    )


def to_torch_file(tensors: Tensors, about: Mapping[str, str]) -> bytes:
    """What `torch.save` writes of a dictionary: ``state_dict`` has the parameters and running
    statistics by the names that the model itself gives them, for `load_state_dict(...,
    strict=False)`; ``about`` has `about`. ``torch.load(..., weights_only=True)`` reads it."""
    own = {
        name: torch.from_numpy(np.array(value))
        for role in names.EXCHANGED
        for name, value in names.part(tensors, role).items()
    }
    return state_file(own, about)


def state_file(state: Mapping[str, Tensor], about: Mapping[str, str]) -> bytes:
    """What `torch.save` writes of tensors by name, under ``state_dict``, and of ``about``."""
    buffer = io.BytesIO()
    torch.save({"state_dict": state, "about": dict(about)}, buffer)
    return buffer.getvalue()


def to_safetensors_file(tensors: Tensors, about: Mapping[str, str]) -> bytes:
    """safetensors, with the tensors' names as on the wire and `about` as its metadata."""
    return bytes(
        save(
            {
                key: np.ascontiguousarray(value).reshape(value.shape)
                for key, value in tensors.items()
            },
            dict(about),
        )
    )


def to_executorch_file(
    bundle: Bundle,
    tensors: Tensors,
    probe: Probe,
    max_batch: int,
    on_progress: Callable[[str], None] = lambda _text: None,
) -> bytes:
    """ExecuTorch's program, with the XNNPACK backend, of the probe that was exported with the
    bundle. It has one input, 1 to `max_batch` windows, and one output, their probabilities.

    Raises:
        ConfigError: it cannot be made; or the objective answers otherwise than its bare model does,
        which is what the probe is.
    """
    if missing := [name for name in probe.needs if name not in tensors]:
        raise ConfigError(
            f"the probe (server.pt2) reads {missing[0]!r}, which is no tensor of bundle "
            f"{bundle.manifest.name}"
        )
    held: TorchTensors = {name: torch.from_numpy(np.array(tensors[name])) for name in probe.needs}
    on_progress("comparing the bare model with the bundle's graph")
    x = some_examples(WINDOWS, bundle.manifest.window.shape, bundle.manifest.window.vocabulary)
    expected = load_whole(to_onnx_file(bundle, tensors, {}))(x.numpy())
    error = apart(probe.run(held, x)[0].detach().numpy(), expected)
    if not error <= SAME:
        algorithm = bundle.manifest.algorithm
        raise ConfigError(
            f"{algorithm} does not predict with its bare model (they differ by {error:.2g}), of "
            "which a .pte is made: write .onnx"
        )
    on_progress("writing it for ExecuTorch")

    def predict(inputs: TorchTensors) -> TorchTensors:
        return {names.PROBABILITIES: probe.run(held, inputs[names.X])[0]}

    return to_executorch(trace(predict, {names.X: x[:TRACE_BATCH]}), max_batch)[EXECUTORCH][1]


def norms(one: Tensors, other: Tensors) -> list[tuple[str, float, float]]:
    """By tensor: its name, the norm of the difference, and that norm divided by the first one's;
    the largest share first."""
    rows = []
    for key, value in one.items():
        distance = float(np.linalg.norm((other[key].astype(np.float64) - value).ravel()))
        base = float(np.linalg.norm(value.astype(np.float64).ravel()))
        rows.append(
            (key, distance, distance / base if base else (0.0 if not distance else float("inf")))
        )
    return sorted(rows, key=lambda row: -row[2])


def agreement(task: TaskName, one: Array, other: Array) -> float:
    """The share of windows of which two answers (n, answers), or (n, steps, answers), say the same:
    the same class, or the same labels. Of classes of steps, the share of steps.

    Raises:
        ConfigError: the answers of the task are quantities, which are never quite the same.
    """
    if task in (CLASSIFICATION, SEQUENCE):
        return float((one.argmax(-1) == other.argmax(-1)).mean())
    if task == MULTI_LABEL:
        return float(((one >= PRESENT) == (other >= PRESENT)).all(1).mean())
    raise ConfigError(
        f"answers of {task} are quantities: expected models of classes or labels to compare "
        "answers of"
    )
