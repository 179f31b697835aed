"""Conversion of a torch model to the list of layers of the native engine.

It refuses a model with an unsupported layer, and names the first one. The model is traced by
`torch.fx`, so that it may have a forward pass of its own, for example with sums of two branches.
"""

from collections.abc import Iterable

from torch import nn

from algorithms.models.adoption.replaced import has_hooks
from algorithms.models.classifier import Classifier, Scale
from algorithms.models.reading.layers import Layer, Network, Unsupported
from algorithms.models.reading.reader import Reader
from algorithms.models.reading.traced import Whole

__all__ = ["Layer", "Network", "Unsupported", "extractor_of", "has_hooks", "network_of"]


def network_of(model: Classifier, window_shape: tuple[int, ...]) -> Network:
    """Return the network of a model for examples of this shape.

    The shape is (channels, time) or (channels, height, width).

    Raises:
        Unsupported: the native engine does not support a layer or option; the text has the first
            one.
    """
    reader = _reader(model, window_shape, model.named_parameters())
    size = _size_of(model.scale, window_shape)
    output = reader.read(Whole(model.extractor, model.head))
    if (
        not reader.layers
        or reader.layers[-1].kind != "linear"
        or output.layer != len(reader.layers) - 1
    ):
        raise Unsupported(f"head is {type(model.head).__name__}: the last layer must be Linear")
    return reader.network(output, size)


def extractor_of(model: Classifier, window_shape: tuple[int, ...]) -> Network:
    """Return the network from scaled examples to the representation.

    The shape of examples is (channels, time) or (channels, height, width). The `classes` of the
    network are the values of the representation.

    Raises:
        Unsupported: the native engine does not support a layer or option; the text has the first
            one.
    """
    reader = _reader(model, window_shape, model.extractor.named_parameters("extractor"))
    representation = reader.read(Whole(model.extractor))
    if not reader.shapes or representation.sizes:
        raise Unsupported("extractor: expected layers with parameters, and Flatten behind them")
    return reader.network(representation, None)


def _reader(
    model: Classifier, window_shape: tuple[int, ...], parameters: Iterable[tuple[str, nn.Parameter]]
) -> Reader:
    if len(window_shape) not in (2, 3):
        raise Unsupported(
            f"examples of shape {window_shape}: only time windows (channels, time) and images "
            "(channels, height, width)"
        )
    if type(model).forward is not Classifier.forward:
        raise Unsupported(f"{type(model).__name__} has a forward pass of its own")
    if fixed := [
        name for name, parameter in model.named_parameters() if not parameter.requires_grad
    ]:
        raise Unsupported(f"{fixed[0]} is frozen")
    if hooked := [name for name, module in model.named_modules() if has_hooks(module)]:
        raise Unsupported(f"{hooked[0] or 'the model'} has a hook")
    if overrides := [
        name for name, module in model.named_modules() if type(module).train is not nn.Module.train
    ]:
        raise Unsupported(f"{overrides[0] or 'the model'} has a way of its own to go into training")
    return Reader(window_shape, {name: tuple(parameter.shape) for name, parameter in parameters})


def _size_of(scale: nn.Module, window_shape: tuple[int, ...]) -> tuple[float, ...] | None:
    channels, ones = window_shape[0], (1,) * (len(window_shape) - 1)
    if type(scale) is nn.Identity:
        return None
    if type(scale) is not Scale:
        raise Unsupported(f"scale is {type(scale).__name__}")
    if tuple(scale.size.shape) not in ((channels, *ones), (1, *ones)):
        raise Unsupported(
            f"scale has a size of shape {tuple(scale.size.shape)}: expected one value for each of "
            f"{channels} channels"
        )
    return tuple(scale.size.flatten().expand(channels).tolist())
