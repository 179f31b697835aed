"""Operators for the networks of many devices at once.

Torch's own are slow there, or fail, under `torch.func.vmap`.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from algorithms.models.reading.plain import PlainOperators


def conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    """Convolve x (batch, channels, samples) to (batch, filters, samples').

    On CUDA it is a product of matrices, in a third to a fifth of the time: cuDNN takes the filters
    of many devices one device after the other.
    """
    if not x.is_cuda or groups != 1 or isinstance(padding, str):
        return F.conv1d(x, weight, bias, stride, padding, dilation, groups)
    return conv1d_by_product(
        x, weight, bias, *(v if isinstance(v, int) else v[0] for v in (stride, padding, dilation))
    )


def conv1d_by_product(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int, dilation: int
) -> Tensor:
    """Convolve x (batch, channels, samples) to (batch, filters, samples').

    The filters, as a matrix, are multiplied with the samples that each result looks at.
    """
    size = weight.shape[-1]
    x = F.pad(x, (padding, padding)) if padding else x
    last = x.shape[-1] - dilation * (size - 1)
    taps = [x[..., i * dilation : i * dilation + last : stride] for i in range(size)]
    y = weight.transpose(-1, -2).flatten(1) @ torch.cat(taps, -2)
    return y if bias is None else y + bias.unsqueeze(-1)


def batch_norm(x: Tensor, *others: Any, **named: Any) -> Tensor:
    """Normalise as torch does; in float32, since the gradient in bfloat16 fails over devices."""
    if x.dtype != torch.bfloat16:
        return F.batch_norm(x, *others, **named)
    with torch.autocast(x.device.type, enabled=False):
        return F.batch_norm(x.float(), *others, **named)


class OverDevices(PlainOperators):
    """A context in which `conv1d` on CUDA and `batch_norm` are those of this module."""

    operators: ClassVar[dict[Any, Callable[..., Any]]] = {
        **PlainOperators.operators,
        F.conv1d: conv1d,
        F.batch_norm: batch_norm,
    }
