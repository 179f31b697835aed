"""Model files with weights for other programs: ONNX, ExecuTorch, PyTorch, safetensors."""

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
"""Formats of a model file, as extensions of its name."""
SAME = 1e-4
"""Maximum difference between the probabilities of a program and of the bundle's graph."""
WINDOWS = 16
"""Number of random windows for that comparison."""


def to_onnx_file(bundle: Bundle, tensors: Tensors, about: Mapping[str, str]) -> bytes:
    """Return an ONNX file with the input ``x`` (n, \\*window) and the output ``probabilities``.

    `about` becomes the file's metadata.

    Raises:
        BundleError: the bundle has no template for predictions.
    """
    if onnx := whole_model(bundle, tensors, about):
        return onnx
    raise BundleError(
        f"bundle {bundle.manifest.name} has no graph for predictions that can be written to a "
        "file; export it again with this version of Shoal"
    )


def to_torch_file(tensors: Tensors, about: Mapping[str, str]) -> bytes:
    """Return a PyTorch file with the entries ``state_dict`` and ``about``.

    ``state_dict`` has the parameters and running statistics by the model's own names, for
    `load_state_dict(..., strict=False)`. ``torch.load(..., weights_only=True)`` reads the file.
    """
    state_dict = {
        name: torch.from_numpy(np.array(value))
        for role in names.EXCHANGED
        for name, value in names.part(tensors, role).items()
    }
    return state_file(state_dict, about)


def state_file(state: Mapping[str, Tensor], about: Mapping[str, str]) -> bytes:
    """Return the bytes that `torch.save` writes of ``{"state_dict": state, "about": about}``."""
    buffer = io.BytesIO()
    torch.save({"state_dict": state, "about": dict(about)}, buffer)
    return buffer.getvalue()


def to_safetensors_file(tensors: Tensors, about: Mapping[str, str]) -> bytes:
    """Return a safetensors file with the wire's names of tensors and `about` as its metadata."""
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
    """Return an ExecuTorch program, with the XNNPACK backend, of the bundle's probe.

    The program has one input, 1 to `max_batch` windows, and one output, their probabilities.

    Raises:
        ConfigError: the program cannot be written, or the objective does not predict with its bare
            model, which is the content of the probe.
    """
    if missing := [name for name in probe.needs if name not in tensors]:
        raise ConfigError(
            f"The probe (server.pt2) reads tensor {missing[0]!r}, which bundle "
            f"{bundle.manifest.name} does not have. Use the probe of the same export."
        )
    probe_tensors: TorchTensors = {
        name: torch.from_numpy(np.array(tensors[name])) for name in probe.needs
    }
    on_progress("comparing the bare model with the bundle's graph")
    x = some_examples(WINDOWS, bundle.manifest.window.shape, bundle.manifest.window.vocabulary)
    expected = load_whole(to_onnx_file(bundle, tensors, {}))(x.numpy())
    error = apart(probe.run(probe_tensors, x)[0].detach().numpy(), expected)
    if not error <= SAME:
        algorithm = bundle.manifest.algorithm
        raise ConfigError(
            f"A .pte file holds the bare model, and predictions of {algorithm} differ from its "
            f"answers by up to {error:.2g}. Write a .onnx file."
        )
    on_progress("writing it for ExecuTorch")

    def predict(inputs: TorchTensors) -> TorchTensors:
        return {names.PROBABILITIES: probe.run(probe_tensors, inputs[names.X])[0]}

    return to_executorch(trace(predict, {names.X: x[:TRACE_BATCH]}), max_batch)[EXECUTORCH][1]


def norms(one: Tensors, other: Tensors) -> list[tuple[str, float, float]]:
    """Return the differences between two models, the largest relative one first.

    A row has the tensor's name, the L2 norm of the difference, and that norm divided by the norm of
    the tensor in `one`.
    """
    rows = []
    for key, value in one.items():
        distance = float(np.linalg.norm((other[key].astype(np.float64) - value).ravel()))
        base = float(np.linalg.norm(value.astype(np.float64).ravel()))
        rows.append(
            (key, distance, distance / base if base else (0.0 if not distance else float("inf")))
        )
    return sorted(rows, key=lambda row: -row[2])


def agreement(task: TaskName, one: Array, other: Array) -> float:
    """Return the fraction of windows for which two answers have the same class or labels.

    The answers are (n, answers), or (n, steps, answers) for a class per step. For the latter the
    result is the fraction of steps.

    Raises:
        ConfigError: the answers of the task are quantities, which are never exactly equal.
    """
    if task in (CLASSIFICATION, SEQUENCE):
        return float((one.argmax(-1) == other.argmax(-1)).mean())
    if task == MULTI_LABEL:
        return float(((one >= PRESENT) == (other >= PRESENT)).all(1).mean())
    raise ConfigError(
        f"Answers of the task {task} are quantities, and only classes or labels can be compared"
    )
