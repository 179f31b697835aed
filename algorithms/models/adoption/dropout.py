"""Dropout whose random numbers are inputs of the graph.

A graph then draws nothing itself, and the same inputs give the same step everywhere.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from algorithms.models.adoption.replaced import check_replaceable
from algorithms.models.classifier import Classifier
from wire.errors import ConfigError

DROPOUTS = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)
"""All dropout layers of torch."""

_KINDS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d)


class Dropped(nn.Identity):
    """Replacement of a dropout layer: an identity whose output is multiplied by a mask in training.

    `share` is the dropout probability, `shape` the shape of the mask for one example. The training
    loop applies the mask with `dropping`; outside of training the layer does nothing.
    """

    def __init__(self, share: float, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.share, self.shape = share, shape


def keep(uniform: Tensor, share: float | Tensor) -> Tensor:
    """Return the factors that drop a `share` of the values, given uniform numbers in [0, 1).

    A value is kept if its number is at least the share, and is scaled by 1 / (1 - share).
    """
    return (uniform >= share) / (1 - share)


def replace_dropouts(model: Classifier, window: tuple[int, ...]) -> dict[str, Dropped]:
    """Replace every dropout layer by a `Dropped`, and return all `Dropped` layers by name.

    `window` is the shape of one example.

    Raises:
        ConfigError: a layer is of an unsupported kind, does more than torch's own, drops
            everything, or is not called exactly once.
    """
    for name, layer in [(n, m) for n, m in model.named_modules() if isinstance(m, DROPOUTS)]:
        if not isinstance(layer, _KINDS):
            raise ConfigError(
                f"layer {name!r} must be Dropout, Dropout1d or Dropout2d, got "
                f"{type(layer).__name__}"
            )
        check_replaceable(name, layer, *_KINDS)
        if layer.p == 1:
            raise ConfigError(f"layer {name!r}: p must be below 1, got 1")
        parent, _, last = name.rpartition(".")
        shape = _shape_at(model, name, window)
        # these drop whole channels
        if not isinstance(layer, nn.Dropout):
            shape = (shape[0], *[1] * (len(shape) - 1))
        setattr(
            model.get_submodule(parent), last, Dropped(layer.p, shape) if layer.p else nn.Identity()
        )
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, Dropped)}


def _shape_at(model: Classifier, name: str, window: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a layer's input for one example."""
    if not window:
        raise ConfigError(
            f"layer {name!r} is dropout, which needs the shape of one example. Set the model's "
            "`shape`."
        )
    met: list[tuple[int, ...]] = []
    hook = model.get_submodule(name).register_forward_pre_hook(
        lambda _module, inputs: met.append(tuple(inputs[0].shape[1:]))
    )
    training = model.training
    try:
        with torch.no_grad():
            model.eval()(
                torch.zeros(2, *window, dtype=torch.int64 if model.vocabulary else torch.float32)
            )
    finally:
        hook.remove()
        model.train(training)
    if len(met) != 1:
        raise ConfigError(
            f"layer {name!r} is called {len(met)} times in a pass. Each dropout layer must be "
            "called exactly once."
        )
    return met[0]


@contextmanager
def dropping(model: nn.Module, factors: Mapping[str, Tensor]) -> Iterator[None]:
    r"""Multiply outputs of the named layers by these factors (batch, \*shape) in the context."""

    def multiply(layer: nn.Module, factor: Tensor) -> "torch.utils.hooks.RemovableHandle":
        return layer.register_forward_hook(lambda _module, _inputs, output: output * factor)

    hooks = [multiply(model.get_submodule(name), factor) for name, factor in factors.items()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
