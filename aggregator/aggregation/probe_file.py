"""Reads the probe that was exported beside a bundle, so that the aggregator needs no model code."""

import io
import warnings
from collections.abc import Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.graph import CodeGen

from algorithms.core.contract import Probe, TorchTensors
from algorithms.core.probe import PROBE_FILE, ProbeDescription
from wire.errors import BundleError

aten = torch.ops.aten


def load_probe(payload: bytes, bundle: str) -> Probe:
    """Read a file written by `export.bundle.save_probe` with the bundle of this digest. It is the
    operator's own file: it is loaded as code is.

    Raises:
        BundleError: not such a file, one of another bundle, or one of another version of torch that
        this one cannot read.
    """
    extra = {PROBE_FILE: ""}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch's own, of its own parts
            module = torch.export.load(io.BytesIO(payload), extra_files=extra).module()
        description = msgspec.json.decode(extra[PROBE_FILE], type=ProbeDescription)
    except Exception as error:  # torch raises many kinds for a file that is not its own
        raise BundleError(
            f"probe file of {len(payload)} bytes: {type(error).__name__}: "
            f"{str(error).splitlines()[0]}"
        ) from None
    if description.bundle != bundle:
        raise BundleError(
            f"probe file (server.pt2): it was exported with bundle {description.bundle[:12]}, "
            "expected one exported with "
            f"bundle {bundle[:12]} (device.shoal)"
        )

    def run(tensors: TorchTensors, x: Tensor) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        probabilities, *met = module(*(tensors[name] for name in description.needs), x)
        return probabilities, list(zip(met[::2], met[1::2], strict=True))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        predict, predict_folded = (
            partial(_answer, _first_output(module, fold), description.needs)
            for fold in (False, True)
        )

    held = description
    return Probe(
        run,
        held.input_shape,
        held.norm_layers,
        held.needs,
        predict,
        predict_folded,
        held.network,
        held.of_ids,
    )


def _answer(program: GraphModule, needs: Sequence[str], tensors: TorchTensors, x: Tensor) -> Tensor:
    answer: Tensor = program(*(tensors[name] for name in needs), x)
    return answer


def _first_output(module: GraphModule, fold: bool) -> GraphModule:
    """A copy that computes and returns the first output alone; with `fold`, BatchNorm layers after
    a convolution are part of it."""
    module = GraphModule(module, deepcopy(module.graph))
    graph = module.graph
    graph.set_codegen(
        CodeGen()
    )  # inputs as they come, not as the nested arguments that torch.export had
    output = graph.output_node()
    output.args = (output.args[0][0],)  # type: ignore[index]
    for guard in graph.find_nodes(op="call_module", target="_guards_fn"):
        graph.erase_node(guard)
    graph.eliminate_dead_code()
    if fold:
        for norm in graph.find_nodes(
            op="call_function", target=aten._native_batch_norm_legit_no_training.default
        ):
            before = norm.args[0]
            if (
                isinstance(before, Node)
                and before.target is aten.convolution.default
                and len(before.users) == 1
                and not before.args[6]
            ):
                _fold(graph, before, norm)
        graph.eliminate_dead_code()
    module.recompile()
    return module


def _fold(graph: Graph, conv: Node, norm: Node) -> None:
    """Put the scale and bias that a BatchNorm layer is, with running statistics, into the
    convolution before it."""
    arguments: Any = conv.args
    x, weight, bias, stride, *others = arguments
    _, gamma, beta, mean, variance, _, eps = norm.args
    with graph.inserting_before(norm):
        scale = graph.call_function(
            aten.rsqrt.default, (graph.call_function(aten.add.Tensor, (variance, eps)),)
        )
        scale = scale if gamma is None else graph.call_function(aten.mul.Tensor, (scale, gamma))
        shape = [-1, *[1] * (len(stride) + 1)]
        column = graph.call_function(aten.reshape.default, (scale, shape))
        shift = (
            graph.call_function(aten.neg.default, (mean,))
            if bias is None
            else graph.call_function(aten.sub.Tensor, (bias, mean))
        )
        shift = graph.call_function(aten.mul.Tensor, (shift, scale))
        shift = shift if beta is None else graph.call_function(aten.add.Tensor, (shift, beta))
        scaled = graph.call_function(aten.mul.Tensor, (weight, column))
        folded = graph.call_function(aten.convolution.default, (x, scaled, shift, stride, *others))
    for user in list(norm.users):  # element 0 of what the layer returns
        user.replace_all_uses_with(folded)
