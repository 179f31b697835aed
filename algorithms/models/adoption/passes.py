"""Passes of a model: the layers that it calls in training and in evaluation.

The modules of a model are what it has. Only a pass is what it does.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

from algorithms.models.adoption.frozen import NORMS
from algorithms.models.adoption.replaced import replace_layer
from wire.errors import ConfigError

Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True)
class Call:
    """A call of a layer in a pass, with the layer's first name."""

    layer: str
    output: object
    inputs: tuple[object, ...]


def trace_pass(model: nn.Module, x: object, training: bool) -> tuple[object, list[Call]]:
    """Return a model's answer to examples, and its calls of layers in the order of their ends.

    Buffers, modes of layers and torch's global generator are as before afterwards.
    """
    calls: list[Call] = []

    def note(name: str) -> Callable[[nn.Module, tuple[object, ...], object], None]:
        return lambda _layer, inputs, output: calls.append(Call(name, output, inputs))

    modes = [(layer, layer.training) for layer in model.modules()]
    buffers = [
        (layer, name, value, value.clone())
        for layer in model.modules()
        for name, value in layer._buffers.items()
        if value is not None and not is_lazy(value)
    ]
    hooks = [layer.register_forward_hook(note(name)) for name, layer in model.named_modules()]
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            return model.train(training)(x), calls
    finally:
        for hook in hooks:
            hook.remove()
        for layer, mode in modes:
            layer.training = mode
        for layer, name, value, content in buffers:
            layer._buffers[name] = value.copy_(content)


def copy_of(name: str, module: Module) -> Module:
    """Return a copy of a module, with parameters of lazy layers still without values.

    Tensors that a layer has from an earlier pass, such as an activation or the weight of the old
    `torch.nn.utils.weight_norm`, are copied as values.

    Raises:
        ConfigError: an attribute of a layer cannot be copied. `name` of the model begins the text.
    """
    memo: dict[int, Any] = {}
    attributes = [
        (path, attribute, value)
        for path, layer in module.named_modules()
        for attribute, value in vars(layer).items()
    ]
    for leaf in (leaf for _, _, value in attributes for leaf in tree_leaves(value)):
        if is_lazy(leaf):
            memo[id(leaf)] = type(leaf)(requires_grad=leaf.requires_grad)
        elif isinstance(leaf, Tensor) and not leaf.is_leaf:
            memo[id(leaf)] = leaf.detach().clone()
    try:
        return deepcopy(module, dict(memo))
    except (TypeError, RuntimeError, ValueError, AttributeError, NotImplementedError) as error:
        for path, attribute, value in attributes:
            if attribute in ("_modules", "_parameters", "_buffers"):
                continue
            try:
                deepcopy(value, dict(memo))
            except Exception:  # any class may refuse in a way of its own
                raise ConfigError(
                    f"model {name}: {f'layer {path!r}' if path else 'the model'} has an attribute "
                    f"{attribute!r} of type {type(value).__name__}, which cannot be copied, and "
                    "devices train copies. Create it in forward, or outside of the model."
                ) from error
        raise ConfigError(f"model {name} cannot be copied: {error}") from error


def remove_unused(model: nn.Module, x: Tensor) -> None:
    """Replace layers that no pass uses by identities; `x` are examples.

    A layer is used if it is called in training or in evaluation, or if the model does something
    else without it, because a pass reads its tensors.
    """

    def answers() -> list[Tensor]:
        results = []
        for training in (True, False):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                results += tree_leaves(trace_pass(model, x, training)[0])
        return results

    calls = {call.layer for training in (True, False) for call in trace_pass(model, x, training)[1]}
    layers = dict(model.named_modules())
    used = {parent for name in calls for parent in _parents(name)} | {
        name
        for name in layers
        if any(isinstance(layers[p], _WHOLE) and p in calls for p in _parents(name))
    }
    unused = [name for name in layers if name not in used and name.rpartition(".")[0] in used]
    before = answers() if unused else []
    for name in unused:
        layer, identity = layers[name], nn.Identity()
        replace_layer(model, layer, identity)
        try:
            same = all(
                torch.equal(one, other) for one, other in zip(before, answers(), strict=True)
            )
        except Exception:  # the forward pass is the user's, and may raise anything
            same = False
        if not same:
            replace_layer(model, identity, layer)


_WHOLE = (nn.MultiheadAttention, nn.RNNBase)
"""Layers of torch that read the tensors of their parts without a call."""


def _parents(name: str) -> list[str]:
    """Return the names of a layer and of the layers around it."""
    parts = name.split(".") if name else []
    return [".".join(parts[:count]) for count in range(len(parts) + 1)]


def check_norms(name: str, model: nn.Module, x: Tensor) -> None:
    """Raise ConfigError if a BatchNorm layer is not served; `x` are examples."""
    calls = [
        {call.layer for call in trace_pass(model, x, training)[1]} for training in (True, False)
    ]
    for path, layer in model.named_modules():
        if not isinstance(layer, NORMS):
            continue
        kind = f"model {name}: layer {path!r} is {type(layer).__name__}"
        if not all(path in met for met in calls):
            raise ConfigError(
                f"{kind}, and not both training and evaluation call it. Call the layer itself in "
                "both modes."
            )
        if layer.track_running_stats and layer.momentum is None:
            raise ConfigError(
                f"{kind} with momentum=None, an average over all batches so far, and a round of a "
                "device begins without them. Set momentum, for example 0.1."
            )
