"""Gradients of a loss by its weights: by torch.func for capture and batching, or by the tape."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import torch
from torch import Tensor

from algorithms.core.contract import TorchTensors

Aux = TypeVar("Aux")
Loss = Callable[[TorchTensors], tuple[Tensor, Aux]]
"""Function from weights to a scalar loss and any other results."""

_TAPE: ContextVar[bool] = ContextVar("tape", default=False)


@contextmanager
def tape() -> Iterator[None]:
    """Make `grad_and_value` use autograd's tape within this context.

    A step on this processor then takes two thirds of the time, and torch's compiler is not loaded.
    Do not trace or run under ``vmap`` within it.
    """
    token = _TAPE.set(True)
    try:
        yield
    finally:
        _TAPE.reset(token)


def is_taping() -> bool:
    """Return True if steps are run on autograd's tape, not traced."""
    return _TAPE.get()


def grad_and_value(loss: Loss[Aux], weights: TorchTensors) -> tuple[TorchTensors, Tensor, Aux]:
    """Return the gradients of `loss` at these weights, its value, and its other results.

    Gradients have the weights' keys; they are zero if the loss does not depend on a weight.
    """
    if not is_taping():
        gradients, (value, aux) = torch.func.grad_and_value(loss, has_aux=True)(weights)
        return gradients, value, aux
    leaves = {key: weight.detach().requires_grad_() for key, weight in weights.items()}
    with torch.enable_grad():
        value, aux = loss(leaves)
        leaf_gradients = torch.autograd.grad(value, list(leaves.values()), materialize_grads=True)
    return (
        dict(zip(leaves, leaf_gradients, strict=True)),
        value.detach(),
        _detached(aux),
    )


def _detached(results: Any) -> Any:
    """Return tensors, tuples and mappings of tensors without their history."""
    if isinstance(results, Tensor):
        return results.detach()
    if isinstance(results, tuple):
        return tuple(map(_detached, results))
    return {key: _detached(value) for key, value in results.items()}
