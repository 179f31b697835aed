"""A captured function as an ExecuTorch program: positional inputs and outputs, one method
``forward``, a dynamic batch up to a maximum."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx.passes.infra.pass_base import PassResult

from export.capture import Trace, lower, quiet
from export.lowering.executorch import executorch_decompositions
from export.runtimes import registered_operators
from export.shortcuts import known_results, needed_passes, no_generated_code
from wire.bundle import EXECUTORCH, PORTABLE
from wire.errors import ConfigError

METHOD = "forward"


@dataclass(frozen=True)
class ExecutorchProgram:
    """A program's bytes, its operators (what XNNPACK carries out as
    ``delegated/XnnpackBackend/NAME``) and the memory that the runtime plans for its tensors, in
    bytes."""

    data: bytes = field(repr=False)
    operators: dict[str, int]
    memory_bytes: int


def to_executorch(traced: Trace, max_batch: int) -> dict[str, ExecutorchProgram]:
    """A trace as a program for each of ExecuTorch's two ways, `wire.bundle.EXECUTORCH` and
    `wire.bundle.PORTABLE`.

    Raises:
        ConfigError: an operator cannot be lowered, or ExecuTorch's runtime does not have it; the
        text names it.
    """
    try:
        with quiet():
            from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"programs for ExecuTorch need the package {error.name}: pip install "
            "'shoal[executorch]'"
        ) from None
    from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower

    program = lower(traced, executorch_decompositions(), max_batch, infer_batch_in_views)
    try:
        with quiet(), no_generated_code(), known_results(), needed_passes():
            edge = to_edge_transform_and_lower(
                program.exported, compile_config=EdgeCompileConfig(_check_ir_validity=False)
            )
            edge = edge.transform([drop_copies])
            return {
                EXECUTORCH: _write(edge.to_backend(XnnpackPartitioner())),
                PORTABLE: _write(edge),
            }
    except ConfigError:
        raise
    except (
        Exception
    ) as error:  # torch raises many kinds; the user needs the operator, not the trace
        raise ConfigError(
            f"the graph cannot be written for ExecuTorch: {type(error).__name__}: "
            f"{str(error).splitlines()[0]}"
        ) from error


def _write(edge: Any) -> ExecutorchProgram:
    from executorch.exir import ExecutorchBackendConfig
    from executorch.exir.passes import MemoryPlanningPass
    from executorch.exir.passes.sym_shape_eval_pass import ConstraintBasedSymShapeEvalPass

    planning = MemoryPlanningPass(alloc_graph_input=False)  # inputs stay where the caller has them
    made = edge.to_executorch(
        ExecutorchBackendConfig(
            sym_shape_eval_pass=ConstraintBasedSymShapeEvalPass(), memory_planning_pass=planning
        )
    )
    operators = _operators(made)
    own = {name for name in operators if not name.startswith("delegated/")}
    if missing := sorted(own - registered_operators()):
        raise ConfigError(
            f"ExecuTorch's runtime has no {', '.join(missing)}: the graph cannot be carried out"
        )
    return ExecutorchProgram(
        bytes(made.buffer),
        operators,
        sum(made.executorch_program.execution_plan[0].non_const_buffer_sizes),
    )


def drop_copies(module: torch.fx.GraphModule) -> PassResult:
    """Remove copies of what was computed: ExecuTorch's operators never share memory and always
    write row-major."""
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
    """Write the size of a view that follows from the batch as -1: XNNPACK takes no other dynamic
    one."""
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


def _operators(made: Any) -> dict[str, int]:
    plan = made.executorch_program.execution_plan[0]
    counts: Counter[str] = Counter()
    for chain in plan.chains:
        for instruction in chain.instructions:
            arguments = instruction.instr_args
            if hasattr(arguments, "op_index"):
                operator = plan.operators[arguments.op_index]
                counts[
                    f"{operator.name}.{operator.overload}" if operator.overload else operator.name
                ] += 1
    for part in made.exported_program(METHOD).graph_module.children():
        if hasattr(part, "original_module"):
            for node in part.original_module.graph.nodes:
                if node.op == "call_function":
                    counts[f"delegated/{part.backend_id}/{node.target.__name__}"] += 1
    return dict(sorted(counts.items()))
