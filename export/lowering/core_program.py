"""Makes a `torch.export.ExportedProgram`, which the converters read, of a graph's operators."""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.utils._pytree import tree_structure
from torch.utils._sympy.value_ranges import ValueRanges


class CoreProgram(ExportedProgram):
    """An exported program that skips decompositions that would change nothing.

    Each one would take seconds.
    """

    def run_decompositions(
        self, decomp_table: dict[Any, Any] | None = None, **options: Any
    ) -> ExportedProgram:
        """Return the decomposed program, or this one if the table has none of its operators."""
        called = [node for node in self.graph.nodes if node.op == "call_function"]
        operators = {
            node.target for node in called if not isinstance(node.meta["val"], torch.SymInt)
        }
        if decomp_table is not None and not operators & decomp_table.keys():
            return self
        decomposed: ExportedProgram = super().run_decompositions(decomp_table, **options)
        return decomposed


def core_program(
    module: torch.fx.GraphModule, values: tuple[Tensor, ...], sizes: dict[Any, ValueRanges[Any]]
) -> CoreProgram:
    """Return the program of a graph without side effects and without operators to decompose.

    `values` are the inputs of an example. `sizes` are the ranges of the symbolic sizes. Constants
    of the graph become the first inputs of the program's graph, as in every exported program.
    """
    inputs = [
        InputSpec(InputKind.USER_INPUT, TensorArgument(node.name), None)
        for node in module.graph.find_nodes(op="placeholder")
    ]
    constants, lifted = _lift_constants(module)
    results = list(module.graph.output_node().args[0])  # type: ignore[arg-type]
    module.graph.output_node().args = (tuple(results),)
    module.recompile()
    outputs = [
        OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(node.name), None) for node in results
    ]
    call = ModuleCallSignature(
        [], [], tree_structure((values, {})), tree_structure([0] * len(outputs))
    )
    return CoreProgram(
        root=module,
        graph=module.graph,
        graph_signature=ExportGraphSignature([*lifted, *inputs], outputs),
        state_dict={},
        range_constraints=sizes,
        module_call_graph=[ModuleCallEntry("", call)],
        example_inputs=(values, {}),
        constants=constants,
    )


def read_sizes_once(module: torch.fx.GraphModule) -> None:
    """Read each size that depends on the batch once, from an input of the graph.

    The number of a tensor's values becomes a product of sizes, as runtimes have no operator for it.
    """
    graph = module.graph
    inputs = graph.find_nodes(op="placeholder")
    size_nodes: dict[Any, torch.fx.Node] = {}
    with graph.inserting_after(inputs[-1]):
        for node in inputs:
            for d, size in enumerate(node.meta["val"].shape):
                if isinstance(size, torch.SymInt) and size.node.expr not in size_nodes:
                    size_nodes[size.node.expr] = _computed(
                        graph, torch.ops.aten.sym_size.int, (node, d), size
                    )
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.sym_numel.default):
        count: torch.fx.Node | int = 1
        with graph.inserting_before(node):
            for d, size in enumerate(node.args[0].meta["val"].shape):
                factor = (
                    size
                    if isinstance(size, int)
                    else _computed(graph, torch.ops.aten.sym_size.int, (node.args[0], d), size)
                )
                if isinstance(count, int) and isinstance(factor, int):
                    count *= factor
                else:
                    sizes = (n if isinstance(n, int) else n.meta["val"] for n in (count, factor))
                    value = operator.mul(*sizes)
                    count = _computed(graph, operator.mul, (count, factor), value)
        node.replace_all_uses_with(count)
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.sym_size.int):
        if (
            size_node := size_nodes.get(node.meta["val"].node.expr)
        ) is not None and size_node is not node:
            node.replace_all_uses_with(size_node)
    graph.eliminate_dead_code()


def _computed(
    graph: torch.fx.Graph, function: Callable[..., Any], arguments: tuple[Any, ...], value: Any
) -> torch.fx.Node:
    node = graph.call_function(function, arguments)
    node.meta["val"] = value
    return node


def _lift_constants(module: torch.fx.GraphModule) -> tuple[dict[str, Any], list[InputSpec]]:
    """Replace the graph's constants by inputs before the others.

    Return the constants by name, and their entries of the signature. Bodies of loops stay.
    """
    constants: dict[str, Any] = {}
    lifted: dict[int, torch.fx.Node] = {}
    specs = []
    first = next(iter(module.graph.nodes))
    for node in module.graph.find_nodes(op="get_attr"):
        value = operator.attrgetter(node.target)(module)
        if isinstance(value, torch.fx.GraphModule):  # the steps of a loop
            continue
        if id(value) not in lifted:
            name = f"constant_{len(constants)}"
            with module.graph.inserting_before(first):
                lifted[id(value)] = module.graph.placeholder(name)
            lifted[id(value)].meta = dict(node.meta)
            constants[name] = value.detach()
            specs.append(
                InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(lifted[id(value)].name), name)
            )
        node.replace_all_uses_with(lifted[id(value)])
        module.graph.erase_node(node)
    return constants, specs
