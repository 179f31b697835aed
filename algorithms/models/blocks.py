"""Parts that several models share, in one dimension (time windows) and in two (images).

All of them lower to ONNX with their gradients: convolutions without groups, BatchNorm and
GroupNorm, ReLU, max-pooling, average-pooling to one value per channel, linear layers.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from algorithms.models.classifier import Classifier, Scale
from wire.bundle import Window
from wire.errors import ConfigError

Norm = Literal["batch", "group", "none"]
Cut = Literal["last", "convolutions"]
CUTS: tuple[Cut, ...] = ("last", "convolutions")
"""Places at which a model with several linear layers is split into extractor and head."""
GROUPS = 8
"""Number of groups of a GroupNorm, or the largest lower number that divides the channels."""


def conv(
    dims: int,
    inputs: int,
    outputs: int,
    kernel: int,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    bias: bool = True,
) -> nn.Module:
    """Return a convolution over `dims` dimensions."""
    layer = nn.Conv1d if dims == 1 else nn.Conv2d
    return layer(inputs, outputs, kernel, stride, padding, dilation, bias=bias)


def norm(dims: int, channels: int, kind: Norm = "batch") -> nn.Module:
    """Return a normalisation of `channels` channels; ``none`` is the identity."""
    if kind == "batch":
        return nn.BatchNorm1d(channels) if dims == 1 else nn.BatchNorm2d(channels)
    return (
        nn.GroupNorm(next(g for g in range(GROUPS, 0, -1) if channels % g == 0), channels)
        if kind == "group"
        else nn.Identity()
    )


def pool(dims: int) -> nn.Module:
    """Return max-pooling by 2 in every dimension."""
    return nn.MaxPool1d(2) if dims == 1 else nn.MaxPool2d(2)


def average(dims: int) -> nn.Module:
    """Return average-pooling to one value per channel.

    It maps (batch, channels, ...) to (batch, channels).
    """
    return nn.Sequential(
        nn.AdaptiveAvgPool1d(1) if dims == 1 else nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )


def conv_stack(
    dims: int, widths: Sequence[int], kernel: int, padding: int = 0, kind: Norm = "none"
) -> nn.Sequential:
    """Return a stack of convolutions, flattened at the end.

    Each step between two `widths` has a convolution, a normalisation, ReLU and max-pooling by 2,
    named ``conv1``, ``norm1``, ``relu1``, ``pool1`` and so on.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for i in range(1, len(widths)):
        layers[f"conv{i}"] = conv(dims, widths[i - 1], widths[i], kernel, padding=padding)
        if kind != "none":
            layers[f"norm{i}"] = norm(dims, widths[i], kind)
        layers[f"relu{i}"] = nn.ReLU()
        layers[f"pool{i}"] = pool(dims)
    layers["flatten"] = nn.Flatten()
    return nn.Sequential(layers)


def dimensions(window: Window) -> int:
    """Return the number of dimensions after the channels: 1 for time windows, 2 for images."""
    return len(window.shape) - 1


def count_features(name: str, window: Window, extractor: nn.Module) -> int:
    """Return the number of values in an extractor's representation of one example.

    Raises:
        ConfigError: the examples are too small for the model `name`.
    """
    try:
        with torch.no_grad():
            features = int(extractor.eval()(torch.zeros(1, *window.shape)).shape[1])
    except RuntimeError:
        features = 0
    extractor.train()
    if not features:
        raise ConfigError(
            f"model {name} needs larger examples than {' x '.join(map(str, window.shape))}. Take "
            "longer windows, or the model mlp."
        )
    return features


def split_linear(
    features: int, widths: Sequence[int], num_classes: int, cut: Cut
) -> tuple[list[nn.Module], nn.Linear | nn.Sequential]:
    """Return linear layers that belong to the extractor, and the head.

    Together they are linear layers of `widths` units with ReLU, then one of the classes. `cut` is
    the place of the split: ``last`` before the last layer, ``convolutions`` before the first.
    """
    layers: list[nn.Module] = []
    for before, width in zip((features, *widths), widths, strict=False):
        layers += [nn.Linear(before, width), nn.ReLU()]
    last = nn.Linear(widths[-1], num_classes)
    return (layers, last) if cut == "last" else ([], nn.Sequential(*layers, last))


def assemble(
    name: str, window: Window, num_classes: int, size: Tensor, extractor: nn.Module
) -> Classifier:
    """Return a classifier around an extractor; each channel is divided by `size` (channels,).

    Raises:
        ConfigError: the examples are too small for the model `name`.
    """
    features = count_features(name, window, extractor)
    return Classifier(Scale(size, dimensions(window)), extractor, nn.Linear(features, num_classes))
