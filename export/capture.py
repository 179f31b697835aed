"""A pure function over named tensors -> a graph of core operators with positional inputs and a dynamic batch."""

import contextlib
import io
import logging
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from algorithms.core.contract import TorchTensors
from export.describe import MIN_BATCH
from export.lowering.onnx import onnx_decompositions
from export.lowering.shared import Table
from wire.errors import ConfigError
from wire.names import has_rows

MAX_BATCH = 4096

NamedFunction = Callable[[TorchTensors], TorchTensors]


@dataclass(frozen=True)
class Trace:
    """A function as ordinary operators, gradients included, before it is lowered for a runtime. Inputs that it does not read are not
    among its inputs."""

    module: torch.fx.GraphModule = field(repr=False)
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    values: tuple[Tensor, ...] = field(repr=False)
    """The example's inputs, in order."""
    example: TorchTensors = field(repr=False)
    """The outputs for the example."""


@dataclass(frozen=True)
class Lowered:
    """A program of the operators that a runtime has, with positional inputs and outputs, and their names."""

    exported: torch.export.ExportedProgram
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def trace(function: NamedFunction, example: TorchTensors) -> Trace:
    """Trace `function` with symbolic sizes.

    `torch.export` alone does not pass through `torch.func.grad`; tracing with symbolic sizes first turns the gradient into
    ordinary operators.

    Raises:
        ConfigError: an operator of the model cannot be captured; the text names it.
    """
    names = list(example)
    outputs: list[str] = []

    def positional(*values: Tensor) -> list[Tensor]:
        results = function(dict(zip(names, values, strict=True)))
        outputs[:] = results
        return list(results.values())

    with _naming("the model cannot be captured as a graph"), quiet():
        made = function(example)
        with torch.backends.mkldnn.flags(enabled=False):  # its LSTM is one operator whose gradient cannot be traced
            traced = make_fx(positional, tracing_mode="symbolic", _allow_non_fake_inputs=True)(*example.values())
        read = _drop_unread(traced, names)
    return Trace(traced, tuple(read), tuple(outputs), tuple(example[name] for name in read), made)


def lower(traced: Trace, table: Table, max_batch: int = MAX_BATCH) -> Lowered:
    """Lower a trace by a table of decompositions, with a dynamic batch (the first dimension of every ``batch/...`` input but
    ``batch/normal/...``) of at most `max_batch` examples.

    Raises:
        ConfigError: an operator of the model cannot be lowered; the text names it.
    """
    batch = torch.export.Dim("batch", min=MIN_BATCH, max=max_batch)
    dynamic = tuple({0: batch} if has_rows(n) else None for n in traced.inputs)
    with _naming("the model cannot be captured as a graph"), quiet():
        program = torch.export.export(traced.module, traced.values, dynamic_shapes=dynamic, strict=False).run_decompositions(table)
    return Lowered(program, traced.inputs, traced.outputs)


def capture_program(function: NamedFunction, example: TorchTensors) -> Lowered:
    """`trace` and `lower`, for ONNX and for torch itself.

    Raises:
        ConfigError: as both.
    """
    return lower(trace(function, example), onnx_decompositions())


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


@contextlib.contextmanager
def _naming(what: str) -> Iterator[None]:
    """Torch raises many kinds of errors; the user needs the operator, not the trace."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        said = next(iter(str(error).splitlines()), "")
        raise ConfigError(f"{what}{_place(error)}: {type(error).__name__}: {said}") from error


def _place(error: Exception) -> str:
    """The layer and the operator that an error came out of, where its trace shows them."""
    layer = operator = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        held, func = frame.f_locals.get("self"), frame.f_locals.get("func")
        if isinstance(held, nn.Module) and not isinstance(held, torch.fx.GraphModule):
            layer = type(held).__name__
        if isinstance(func, torch._ops.OpOverload):
            operator = str(func)
    named = [part for part in (layer, operator) if part]
    return f" ({', '.join(named)})" if named else ""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep an exporter's progress and the notices about packages it does not need from the user."""
    loud = ("torch.onnx", "torch.utils._pytree", "onnxscript", "onnx_ir", "executorch", "torchao")
    levels = {name: logging.getLogger(name).level for name in loud}
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        for name in levels:
            logging.getLogger(name).setLevel(logging.ERROR)
        try:
            yield
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)
