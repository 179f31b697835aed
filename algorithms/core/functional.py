"""Calls of a torch model with tensors of an algorithm in place of the model's own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

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
    frozen = {name: tensors.get(slot, parts.now(name)) for name, slot in parts.frozen.items()}
    parameters = {name: tensors[roles[name]] for name in parts.parameters}
    counters = {name: torch.zeros((), dtype=torch.int64) for name in parts.counters}
    buffers = {name: tensors[roles[name]].clone() for name in parts.statistics}
    if any(layer["training"] is not training or "train" in layer for layer in parts.layers) or any(
        layer["training"] for layer in parts.fixed
    ):
        model.train(training)
        for layer in parts.fixed:
            layer["training"] = False
    used = {**frozen, **parameters, **buffers, **counters}
    used |= {place: used[name] for place, name in parts.tied.items() if name in used}
    originals = {place: parts.now(place) for place in parts.places}
    _put(parts, used)
    try:
        result = model(x)
    finally:
        # a layer may have put another tensor into the place of a statistic
        used = {place: parts.now(place) for place in parts.places}
        _put(parts, originals)
        for attributes, attribute, value in parts.stored:
            attributes[attribute] = value
    return result, {roles[name]: used[name] for name in buffers}


def _put(parts: "_Parts", values: TorchTensors) -> None:
    """Put tensors into a model by their names; `torch.func.functional_call` looks each up anew."""
    for place, value in values.items():
        tensors, name = parts.places[place]
        tensors[name] = value


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
    tied: Mapping[str, str]
    """Names of the tensors that are also in other places of the model, by those places."""
    places: Mapping[str, tuple[dict[str, Any], str]]
    """Parameters or buffers of the layer in which a tensor is, and its name in it, by name."""
    stored: tuple[tuple[dict[str, Any], str, Any], ...]
    """Attributes of layers, with names and values, in which a pass leaves tensors.

    They are reset after each pass, so that no pass depends on an earlier one.
    """
    frozen: Mapping[str, str]
    """Slots of the frozen tensors, by name.

    The tensors are looked up at each call, because `Module.to` replaces them.
    """
    layers: tuple[dict[str, Any], ...]
    """Attributes of the layers that are in the mode of the model."""
    fixed: tuple[dict[str, Any], ...]
    """Attributes of the BatchNorm layers that are always in evaluation mode."""

    def now(self, place: str) -> Tensor:
        """Return the tensor that is in this place of the model."""
        layer, name = self.places[place]
        tensor: Tensor = layer[name]
        return tensor


_PARTS: WeakKeyDictionary[nn.Module, _Parts] = WeakKeyDictionary()


def _parts_of(model: nn.Module) -> _Parts:
    parts = _PARTS.get(model)
    if parts is None or tuple(weight.requires_grad for weight in parts.weights) != parts.trains:
        parameters = dict(model.named_parameters())
        frozen, buffers = frozen_tensors(model), [name for name, _ in model.named_buffers()]
        fixed = set(fixed_norms(model).values())
        parts = _PARTS[model] = _Parts(
            weights=tuple(parameters.values()),
            trains=tuple(parameter.requires_grad for parameter in parameters.values()),
            parameters=tuple(name for name in parameters if name not in frozen),
            statistics=tuple(
                name for name in buffers if names.is_running_statistic(name) and name not in frozen
            ),
            counters=tuple(name for name in buffers if name.endswith("num_batches_tracked")),
            tied=_tied(model),
            places={
                f"{path}.{name}" if path else name: (tensors, name)
                for path, layer in model.named_modules()
                for tensors in (layer._parameters, layer._buffers)
                for name, tensor in tensors.items()
                if tensor is not None
            },
            stored=tuple(
                (vars(layer), attribute, value)
                for layer in model.modules()
                for attribute, value in vars(layer).items()
                if attribute not in ("_parameters", "_buffers")
                and any(
                    isinstance(leaf, Tensor) and not isinstance(leaf, nn.Parameter)
                    for leaf in tree_leaves(value)
                )
            ),
            frozen={name: frozen_slot(name) for name in frozen},
            layers=tuple(vars(layer) for layer in model.modules() if layer not in fixed),
            fixed=tuple(map(vars, fixed)),
        )
    return parts


def _tied(model: nn.Module) -> dict[str, str]:
    """Return the first name of each shared tensor by its further places.

    A layer under several names is one place.
    """
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    for path, layer in model.named_modules():
        for name, tensor in (*layer._parameters.items(), *layer._buffers.items()):
            full = f"{path}.{name}" if path else name
            if tensor is not None and first.setdefault(id(tensor), full) != full:
                tied[full] = first[id(tensor)]
    return tied
