"""Loading of the probe that is exported beside a bundle; the aggregator needs no model code."""

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
    """Return the probe in a file that `export.bundle.save_probe` wrote beside this bundle.

    `bundle`: digest of the bundle. The file is the operator's own and is trusted like code.

    Raises:
        BundleError: the file has another content or belongs to another bundle, or this version of
            torch cannot read it.
    """
    extra = {PROBE_FILE: ""}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # from torch's own modules
            module = torch.export.load(io.BytesIO(payload), extra_files=extra).module()
        description = msgspec.json.decode(extra[PROBE_FILE], type=ProbeDescription)
    except Exception as error:  # torch raises many types of errors for other files
        raise BundleError(
            f"probe file (server.pt2) of {len(payload)} bytes: damaged, or of another torch: "
            f"{type(error).__name__}: {str(error).splitlines()[0]}"
        ) from None
    if description.bundle != bundle:
        raise BundleError(
            f"probe file (server.pt2): it was exported with bundle {description.bundle[:12]}, but "
            f"device.shoal is bundle {bundle[:12]}; take both from one `shoal export`"
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

    details = description
    return Probe(
        run,
        details.input_shape,
        details.norm_layers,
        details.needs,
        predict,
        predict_folded,
        details.network,
        details.of_ids,
    )


def _answer(program: GraphModule, needs: Sequence[str], tensors: TorchTensors, x: Tensor) -> Tensor:
    answer: Tensor = program(*(tensors[name] for name in needs), x)
    return answer


def _first_output(module: GraphModule, fold: bool) -> GraphModule:
    """Return a copy that computes the first output only.

    With `fold`, a BatchNorm layer after a convolution becomes a part of it.
    """
    module = GraphModule(module, deepcopy(module.graph))
    graph = module.graph
    graph.set_codegen(CodeGen())  # flat inputs, without the nested arguments of torch.export
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
    """Fold the scale and bias of a BatchNorm layer with running statistics into its convolution."""
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
    for user in list(norm.users):  # element 0 of the layer's outputs
        user.replace_all_uses_with(folded)
