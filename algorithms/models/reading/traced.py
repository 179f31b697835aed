"""Trace of a model's forward pass as a graph of calls, by `torch.fx`, and properties of calls."""

import operator
from typing import Any

import torch.nn.functional as F
from torch import Tensor, fx, nn

from algorithms.models.adoption.attention import Attention
from algorithms.models.adoption.dropout import Dropped
from algorithms.models.adoption.stacked import Stacked
from algorithms.models.reading import views
from algorithms.models.reading.layers import Unsupported
from algorithms.models.reading.plain import at_line


class Whole(nn.Module):
    """Extractor and head under their names."""

    def __init__(self, extractor: nn.Module, head: nn.Module | None = None) -> None:
        super().__init__()
        self.extractor, self.head = extractor, nn.Identity() if head is None else head

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(self.extractor(x))
        return output


class _Tracer(fx.Tracer):
    proxy_buffer_attributes = True

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, (Dropped, Attention, Stacked)) or super().is_leaf_module(
            m, module_qualified_name
        )


def trace(whole: Whole) -> fx.Graph:
    """Return the calls of a forward pass.

    Raises:
        Unsupported: `torch.fx` cannot trace it.
    """
    try:
        graph = _Tracer().trace(whole)
    except (
        RuntimeError,
        TypeError,
        ValueError,
        AttributeError,
        LookupError,
        NotImplementedError,
    ) as error:
        raise Unsupported(f"what the model does cannot be followed{at_line(error)}") from None
    fx.GraphModule(whole, graph).graph.eliminate_dead_code()
    return graph


def in_place(node: fx.Node, whole: nn.Module) -> bool:
    """Return True if a call overwrites its first input."""
    if node.op == "call_module":
        return bool(getattr(whole.get_submodule(str(node.target)), "inplace", False))
    return (
        node.target is operator.iadd
        or bool(node.kwargs.get("inplace"))
        or (node.target is F.relu and len(node.args) > 1)
    )


def alone(node: Any, whole: nn.Module) -> bool:
    """Return True if a result has one reader.

    If the result may be a view of another one, this applies to the other one as well.
    """
    if len(node.users) != 1:
        return False
    layer = type(whole.get_submodule(node.target)) if node.op == "call_module" else None
    called = getattr(node.target, "__name__", node.target)
    view = layer in (nn.Identity, nn.Flatten) or (
        node.op != "call_module" and called in (*views.MOVING, "contiguous", "getitem")
    )
    return not view or alone(node.args[0], whole)


def place(node: fx.Node) -> str:
    """Return the name of the module whose forward pass makes a call."""
    stack = node.meta.get("nn_module_stack") or {}
    return next(reversed([str(name) for name, _ in stack.values()]), "") or "the model"
