"""What every runtime needs: the operators of a backward pass that none of them has, as operators that all of them have."""

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._decomp import core_aten_decompositions, get_decompositions

from wire.errors import ConfigError

_aten = torch.ops.aten

Table = dict[Any, Callable[..., Any]]
"""For `torch.export.ExportedProgram.run_decompositions`: what takes the place of an operator."""


def shared_decompositions() -> Table:
    """The table without what is particular to a runtime: the gradients of a convolution."""
    table: Table = dict(core_aten_decompositions().items())
    table.update(get_decompositions([_aten._native_batch_norm_legit_functional.default, _aten.native_batch_norm_backward.default]))
    table[_aten.max_pool2d_with_indices_backward.default] = max_pool_backward
    table[_aten.var_mean.correction] = var_mean
    return table


def var_mean(x: Tensor, dim: list[int] | None = None, *, correction: float | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """torch's own decomposition of var_mean fails on a dynamic batch."""
    return _aten.var.correction(x, dim, correction=correction, keepdim=keepdim), _aten.mean.dim(x, dim, keepdim)


def check_convolution(weight: Tensor, dilation: list[int], transposed: bool, groups: int) -> None:
    """
    Raises:
        ConfigError: a convolution whose gradients no runtime is given.
    """
    if transposed or groups != 1 or any(d != 1 for d in dilation) or weight.dim() not in (3, 4):
        raise ConfigError(
            f"Conv{weight.dim() - 2}d with transposed={transposed}, groups={groups}, dilation={list(dilation)}: "
            "training it on a device is not supported; use one or two dimensions, groups=1, dilation=1 and no transposed convolution"
        )


def per_dimension(values: list[int], count: int) -> list[int]:
    """A stride or padding for each dimension, where one may stand for all."""
    return list(values) * count if len(values) == 1 else list(values)


def taps(x: Tensor, kernel: torch.Size, stride: list[int], padding: list[int], out: torch.Size) -> list[Tensor]:
    """What each position of the kernel meets: views of the padded x (rows, columns, \\*size), each (rows, columns, \\*out), in the order of
    the kernel's positions."""
    pads = [p for size in reversed(padding) for p in (size, size)]
    padded = _aten.constant_pad_nd(x, pads, 0.0) if any(padding) else x
    found = []
    for position in range(prod(kernel)):
        tap, rest = padded, position
        for axis in reversed(range(len(kernel))):
            rest, offset = divmod(rest, kernel[axis])
            tap = _aten.slice.Tensor(tap, axis + 2, offset, offset + (out[axis] - 1) * stride[axis] + 1, stride[axis])
        found.append(tap)
    return found


def max_pool_backward(
    grad: Tensor, x: Tensor, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int], ceil_mode: bool, indices: Tensor
) -> Tensor:
    """Send each gradient back to the place its maximum came from (indices are flat over the last two dimensions of x)."""
    batch, channels, height, width = x.shape
    plain = list(stride or kernel) == list(kernel) and not any(padding) and all(d == 1 for d in dilation)
    if plain and height == 1 and kernel[0] == 1 and width % kernel[1] == 0:
        # windows of one dimension that do not overlap: comparing is faster than scattering and needs no zero tensor
        places = torch.arange(width, device=x.device).reshape(1, 1, width // kernel[1], kernel[1])
        hit = indices.reshape(batch, channels, -1, 1) == places
        return torch.where(hit, grad.reshape(batch, channels, -1, 1), 0.0).reshape(batch, channels, height, width)
    flat = torch.zeros_like(x).reshape(batch, channels, height * width)
    spread: Tensor = _aten.scatter_add(flat, 2, indices.reshape(batch, channels, -1), grad.reshape(batch, channels, -1))
    return spread.reshape(batch, channels, height, width)
