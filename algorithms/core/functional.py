"""Calls a torch model with the tensors that an algorithm holds in place of the model's own."""

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
    """What `make` returns when torch's global generator starts from this seed; the generator is
    then as it was before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def functional(
    model: nn.Module, tensors: TorchTensors, x: Tensor, training: bool
) -> tuple[Tensor, TorchTensors]:
    """Call `model` with the parameters and running statistics given, of role shared, statistic or
    private, without touching the model itself. Returns what the model returns, and the running
    statistics after the call by ``ROLE/NAME``.

    What is frozen is taken from its slot where there is one, else from the model.
    """
    roles = {names.name_of(k): k for k in names.of_role(tensors, *names.EXCHANGED, names.PRIVATE)}
    parts = _parts_of(model)
    own = frozen_tensors(model) if parts.has_frozen else {}
    frozen = {name: tensors.get(frozen_slot(name), value) for name, value in own.items()}
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
    """What a model consists of, by name; found once, for a walk through its layers takes as long as
    a small batch."""

    own: tuple[nn.Parameter, ...]
    trains: tuple[bool, ...]
    """Which of `own` were not frozen when this was found."""
    parameters: tuple[str, ...]
    """Those that are not frozen."""
    statistics: tuple[str, ...]
    """Running statistics that move."""
    counters: tuple[str, ...]
    has_frozen: bool
    """Whether anything is frozen. Its tensors are looked up at each call: `Module.to` puts others
    in their places."""


_PARTS: WeakKeyDictionary[nn.Module, _Parts] = WeakKeyDictionary()


def _parts_of(model: nn.Module) -> _Parts:
    parts = _PARTS.get(model)
    if parts is None or tuple(parameter.requires_grad for parameter in parts.own) != parts.trains:
        own = dict(model.named_parameters())
        frozen, buffers = frozen_tensors(model), [name for name, _ in model.named_buffers()]
        parts = _PARTS[model] = _Parts(
            own=tuple(own.values()),
            trains=tuple(parameter.requires_grad for parameter in own.values()),
            parameters=tuple(name for name in own if name not in frozen),
            statistics=tuple(
                name for name in buffers if names.is_running_statistic(name) and name not in frozen
            ),
            counters=tuple(name for name in buffers if name.endswith("num_batches_tracked")),
            has_frozen=bool(frozen),
        )
    return parts
