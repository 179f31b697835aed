"""Captures a pure function over named tensors as a graph with a dynamic batch, and lowers it."""

import contextlib
import io
import logging
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from traceback import FrameSummary
from typing import Any

import torch
from torch import Tensor, nn
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from algorithms.core.contract import TorchTensors
from export.describe import DEPENDS_ON_BATCH, MIN_BATCH, USE_SHAPE
from export.lowering.core_program import CoreProgram, core_program, read_sizes_once
from export.lowering.shared import Table
from export.recurrent import ExportedOperators
from wire.arrays.names import has_rows
from wire.errors import ConfigError

_aten = torch.ops.aten

MAX_BATCH = 4096

NamedFunction = Callable[[TorchTensors], TorchTensors]


@dataclass(frozen=True)
class Trace:
    """A function as ordinary operators, gradients included, before it is lowered for a runtime.

    `inputs` has only those inputs that the function reads.
    """

    module: torch.fx.GraphModule = field(repr=False)
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    values: tuple[Tensor, ...] = field(repr=False)
    """Values of the example's inputs, in order."""
    example: TorchTensors = field(repr=False)
    """Outputs for the example."""


def trace(function: NamedFunction, example: TorchTensors) -> Trace:
    """Trace `function` with a symbolic batch size.

    The batch is the first dimension of every ``batch/...`` input except ``batch/normal/...``.
    `torch.export` cannot trace `torch.func.grad`. `make_fx` can, and turns the gradient into
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

    read = []
    with _naming_operators(), quiet():
        example_outputs = function(example)
        traced, _ = _make_graph(positional, example, {}, MAX_BATCH)
        for node in traced.graph.find_nodes(op="call_function", target=_aten.view.default):
            # a runtime's operators may lay out their results otherwise: then a view is a copy
            node.target = _aten.reshape.default
        traced.graph.eliminate_dead_code()
        for name, node in zip(names, traced.graph.find_nodes(op="placeholder"), strict=True):
            if node.users:
                read.append(name)
            else:
                traced.graph.erase_node(node)
        traced.recompile()
    return Trace(
        traced, tuple(read), tuple(outputs), tuple(example[name] for name in read), example_outputs
    )


def lower(
    traced: Trace,
    table: Table,
    max_batch: int = MAX_BATCH,
    rewrite: Callable[[torch.fx.GraphModule], None] = lambda _module: None,
) -> CoreProgram:
    """Return a trace as a program of a runtime's operators, with positional inputs and outputs.

    Args:
        traced: the trace.
        table: decompositions of the operators that the runtime does not have.
        max_batch: maximum number of examples in a batch.
        rewrite: changes the lowered graph in place.

    Raises:
        ConfigError: an operator of the model cannot be lowered; the text names it.
    """
    with _naming_operators(), quiet():
        example = dict(zip(traced.inputs, traced.values, strict=True))
        without_side_effects = torch.func.functionalize(torch.fx.Interpreter(traced.module).run)
        graph, sizes = _make_graph(without_side_effects, example, table, max_batch)
        read_sizes_once(graph)
        share_results(graph)
        rewrite(graph)
        return core_program(graph, traced.values, sizes.var_to_range)


def share_results(module: torch.fx.GraphModule) -> None:
    """Merge nodes of a graph that compute the same, in place.

    The backward pass of a layer unfolds and centres its input a second time, for example. Random
    draws are not merged.
    """
    seen: dict[object, torch.fx.Node] = {}
    for node in module.graph.nodes:
        if node.op == "call_function" and torch.Tag.nondeterministic_seeded not in getattr(
            node.target, "tags", ()
        ):
            key = (node.target, repr(node.args), repr(sorted(node.kwargs.items())))
            if (before := seen.setdefault(key, node)) is not node:
                node.replace_all_uses_with(before)
    module.graph.eliminate_dead_code()
    module.recompile()


def _make_graph(
    function: Callable[..., Any], example: TorchTensors, table: Table, max_batch: int
) -> tuple[torch.fx.GraphModule, ShapeEnv]:
    """Return the graph of `function` with the operators in `table` decomposed, and its sizes.

    It is valid for `MIN_BATCH` to `max_batch` examples.

    Raises:
        ConfigError: the computation depends on the number of examples.
    """
    sizes = ShapeEnv()
    fakes = FakeTensorMode(shape_env=sizes, allow_non_fake_inputs=True)
    values = []
    for name, value in example.items():
        kinds = [DimDynamic.STATIC] * value.dim()
        if has_rows(name):
            kinds[0] = DimDynamic.DUCK  # one symbol for the rows of all inputs
        values.append(
            fakes.from_tensor(
                value, symbolic_context=StatelessSymbolicContext(kinds), source=ConstantSource(name)
            )
        )
    for symbol in list(sizes.var_to_range):
        sizes.constrain_symbol_range(symbol, MIN_BATCH, max_batch)
    with (
        fakes,
        ExportedOperators(),
        enable_python_dispatcher(),  # without it, some operators need sizes as numbers
        # mkldnn's LSTM is a single operator whose gradient cannot be traced
        torch.backends.mkldnn.flags(enabled=False),
        # nnpack takes batches of at least 16 only, which would add a condition on the batch
        torch.backends.nnpack.flags(enabled=False),
    ):
        graph = make_fx(
            function, decomposition_table=table, tracing_mode="real", _allow_non_fake_inputs=True
        )(*values)
    graph.graph.eliminate_dead_code()
    if sizes.guards:
        conditions = ", ".join(str(guard.expr) for guard in sizes.guards)
        for symbol in sizes.var_to_range:
            conditions = conditions.replace(str(symbol), "batch")
        frames = [guard.sloc.framework_loc for guard in sizes.guards]
        places = sorted(
            {
                f"{Path(frame.filename).name}, line {frame.lineno}"
                for frame in frames
                if isinstance(frame, FrameSummary)
            }
        )
        raise ConfigError(f"{DEPENDS_ON_BATCH}: {conditions} ({'; '.join(places)}). {USE_SHAPE}")
    return graph, sizes


@contextlib.contextmanager
def _naming_operators() -> Iterator[None]:
    """Turn exceptions of torch, of any type, into a ConfigError with the layer and the operator.

    They are read from the traceback, if it shows them. The user needs these and not the traceback.
    """
    try:
        yield
    except ConfigError as error:  # torch appends the position in its own graph to the text
        raise ConfigError(str(error).splitlines()[0]) from error
    except Exception as error:
        layer = operator = ""
        for frame, _ in traceback.walk_tb(error.__traceback__):
            module, func = frame.f_locals.get("self"), frame.f_locals.get("func")
            if isinstance(module, nn.Module) and not isinstance(module, torch.fx.GraphModule):
                layer = type(module).__name__
            if isinstance(func, torch._ops.OpOverload):
                operator = str(func)
        place = ", ".join(part for part in (layer, operator) if part)
        summary = next(iter(str(error).splitlines()), "")
        raise ConfigError(
            f"The model cannot be captured as a graph{f' ({place})' if place else ''}: "
            f"{type(error).__name__}: {summary}"
        ) from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide an exporter's progress and its notices about packages that it does not need."""
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
