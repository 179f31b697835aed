"""Writes a captured function as an ExecuTorch program.

A program has positional inputs and outputs, the single method ``forward``, and a dynamic batch with
a maximum size.
"""

from collections import Counter
from typing import Any

import torch
from torch.fx.passes.infra.pass_base import PassResult

from export.capture import Trace, lower, quiet
from export.lowering.executorch import executorch_decompositions
from export.lowering.shared import OTHER_LAYER
from export.runtimes import registered_operators
from export.shortcuts import (
    known_results,
    needed_passes,
    no_generated_code,
    resized_loops,
)
from wire.bundle import EXECUTORCH, PORTABLE, Program
from wire.errors import ConfigError

METHOD = "forward"
INSTEAD = f"{OTHER_LAYER}, or export for boards alone (runtimes onnx)."
"""Ways out of what ExecuTorch refuses."""


def to_executorch(traced: Trace, max_batch: int) -> dict[str, tuple[Program, bytes]]:
    """Return a trace as two programs: `wire.bundle.EXECUTORCH` and `wire.bundle.PORTABLE`.

    The programs' file names are empty. Batches have at most `max_batch` examples.

    Raises:
        ConfigError: an operator cannot be lowered, or ExecuTorch's runtime does not have it; the
            text names it. Also if ExecuTorch is not installed.
    """
    try:
        with quiet():
            from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"Programs for ExecuTorch need the package {error.name}: pip install "
            "'shoal[executorch]'"
        ) from None
    from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower

    program = lower(traced, executorch_decompositions(), max_batch, infer_batch_in_views)
    try:
        with quiet(), no_generated_code(), known_results(), needed_passes():
            edge = to_edge_transform_and_lower(
                program, compile_config=EdgeCompileConfig(_check_ir_validity=False)
            )
            edge = edge.transform([drop_copies])
            return {
                EXECUTORCH: _write(edge.to_backend(XnnpackPartitioner()), max_batch),
                PORTABLE: _write(edge, max_batch),
            }
    except ConfigError:
        raise
    # torch raises exceptions of many types, and the user needs the operator, not the traceback
    except Exception as error:
        raise ConfigError(
            f"the graph cannot be written for ExecuTorch: {type(error).__name__}: "
            f"{str(error).splitlines()[0]}. {INSTEAD}"
        ) from error


def _write(edge: Any, max_batch: int) -> tuple[Program, bytes]:
    from executorch.exir import ExecutorchBackendConfig
    from executorch.exir.passes import MemoryPlanningPass
    from executorch.exir.passes.sym_shape_eval_pass import ConstraintBasedSymShapeEvalPass

    planning = MemoryPlanningPass(alloc_graph_input=False)  # inputs stay in the caller's memory
    with resized_loops():
        program = edge.to_executorch(
            ExecutorchBackendConfig(
                sym_shape_eval_pass=ConstraintBasedSymShapeEvalPass(), memory_planning_pass=planning
            )
        )
    plan = program.executorch_program.execution_plan[0]
    counts: Counter[str] = Counter()
    for chain in plan.chains:
        for instruction in chain.instructions:
            if hasattr(instruction.instr_args, "op_index"):
                called = plan.operators[instruction.instr_args.op_index]
                counts[f"{called.name}.{called.overload}" if called.overload else called.name] += 1
    plan_operators = set(counts)
    for part in program.exported_program(METHOD).graph_module.children():
        if hasattr(part, "original_module"):
            for node in part.original_module.graph.nodes:
                if node.op == "call_function":
                    counts[f"delegated/{part.backend_id}/{node.target.__name__}"] += 1
    if missing := sorted(plan_operators - registered_operators()):
        raise ConfigError(
            f"ExecuTorch's runtime cannot run the graph: it has no {', '.join(missing)}. {INSTEAD}"
        )
    payload, memory_bytes = bytes(program.buffer), sum(plan.non_const_buffer_sizes)
    return Program("", max_batch, dict(sorted(counts.items())), len(payload), memory_bytes), payload


def drop_copies(module: torch.fx.GraphModule) -> PassResult:
    """Remove copies of computed tensors.

    They are not needed, as ExecuTorch's operators never share memory and always write row-major.
    """
    for node in list(module.graph.nodes):
        if (
            node.op == "call_function"
            and "_clone_dim_order" in str(node.target)
            and node.args[0].op != "placeholder"
        ):
            node.replace_all_uses_with(node.args[0])
    module.graph.eliminate_dead_code()
    module.recompile()
    return PassResult(module, True)


def infer_batch_in_views(module: torch.fx.GraphModule) -> None:
    """Write the size of a view that depends on the batch as -1, XNNPACK's only dynamic size."""
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target in (
            torch.ops.aten.view.default,
            torch.ops.aten.reshape.default,
        ):
            shape = list(node.args[1])
            symbolic = [i for i, size in enumerate(shape) if not isinstance(size, int)]
            if len(symbolic) == 1 and -1 not in shape:
                node.args = (node.args[0], [*shape[: symbolic[0]], -1, *shape[symbolic[0] + 1 :]])
    module.graph.eliminate_dead_code()
    module.recompile()
