"""Contexts that skip slow work of torch, onnxscript and ExecuTorch that an export does not need.

Each one replaces a function of theirs in the whole process, where nothing else should transform
graphs meanwhile. The exported bytes stay the same.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import GraphModule, Interpreter
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from wire.errors import ConfigError

LOOKS_FOR: dict[str, set[str]] = {
    "XNNPACKRemoveCloneOpsTransform": {"clone", "_clone_dim_order"},
    "DimOrderOpsRevertPass": {"_clone_dim_order", "_to_dim_order_copy"},
    "ConvertToUpsampleBilinear2d": {"index", "_unsafe_index"},
    "ConvertToLinearPass": {"mm", "addmm", "linear"},
    "PropagateCustomMetaPass": set(),
    "ConvertToSDPAPass": {"where"},
    "FuseBatchNormPass": {"native_batch_norm", "_native_batch_norm_legit_no_training"},
    "DecomposeBatchNorm": {"native_batch_norm", "_native_batch_norm_legit_no_training"},
    "FuseActivationPass": {"relu", "hardtanh"},
    "DecomposeConcatenate": {"cat"},
    "RemoveGetItemPass": {"max_pool2d_with_indices", "max"},
    "InsertPadQDQPass": set(),
    "Conv1dUnsqueezePass": {"convolution"},
    "PReLUReshapePass": {"_prelu_kernel", "prelu"},
    "ChannelsLastTaggedReshapePass": {
        *(
            "convolution",
            "upsample_bilinear2d",
            "mean",
            "avg_pool2d",
            "max_pool2d",
            "max_pool2d_with_indices",
            "amax",
            "max",
        ),
        *("_prelu_kernel", "prelu"),
    },
    "RemoveRedundantCopyPass": {"_to_copy", "_to_dim_order_copy"},
}
"""Operators that a pass of XNNPACK changes, by the pass's name.

A pass is skipped in a graph without any of its operators. Passes for quantised operators have an
empty set, as graphs have no such operators. A pass that is not listed always runs.
"""


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Turn Python's garbage collection off while the context is open.

    Graphs are made of cycles, and each collection would search all objects of torch.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def no_generated_code() -> Iterator[None]:
    """Generate a graph's Python code at its first call and not after each change.

    Most graphs are never called.
    """
    generate = GraphModule.recompile

    def generate_later(module: GraphModule) -> None:
        if info := getattr(module.graph._codegen, "pytree_info", None):
            # the nesting of arguments and results
            module._in_spec, module._out_spec = info.in_spec, info.out_spec
        module._code = ""  # ExecuTorch reads a module's code for debugging messages
        type(module).forward = generate_and_call

    def generate_and_call(module: GraphModule, *args: Any, **kwargs: Any) -> Any:
        generate(module)
        return module.forward(*args, **kwargs)

    with _replaced(GraphModule, "recompile", generate_later):
        yield


@contextmanager
def known_results() -> Iterator[None]:
    """Cache the shapes and types of operators' results in passes over graphs.

    ExecuTorch has dozens of passes. Each one goes through the whole graph, and few change anything.
    Results of equal shape and type are the same tensor without values.
    """
    compute = Interpreter.call_function
    cache: dict[Any, tuple[Any, Any]] = {}
    like: dict[Any, FakeTensor] = {}

    def one_of_its_kind(result: Any) -> Any:
        if isinstance(result, (tuple, list)):
            return type(result)(map(one_of_its_kind, result))
        if not isinstance(result, FakeTensor) or result.constant is not None:
            return result
        sizes = (
            _identity(tuple(result.shape)),
            _identity(result.stride()),
            _identity(result.storage_offset()),
        )
        return like.setdefault(
            (id(result.fake_mode), result.dtype, result.device, result.requires_grad, sizes), result
        )

    def call_function(
        interpreter: Interpreter, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        modes = _get_current_dispatch_mode_stack()
        # a trace must see every call
        if len(modes) != 1 or not isinstance(modes[0], FakeTensorMode):
            return compute(interpreter, target, args, kwargs)
        key = (
            id(modes[0]),
            getattr(target, "_op", target),
            _identity(args),
            _identity(tuple(kwargs.items())),
        )
        if key not in cache:
            result = one_of_its_kind(compute(interpreter, target, args, kwargs))
            # the entry holds the arguments, as another tensor gets the id of one that is deleted
            cache[key] = (modes, args, kwargs), result
        return cache[key][1]

    with _replaced(Interpreter, "call_function", call_function):
        yield


@contextmanager
def needed_passes() -> Iterator[None]:
    """Skip those passes of XNNPACK that would not change a part of a program.

    A program has dozens of parts, there are seventeen passes, and each pass traces the part again.
    """
    from executorch.backends.xnnpack import xnnpack_preprocess

    every: Any = xnnpack_preprocess.XNNPACKPassManager

    def needed(program: torch.export.ExportedProgram, passes: list[type] | None = None) -> Any:
        manager = every(program, passes)
        if not passes:
            nodes: list[Any] = [node for node in program.graph.nodes if node.op == "call_function"]
            # "aten.mul.Tensor"
            operators = {part for node in nodes for part in node.target.__name__.split(".")}
            unneeded = {name for name, those in LOOKS_FOR.items() if operators.isdisjoint(those)}
            if all(node.all_input_nodes for node in nodes):
                unneeded.add("ConstPropPass")  # it computes values that depend on no input
            manager.passes = [one for one in manager.passes if one.__name__ not in unneeded]
        return manager

    with _replaced(xnnpack_preprocess, "XNNPACKPassManager", needed):
        yield


@contextmanager
def resized_loops() -> Iterator[None]:
    """Let the tensors of a loop in an ExecuTorch program take the size of the batch.

    ExecuTorch 1.5 writes states and results into tensors of the largest batch, which fails for a
    smaller one. A state is copied by an operator that resizes. A result gets its size before the
    loop from a state or an input of the same shape, and every loop of `export.recurrent` has one.
    """
    from executorch.exir.emit._emitter import _Emitter
    from executorch.exir.schema import Bool, EValue, Instruction, Int, KernelCall

    emit = _Emitter._emit_scan

    def emit_resizing(emitter: Any, args: Any, outputs: Any) -> Any:
        _, init, xs, _ = args
        copy, unsqueeze, in_place = (
            emitter._get_operator(name=name, overload=overload)[0]
            for name, overload in (
                ("aten::copy", "out"),
                ("aten::unsqueeze_copy", "out"),
                ("aten::copy_", ""),
            )
        )
        no, zero = (emitter._emit_evalue(EValue(value)).id for value in (Bool(False), Int(0)))
        for result in outputs[len(init) :]:
            sizes = list(result.tensor.sizes)
            for source in (*init, *xs):
                if list(source.tensor.sizes) == sizes[1:]:
                    call = KernelCall(unsqueeze, [source.id, zero, result.id, result.id])
                    break
                if list(source.tensor.sizes) == sizes:
                    call = KernelCall(copy, [source.id, source.id, no, result.id, result.id])
                    break
            else:
                raise ConfigError(f"a loop has no input of the shape of its result, {sizes}")
            emitter.chain.instructions.append(Instruction(call))
        results = emit(emitter, args, outputs)
        for call in (instruction.instr_args for instruction in emitter.chain.instructions):
            if isinstance(call, KernelCall) and call.op_index == in_place:
                state, source, flag, _ = call.args
                call.op_index, call.args = copy, [source, source, flag, state, state]
        return results

    with _replaced(_Emitter, "_emit_scan", emit_resizing):
        yield


@contextmanager
def likely_patterns() -> Iterator[None]:
    """Let onnxscript look for a pattern's further output nodes only if the first one matches.

    Otherwise it collects all nodes of a graph for every node and tries those of an operator in
    pairs. That time grows with the square of the graph's size, and the graph of a recurrent layer
    has a part for each sample of a window.
    """
    from onnx_ir import Graph
    from onnxscript.rewriter._matcher import SimplePatternMatcher

    match = SimplePatternMatcher.match

    def match_if_likely(
        matcher: Any, model: Any, graph: Any, node: Any, *, verbose: int = 0, **options: Any
    ) -> Any:
        if not matcher.pattern.has_single_output_node:
            matcher._tracer, matcher._graph = (
                options.get("tracer"),
                graph if isinstance(graph, Graph) else graph.graph,
            )
            matcher._init_match(verbose)
            if not matcher._match_node(matcher.pattern.output_nodes[0], node):
                return matcher._match
        return match(matcher, model, graph, node, verbose=verbose, **options)

    with _replaced(SimplePatternMatcher, "match", match_if_likely):
        yield


def _identity(value: Any) -> Any:
    """Return a key of an operator's arguments: equal keys mean equal results.

    The key of a tensor is its id.
    """
    if isinstance(value, (tuple, list)):
        return tuple(map(_identity, value))
    if isinstance(value, torch.SymInt):
        return "size", id(value.node.shape_env), value.node.expr
    return (type(value), value) if isinstance(value, (int, float, str, torch.dtype)) else id(value)


@contextmanager
def _replaced(owner: Any, name: str, new: Callable[..., Any]) -> Iterator[None]:
    old = getattr(owner, name)
    setattr(owner, name, new)
    try:
        yield
    finally:
        setattr(owner, name, old)
