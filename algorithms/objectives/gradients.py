"""Gradients of a loss by its weights, in the form that a graph can be captured or batched from, or
by autograd's own tape."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from algorithms.core.contract import TorchTensors

Aux = TypeVar("Aux")
Loss = Callable[[TorchTensors], tuple[Tensor, Aux]]
"""From weights to a scalar, and anything else that was computed on the way."""

_TAPE: ContextVar[bool] = ContextVar("tape", default=False)


@contextmanager
def tape() -> Iterator[None]:
    """Within, `grad_and_value` uses autograd's tape: a step on this processor takes two thirds of
    the time, and torch's compiler is not loaded. Nothing that is traced or run under ``vmap``
    belongs in here."""
    token = _TAPE.set(True)
    try:
        yield
    finally:
        _TAPE.reset(token)


def grad_and_value(loss: Loss[Aux], weights: TorchTensors) -> tuple[TorchTensors, Tensor, Aux]:
    """The gradients of `loss` at these weights, by the same keys (zero where it does not depend on
    one), its value, and the rest."""
    if not _TAPE.get():
        gradients, (value, aux) = torch.func.grad_and_value(loss, has_aux=True)(weights)
        return gradients, value, aux
    leaves = {key: weight.detach().requires_grad_() for key, weight in weights.items()}
    with torch.enable_grad():
        value, aux = loss(leaves)
        made = torch.autograd.grad(value, list(leaves.values()), materialize_grads=True)
    return (
        dict(zip(leaves, made, strict=True)),
        value.detach(),
        tree_map_only(Tensor, Tensor.detach, aux),
    )
