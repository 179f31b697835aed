"""A pure function over named tensors -> an ONNX graph with named inputs and outputs and a dynamic batch."""

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import onnx
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from algorithms.contract import TorchTensors
from export.describe import MIN_BATCH
from export.lowering import decompositions
from wire.errors import ConfigError

MAX_BATCH = 4096

NamedFunction = Callable[[TorchTensors], TorchTensors]


@dataclass(frozen=True)
class Captured:
    """One graph: its ONNX bytes and the names of its inputs and outputs, in order."""

    onnx: bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    shapes: TorchTensors = field(default_factory=dict, repr=False)
    """The outputs for the example."""


@dataclass(frozen=True)
class Program:
    """A lowered program with positional inputs and outputs, and their names. Inputs that it does not read are not among them."""

    exported: torch.export.ExportedProgram
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    example: TorchTensors


def capture_program(function: NamedFunction, example: TorchTensors) -> Program:
    """Trace `function` with a dynamic batch (the first dimension of every ``batch/...`` input but ``batch/normal/...``) and lower it.

    `torch.export` alone does not pass through `torch.func.grad`; tracing with symbolic sizes first makes the gradient ordinary
    operators.

    Raises:
        ConfigError: an operator of the model cannot be captured; the text names it.
    """
    names = list(example)
    outputs: list[str] = []

    def positional(*values: Tensor) -> list[Tensor]:
        results = function(dict(zip(names, values, strict=True)))
        outputs[:] = results
        return list(results.values())

    batch = torch.export.Dim("batch", min=MIN_BATCH, max=MAX_BATCH)
    try:
        with _quiet():
            made = function(example)
            traced = make_fx(positional, tracing_mode="symbolic", _allow_non_fake_inputs=True)(*example.values())
            read = _drop_unread(traced, names)
            dynamic = tuple({0: batch} if n.startswith("batch/") and not n.startswith("batch/normal/") else None for n in read)
            values = tuple(example[name] for name in read)
            program = torch.export.export(traced, values, dynamic_shapes=dynamic, strict=False).run_decompositions(decompositions())
    except ConfigError:
        raise
    except Exception as error:  # torch raises many kinds; the user needs the operator, not the trace
        raise ConfigError(f"the model cannot be captured as a graph: {type(error).__name__}: {str(error).splitlines()[0]}") from error
    return Program(program, tuple(read), tuple(outputs), made)


def _drop_unread(traced: torch.fx.GraphModule, names: list[str]) -> list[str]:
    """Remove the inputs that nothing reads; the names of the others."""
    traced.graph.eliminate_dead_code()
    read = []
    for name, node in zip(names, [n for n in traced.graph.nodes if n.op == "placeholder"], strict=True):
        if node.users:
            read.append(name)
        else:
            traced.graph.erase_node(node)
    traced.recompile()
    return read


def capture_onnx(function: NamedFunction, example: TorchTensors) -> Captured:
    """`capture_program`, as ONNX with the example's keys as input names and the function's keys as output names."""
    program = capture_program(function, example)
    try:
        exported = _to_onnx(program)
    except Exception as error:  # as above
        raise ConfigError(f"the graph cannot be written as ONNX: {type(error).__name__}: {str(error).splitlines()[0]}") from error
    model = exported.model_proto
    _strip(model)
    onnx.checker.check_model(model)
    return Captured(model.SerializeToString(deterministic=True), program.inputs, program.outputs, program.example)


def _to_onnx(program: Program) -> torch.onnx.ONNXProgram:
    with _quiet():
        exported = torch.onnx.export(
            program.exported,
            dynamo=True,
            optimize=True,
            verbose=False,
            input_names=list(program.inputs),
            output_names=list(program.outputs),
        )
    assert exported is not None
    return exported


def _strip(model: onnx.ModelProto) -> None:
    """Remove stack traces and inferred shapes: they are nine tenths of the file."""
    for node in model.graph.node:
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    for entry in (*model.graph.input, *model.graph.output, *model.graph.initializer, model.graph, model):
        entry.ClearField("metadata_props")
        entry.ClearField("doc_string")
    model.graph.ClearField("value_info")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's progress and the notices about packages it does not need from the user."""
    levels = {name: logging.getLogger(name).level for name in ("torch.onnx", "onnxscript", "onnx_ir")}
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        for name in levels:
            logging.getLogger(name).setLevel(logging.ERROR)
        try:
            yield
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)
