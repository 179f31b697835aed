"""Writes a captured function as an ONNX graph with named inputs and outputs."""

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import cache

import onnx
import torch
from torch.onnx._internal.exporter import _core, _registration

from algorithms.core.contract import TorchTensors
from export.capture import Trace, lower, quiet
from export.lowering.core_program import CoreProgram
from export.lowering.onnx import onnx_decompositions
from export.lowering.shared import OTHER_LAYER
from export.shortcuts import likely_patterns
from wire.arrays import names
from wire.arrays.onnx_model import INPUT, OUTPUT
from wire.errors import ConfigError

OPSET = 20
"""Version of ONNX's operator set that graphs are written with."""


@dataclass(frozen=True)
class OnnxGraph:
    """An ONNX graph with the names of its inputs and outputs, in order."""

    onnx: bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    shapes: TorchTensors = field(default_factory=dict, repr=False)
    """Outputs for the example."""


def to_onnx(traced: Trace) -> OnnxGraph:
    """Return a trace as an ONNX graph.

    Raises:
        ConfigError: an operator cannot be lowered or written; the text names it.
    """
    program = lower(traced, onnx_decompositions())
    try:
        exported = _export(traced, program)
    # torch raises exceptions of many types, and the user needs the operator, not the traceback
    except Exception as error:
        raise ConfigError(
            f"the graph cannot be written as ONNX: {_said(error)}. {OTHER_LAYER}."
        ) from error
    model = exported.model_proto
    # stack traces and inferred shapes are nine tenths of the file
    described = (*model.graph.input, *model.graph.output, *model.graph.initializer)
    for entry in (*model.graph.node, *described, model.graph, model):
        entry.ClearField("metadata_props")
        entry.ClearField("doc_string")
    model.graph.ClearField("value_info")
    _rename(
        model.graph, {value.name: value.name for value in (*model.graph.input, *model.graph.output)}
    )
    onnx.checker.check_model(model)
    return OnnxGraph(
        model.SerializeToString(deterministic=True), traced.inputs, traced.outputs, traced.example
    )


def to_template(graph: OnnxGraph) -> bytes:
    """Return the template of a one-file model (`wire.arrays.onnx_model`) from a prediction graph.

    The examples are its only input. The tensors of the model are names without values, which are
    added to complete the file.
    """
    model = onnx.load_model_from_string(graph.onnx)
    examples = next(value for value in model.graph.input if value.name == names.X)
    (answer,) = model.graph.output
    renamed = {names.X: INPUT, answer.name: OUTPUT}
    for node in model.graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.output[:] = [renamed.get(name, name) for name in node.output]
    examples.name, answer.name = INPUT, OUTPUT
    del model.graph.input[:]
    model.graph.input.append(examples)
    return bytes(model.SerializeToString(deterministic=True))


def count_operators(data: bytes) -> dict[str, int]:
    """Return the number of uses of each operator in an ONNX graph, by name.

    Raises:
        ConfigError: `data` is not an ONNX graph.
    """
    try:
        model = onnx.load_model_from_string(data)
    except Exception as error:
        raise ConfigError(f"ONNX graph of {len(data)} bytes cannot be read: {error}") from None
    return dict(sorted(Counter(str(node.op_type) for node in model.graph.node).items()))


def _export(traced: Trace, program: CoreProgram) -> torch.onnx.ONNXProgram:
    """Translate the program of a trace to ONNX.

    `torch.onnx.export` does the same, but reads its hundreds of translations again for every graph.
    """
    with quiet(), likely_patterns():
        return _core.export(
            program,
            registry=_translations(),
            opset_version=OPSET,
            verbose=False,
            input_names=list(traced.inputs),
            output_names=list(traced.outputs),
        )


@cache
def _translations() -> _registration.ONNXRegistry:
    """Return the translations of torch's operators to ONNX."""
    return _registration.ONNXRegistry.from_torchlib(opset_version=OPSET)


def _said(error: BaseException) -> str:
    """Return the operator at which torch's exporter failed, or else the text of the error.

    The operator is read from the chain of errors that caused this one.
    """
    met: BaseException | None = error
    while met is not None:
        if match := re.search(r"target=torch\.ops\.([\w.]+)", str(met)):
            return f"there is no operator for {match[1]}"
        met = met.__cause__
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


def _rename(graph: onnx.GraphProto, numbers: dict[str, str]) -> None:
    """Replace the names of a graph's intermediate values by numbers.

    The exporter's names depend on its earlier exports, and a bundle's digest depends on the names.
    """

    def numbered(name: str) -> str:
        return numbers.setdefault(name, f"v{len(numbers)}") if name else name

    for value in (*graph.input, *graph.output, *graph.initializer):
        value.name = numbered(value.name)
    for node in graph.node:
        node.ClearField("name")
        node.input[:] = [numbered(name) for name in node.input]
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _rename(inner, numbers)
        node.output[:] = [numbered(name) for name in node.output]
