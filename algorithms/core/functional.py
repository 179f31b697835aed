"""Calls of a torch model with tensors of an algorithm in place of the model's own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from algorithms.core.contract import TorchTensors
from algorithms.models.adoption.frozen import fixed_norms, frozen_slot, frozen_tensors
from wire.arrays import names

T = TypeVar("T")


def seeded(make: Callable[[], T], seed: int = 0) -> T:
    """Return the result of `make` with torch's global generator at this seed.

    The state of the generator is restored afterwards.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def functional(
    model: nn.Module, tensors: TorchTensors, x: Tensor, training: bool
) -> tuple[Tensor, TorchTensors]:
    """Call `model` with other parameters and running statistics, without changing the model.

    `tensors` are of role shared, statistic or private. Frozen tensors come from their slot if there
    is one, else from the model.

    Returns:
        The result of the model, and the running statistics after the call by ``ROLE/NAME``.
    """
    roles = {names.name_of(k): k for k in names.of_role(tensors, *names.EXCHANGED, names.PRIVATE)}
    parts = _parts_of(model)
    defaults = frozen_tensors(model) if parts.has_frozen else {}
    frozen = {name: tensors.get(frozen_slot(name), value) for name, value in defaults.items()}
    parameters = {name: tensors[roles[name]] for name in parts.parameters}
    counters = {name: torch.zeros((), dtype=torch.int64) for name in parts.counters}
    buffers = {name: tensors[roles[name]].clone() for name in parts.statistics}
    model.train(training)
    for layer in fixed_norms(model).values() if parts.has_frozen else ():
        layer.eval()
    result = torch.func.functional_call(
        model, {**frozen, **parameters, **buffers, **counters}, (x,)
    )
    return result, {roles[k]: v for k, v in buffers.items()}


@dataclass(frozen=True)
class _Parts:
    """Names of a model's parts.

    They are cached, because a walk through the layers takes as long as a small batch.
    """

    weights: tuple[nn.Parameter, ...]
    trains: tuple[bool, ...]
    """True for each parameter of `weights` that was trainable when this was cached."""
    parameters: tuple[str, ...]
    """Names of the parameters that are not frozen."""
    statistics: tuple[str, ...]
    """Names of the running statistics that are not frozen."""
    counters: tuple[str, ...]
    has_frozen: bool
    """True if anything is frozen.

    Frozen tensors are looked up at each call, because `Module.to` replaces them.
    """


_PARTS: WeakKeyDictionary[nn.Module, _Parts] = WeakKeyDictionary()


def _parts_of(model: nn.Module) -> _Parts:
    parts = _PARTS.get(model)
    if parts is None or tuple(weight.requires_grad for weight in parts.weights) != parts.trains:
        parameters = dict(model.named_parameters())
        frozen, buffers = frozen_tensors(model), [name for name, _ in model.named_buffers()]
        parts = _PARTS[model] = _Parts(
            weights=tuple(parameters.values()),
            trains=tuple(parameter.requires_grad for parameter in parameters.values()),
            parameters=tuple(name for name in parameters if name not in frozen),
            statistics=tuple(
                name for name in buffers if names.is_running_statistic(name) and name not in frozen
            ),
            counters=tuple(name for name in buffers if name.endswith("num_batches_tracked")),
            has_frozen=bool(frozen),
        )
    return parts
