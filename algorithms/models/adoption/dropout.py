"""Dropout whose random numbers are inputs: a graph draws nothing by itself, and the same inputs
give the same step everywhere."""

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
"""Every layer of torch that drops."""

_KINDS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d)


class Dropped(nn.Identity):
    """Stands where a layer of torch would draw: `share` of the values are dropped, by a mask of
    this shape for each example. Whoever trains multiplies its output, see `dropping`; outside
    training it does nothing."""

    def __init__(self, share: float, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.share, self.shape = share, shape


def keep(uniform: Tensor, share: float | Tensor) -> Tensor:
    """What values are multiplied by so that this share of them is dropped: one stays where its
    number in [0, 1) is at least the share, and counts for the others too."""
    return (uniform >= share) / (1 - share)


def replace_dropouts(model: Classifier, window: tuple[int, ...]) -> dict[str, Dropped]:
    """Put a `Dropped` in the place of every dropout layer of a model of examples of this shape; all
    that it has then, by name.

    Raises:
        ConfigError: a kind of dropout without a rule here, one that does more than torch's own, is
        called twice, or never.
    """
    for name, layer in [(n, m) for n, m in model.named_modules() if isinstance(m, DROPOUTS)]:
        if not isinstance(layer, _KINDS):
            raise ConfigError(
                f"layer {name!r} is {type(layer).__name__}: expected Dropout, Dropout1d or "
                "Dropout2d"
            )
        check_replaceable(name, layer, *_KINDS)
        if layer.p == 1:
            raise ConfigError(f"layer {name!r} drops everything: expected p below 1")
        parent, _, last = name.rpartition(".")
        shape = _shape_at(model, name, window)
        if not isinstance(layer, nn.Dropout):  # whole channels
            shape = (shape[0], *[1] * (len(shape) - 1))
        setattr(
            model.get_submodule(parent), last, Dropped(layer.p, shape) if layer.p else nn.Identity()
        )
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, Dropped)}


def _shape_at(model: Classifier, name: str, window: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of what a layer is given for one example."""
    if not window:
        raise ConfigError(
            f"layer {name!r} drops values: the model's `shape`, that of one example, must be set"
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
            f"layer {name!r} is called {len(met)} times in a pass: expected a dropout layer of "
            "its own for each place"
        )
    return met[0]


@contextmanager
def dropping(model: nn.Module, factors: Mapping[str, Tensor]) -> Iterator[None]:
    """While the context is open, what the named layers give is multiplied by these factors (batch,
    \\*shape)."""

    def multiply(layer: nn.Module, factor: Tensor) -> "torch.utils.hooks.RemovableHandle":
        return layer.register_forward_hook(lambda _module, _inputs, output: output * factor)

    hooks = [multiply(model.get_submodule(name), factor) for name, factor in factors.items()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
