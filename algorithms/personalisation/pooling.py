"""Channels and places of a model's representation, for means over its places."""

from typing import Any

import torch
from torch import Tensor, nn

from algorithms.models.adoption.passes import trace_pass
from algorithms.models.classifier import Classifier, some_examples
from algorithms.models.reading.plain import OperatorMode

ATEN = torch.ops.aten
TO_VECTOR = (ATEN.view.default, ATEN._unsafe_view.default)
PRODUCTS = (
    ATEN.mm.default,
    ATEN.addmm.default,
    ATEN.bmm.default,
    ATEN.baddbmm.default,
    ATEN.embedding.default,
)


class _Layout(OperatorMode):
    """Record of the dimension with the channels, and of the shape before the last view."""

    def __init__(self, x: Tensor) -> None:
        """Begin with examples x (n, channels, places), or ids (n, length)."""
        super().__init__()
        self.channels = 1 - x.dim()
        """Dimension with the channels, counted from the end."""
        self.vector: Tensor | None = None
        self.shape: tuple[int, ...] = ()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if func is ATEN.convolution.default:
            self.channels = 1 - output.dim()
        elif func in PRODUCTS:
            self.channels = -1
        elif func in (ATEN.permute.default, ATEN.transpose.int) and output.dim() >= -self.channels:
            marks = torch.zeros(*[1] * output.dim()).expand(*range(1, output.dim() + 1))
            moved = func(marks, *args[1:]).shape
            self.channels = moved.index(1 + self.channels + output.dim()) - output.dim()
        elif func in TO_VECTOR:
            self.vector, self.shape = output, tuple(args[0].shape)
        return output


def grid_of(model: Classifier) -> tuple[int, int, int]:
    """Return (places, channels, places): the shape that a representation (batch, K) was made from.

    Their product is K. Channels are those of the last convolution, the outputs of the last linear
    layer, or those of the example. The shape is (1, K, 1) if there are no places, or if a
    representation is not a view of channels and places.
    """
    x = some_examples(2, model.shape, model.vocabulary)
    with _Layout(x) as layout:
        features, _ = trace_pass(nn.Sequential(model.scale, model.extractor), x, training=False)
    is_view = layout.vector is features and -layout.channels < len(layout.shape)
    if not is_view or layout.shape[0] != len(x):
        return 1, model.num_features, 1
    sizes, at = layout.shape[1:], len(layout.shape) - 1 + layout.channels
    before, after = (torch.Size(part).numel() for part in (sizes[:at], sizes[at + 1 :]))
    return before, sizes[at], after


def pooled(features: Tensor, grid: tuple[int, int, int]) -> Tensor:
    """Return the means (batch, channels) over the places of representations (batch, K)."""
    return features.reshape(-1, *grid).mean((1, 3))
