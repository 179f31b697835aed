"""Dropout whose random numbers are inputs of the graph.

A graph then draws nothing itself, and the same inputs give the same step everywhere.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle

import torch
from torch import Tensor, nn

from algorithms.models.adoption.passes import trace_pass
from algorithms.models.adoption.replaced import check_replaceable, replace_layer
from algorithms.models.classifier import Classifier, some_examples
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

EXAMPLES = 7
"""Number of examples in the pass that shows the shapes of masks."""


class Dropped(nn.Identity):
    """Replacement of a dropout layer: an identity whose output is multiplied by a mask in training.

    `share` is the dropout probability, `shapes` the shape of the mask for one example in each call
    of a pass. The training loop applies the masks with `dropping`; outside of training the layer
    does nothing.
    """

    def __init__(self, share: float, *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.share, self.shapes = share, shapes

    def draws(self, name: str) -> dict[str, tuple[int, ...]]:
        """Return the shapes by name: the layer's, and with a number from the second call on."""
        return {f"{name}.{n}" if n else name: shape for n, shape in enumerate(self.shapes)}


def keep(uniform: Tensor, share: float | Tensor) -> Tensor:
    """Return the factors that drop a `share` of the values, given uniform numbers in [0, 1).

    A value is kept if its number is at least the share, and is scaled by 1 / (1 - share).
    """
    return (uniform >= share) / (1 - share)


def replace_dropouts(model: Classifier, window: tuple[int, ...]) -> dict[str, Dropped]:
    """Replace every dropout layer by a `Dropped`, and return all `Dropped` layers by name.

    `window` is the shape of one example. A layer that a training pass does not call becomes an
    identity.

    Raises:
        ConfigError: a layer is of an unsupported kind, does more than torch's own, or drops
            everything.
    """
    layers = [(n, m) for n, m in model.named_modules() if isinstance(m, DROPOUTS)]
    if layers and not window:
        raise ConfigError(
            f"layer {layers[0][0]!r} is dropout, which needs the shape of one example. Set the "
            "model's `shape`."
        )
    calls = (
        trace_pass(model, some_examples(EXAMPLES, window, model.vocabulary), training=True)[1]
        if layers
        else []
    )
    for name, layer in layers:
        outputs = [call.output for call in calls if call.layer == name]
        if not outputs:
            replace_layer(model, layer, nn.Identity())
            continue
        if not isinstance(layer, _KINDS):
            raise ConfigError(
                f"layer {name!r} must be Dropout, Dropout1d or Dropout2d, got "
                f"{type(layer).__name__}"
            )
        check_replaceable(name, layer, *_KINDS)
        if layer.p == 1:
            raise ConfigError(f"layer {name!r}: p must be below 1, got 1")
        shapes = [_shape_of(name, layer, output) for output in outputs]
        replace_layer(model, layer, Dropped(layer.p, *shapes) if layer.p else nn.Identity())
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, Dropped)}


def _shape_of(name: str, layer: nn.Module, output: object) -> tuple[int, ...]:
    """Return the shape of a layer's mask for one example.

    If the first dimension is not that of the examples, the mask is a vector of all values.
    """
    assert isinstance(output, Tensor)
    shape = tuple(output.shape[1:])
    if len(output) != EXAMPLES:
        if not isinstance(layer, nn.Dropout) or output.numel() % EXAMPLES:
            raise ConfigError(
                f"layer {name!r} is {type(layer).__name__} of {list(output.shape)} for {EXAMPLES} "
                "examples. Its first dimension must be that of the examples."
            )
        return (output.numel() // EXAMPLES,)
    # these drop whole channels
    return shape if isinstance(layer, nn.Dropout) else (shape[0], *[1] * (len(shape) - 1))


@contextmanager
def dropping(model: nn.Module, factors: Mapping[str, Sequence[Tensor]]) -> Iterator[None]:
    r"""Multiply outputs of the named layers by factors (batch, \*shape), one for each call.

    It applies to the calls in the context. After the last factor, the first one is next.
    """

    def multiply(
        layer: nn.Module, factors: Sequence[Tensor]
    ) -> "torch.utils.hooks.RemovableHandle":
        following = cycle(factors)

        def apply(_module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
            factor = next(following)
            vector = factor.dim() == 2 and (output.dim(), factor.shape[1]) != (2, output.shape[1])
            return output * (factor.reshape(output.shape) if vector else factor)

        return layer.register_forward_hook(apply)

    hooks = [multiply(model.get_submodule(name), each) for name, each in factors.items()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
