"""Shared part of the tables: operators of backward passes that no runtime has."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._decomp import core_aten_decompositions, get_decompositions

from wire.errors import ConfigError

_aten = torch.ops.aten

OTHER_LAYER = "Use layers that train on devices in its place (docs/models.md)"
"""Way out of a refusal, for its end."""

Table = dict[Any, Callable[..., Any]]
"""Functions that compute an operator from other operators, by the operator.

A function takes the operator's arguments.
"""


@functools.cache
def shared_decompositions() -> Table:
    """Return the part of the tables that all runtimes share.

    It has torch's decompositions into core operators, and the backward passes of BatchNorm, pooling
    and embeddings.
    """
    table: Table = dict(core_aten_decompositions().items())
    table.update(
        get_decompositions(
            [
                _aten._native_batch_norm_legit_functional.default,
                _aten.native_batch_norm_backward.default,
            ]
        )
    )
    table[_aten.max_pool2d_with_indices_backward.default] = max_pool_backward
    table[_aten.avg_pool2d_backward.default] = average_pool_backward
    table[_aten._adaptive_avg_pool2d.default] = adaptive_average_pool
    table[_aten._adaptive_avg_pool2d_backward.default] = adaptive_average_pool_backward
    table[_aten.adaptive_max_pool2d.default] = adaptive_max_pool
    table[_aten.adaptive_max_pool2d_backward.default] = adaptive_max_pool_backward
    table[_aten.var_mean.correction] = var_mean
    table[_aten.embedding_dense_backward.default] = embedding_backward
    table[_aten.constant_pad_nd.default] = pad
    table[_aten.empty_like.default] = empty_like
    for count in (1, 2, 3):
        edges = getattr(_aten, f"replication_pad{count}d_backward")
        table[edges.default] = replication_pad_backward
    # views in the steps of a loop
    table[_aten.split_copy.Tensor] = _aten.split.Tensor
    table[_aten.permute_copy.default] = _aten.permute.default
    return table


def var_mean(
    x: Tensor,
    dim: list[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return variance and mean. torch's own decomposition fails for a dynamic batch."""
    return _aten.var.correction(x, dim, correction=correction, keepdim=keepdim), _aten.mean.dim(
        x, dim, keepdim
    )


def empty_like(x: Tensor, **_options: object) -> Tensor:
    """Return zeros for a tensor that is filled later, as in the gradients of SiLU and Mish.

    No runtime has tensors without values.
    """
    return torch.zeros_like(x)


def embedding_backward(
    grad: Tensor, ids: Tensor, rows: int, padding_idx: int, scale_grad_by_freq: bool
) -> Tensor:
    """Return the gradient of an embedding's table (rows, width).

    A row is the sum of the gradients at the places of its id. The row of `padding_idx` is zero.
    """
    width = grad.shape[-1]
    flat, places = view(grad, [-1, width]), view(ids, [-1, 1])
    if padding_idx >= 0:
        flat = flat * (places != padding_idx).to(flat.dtype)
    table = torch.zeros((rows, width), dtype=grad.dtype, device=grad.device)
    summed: Tensor = _aten.scatter_add(table, 0, places.expand(-1, width).contiguous(), flat)
    return summed


def pad(x: Tensor, pads: Sequence[int], value: float = 0.0) -> Tensor:
    """Return x with negative paddings as slices, which ExecuTorch needs.

    They occur in the gradient of a padding. A padding without negative sizes keeps torch's
    operator.
    """
    if min(pads) >= 0:
        return NotImplemented  # type: ignore[no-any-return]
    for at, (before, after) in enumerate(zip(pads[::2], pads[1::2], strict=True)):
        dim = x.dim() - 1 - at
        x = _aten.slice.Tensor(x, dim, max(-before, 0), x.shape[dim] - max(-after, 0))
    outside = [max(size, 0) for size in pads]
    padded: Tensor = _aten.constant_pad_nd(x, outside, value) if any(outside) else x
    return padded


def replication_pad_backward(grad: Tensor, x: Tensor, pads: Sequence[int]) -> Tensor:
    """Return the gradient by x: the outermost values get the gradients of their copies too.

    Raises:
        ConfigError: a padding is negative.
    """
    if min(pads) < 0:
        raise ConfigError(
            f"ReplicationPad of {list(pads)} cannot be trained on a device; use sizes of 0 or more"
        )
    for at, (before, after) in enumerate(zip(pads[::2], pads[1::2], strict=True)):
        dim = x.dim() - 1 - at
        size, whole = x.shape[dim], grad.shape[dim]
        inner, summed = [0, 0] * at, _aten.slice.Tensor(grad, dim, before, before + size)
        for side, room in (
            ((0, before), [0, size - 1]),
            ((whole - after, whole), [size - 1, 0]),
        ):
            if side[0] < side[1]:
                edge = _aten.slice.Tensor(grad, dim, *side).sum(dim, keepdim=True)
                summed = summed + _aten.constant_pad_nd(edge, [*inner, *room], 0.0)
        grad = summed
    return grad


@dataclass(frozen=True)
class Geometry:
    """Positions of the taps of a convolution or pool. Each field has an entry per dimension."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def extent(self) -> tuple[int, ...]:
        """Number of values from the first tap to the last, both included, by dimension."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True))

    def out(self, size: torch.Size) -> torch.Size:
        """Return the number of positions of the kernel in an input of this size, by dimension."""
        sides = zip(size, self.padding, self.extent, self.stride, strict=True)
        return torch.Size(
            (side + 2 * padding - extent) // stride + 1 for side, padding, extent, stride in sides
        )

    def turned(self) -> "Geometry":
        """Return the geometry of the gradient by the input, over a gradient padded by `outer`."""
        ones = (1,) * len(self.kernel)
        return Geometry(self.kernel, ones, (0,) * len(ones), self.dilation)


def convolution_geometry(
    weight: Tensor, stride: list[int], padding: list[int], dilation: list[int], transposed: bool
) -> Geometry:
    """Return the geometry of a convolution in one to three dimensions.

    Raises:
        ConfigError: it is transposed or has another number of dimensions, for which no runtime has
            gradients.
    """
    count = weight.dim() - 2
    if transposed or count not in (1, 2, 3):
        raise ConfigError(
            f"Conv{'Transpose' * transposed}{count}d cannot be trained on a device; use Conv1d, "
            "Conv2d or Conv3d"
        )
    return Geometry(
        tuple(weight.shape[2:]),
        *(tuple(per_dimension(values, count)) for values in (stride, padding, dilation)),
    )


def per_dimension(values: list[int], count: int) -> list[int]:
    """Return one value per dimension. A single value holds for all dimensions."""
    return list(values) * count if len(values) == 1 else list(values)


def taps(x: Tensor, geometry: Geometry, out: torch.Size) -> list[Tensor]:
    """Return the values of x under each position of the kernel, in the order of the positions.

    They are views (rows, columns, \\*out) of the padded x (rows, columns, \\*size).
    """
    pads = [p for size in reversed(geometry.padding) for p in (size, size)]
    padded = _aten.constant_pad_nd(x, pads, 0.0) if any(pads) else x
    views = []
    for position in range(prod(geometry.kernel)):
        tap, rest = padded, position
        for axis in reversed(range(len(geometry.kernel))):
            rest, offset = divmod(rest, geometry.kernel[axis])
            first, step = offset * geometry.dilation[axis], geometry.stride[axis]
            tap = _aten.slice.Tensor(tap, axis + 2, first, first + (out[axis] - 1) * step + 1, step)
        views.append(tap)
    return views


def max_pool_backward(
    grad: Tensor,
    x: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil_mode: bool,
    indices: Tensor,
) -> Tensor:
    """Return the gradient by x: each value of `grad` goes to the place of its maximum.

    `indices` are flat over the last two dimensions of x.
    """
    batch, channels, height, width = x.shape
    plain = (
        list(stride or kernel) == list(kernel)
        and not any(padding)
        and all(d == 1 for d in dilation)
    )
    if plain and height == 1 and kernel[0] == 1 and width % kernel[1] == 0:
        # for one-dimensional windows that do not overlap, a comparison is faster than scattering
        # and needs no zero tensor
        places = torch.arange(width, device=x.device).reshape(1, 1, width // kernel[1], kernel[1])
        hit = indices.reshape(batch, channels, -1, 1) == places
        return torch.where(hit, grad.reshape(batch, channels, -1, 1), 0.0).reshape(
            batch, channels, height, width
        )
    flat = torch.zeros_like(x).reshape(batch, channels, height * width)
    spread: Tensor = _aten.scatter_add(
        flat, 2, indices.reshape(batch, channels, -1), grad.reshape(batch, channels, -1)
    )
    return spread.reshape(batch, channels, height, width)


def adaptive_average_pool(x: Tensor, size: list[int]) -> Tensor:
    """Return the means over windows that lie side by side.

    Raises:
        ConfigError: the windows would have different sizes.
    """
    kernel = _adaptive_kernel(x, size, "Avg")
    pooled: Tensor = _aten.avg_pool2d.default(x, kernel, kernel)
    return pooled


def adaptive_max_pool(x: Tensor, size: list[int]) -> tuple[Tensor, Tensor]:
    """Return the maxima over windows that lie side by side, and their places.

    Raises:
        ConfigError: the windows would have different sizes.
    """
    kernel = _adaptive_kernel(x, size, "Max")
    best, places = _aten.max_pool2d_with_indices.default(x, kernel, kernel)
    return best, places


def adaptive_max_pool_backward(grad: Tensor, x: Tensor, indices: Tensor) -> Tensor:
    """Return the gradient by x of the maxima over windows that lie side by side."""
    kernel = [whole // parts for whole, parts in zip(x.shape[2:], grad.shape[2:], strict=True)]
    spread: Tensor = _aten.max_pool2d_with_indices_backward.default(
        grad, x, kernel, kernel, [0, 0], [1, 1], False, indices
    )
    return spread


def _adaptive_kernel(x: Tensor, size: list[int], kind: str) -> list[int]:
    kernel = [whole // parts for whole, parts in zip(x.shape[2:], size, strict=True)]
    if [side * parts for side, parts in zip(kernel, size, strict=True)] != list(x.shape[2:]):
        raise ConfigError(
            f"Adaptive{kind}Pool from {list(x.shape[2:])} to {list(size)} values cannot be trained "
            f"on a device; use sizes that divide them, or {kind}Pool"
        )
    return kernel


def adaptive_average_pool_backward(grad: Tensor, x: Tensor) -> Tensor:
    """Return the gradient by x of the means over windows that lie side by side."""
    kernel = [whole // parts for whole, parts in zip(x.shape[2:], grad.shape[2:], strict=True)]
    return average_pool_backward(grad, x, kernel, kernel, [0, 0], False, True, None)


def average_pool_backward(
    grad: Tensor,
    x: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Tensor:
    """Return the gradient by x: a value gets its share of the gradient of each of its windows.

    Raises:
        ConfigError: the pool has `ceil_mode`, `divisor_override`, or a padding that is not counted.
    """
    kernel, stride, padding = (
        per_dimension(values, 2) for values in (kernel, stride or kernel, padding)
    )
    if ceil_mode or divisor_override or (any(padding) and not count_include_pad):
        raise ConfigError(
            f"AvgPool with ceil_mode={ceil_mode}, divisor_override={divisor_override}, "
            f"count_include_pad={count_include_pad} cannot be trained on a device; use none of them"
        )
    share = grad / prod(kernel)
    (height, width), out = x.shape[2:], grad.shape[2:]
    plain = (
        kernel == stride
        and not any(padding)
        and (out[0] * kernel[0], out[1] * kernel[1]) == (height, width)
    )
    if plain and kernel[0] == 1:
        ones = torch.ones((1, 1, kernel[1]), dtype=x.dtype, device=x.device)
        return view(torch.bmm(view(share, [1, -1, 1]), ones), [-1, x.shape[1], height, width])
    if plain:
        shared = share.unsqueeze(3).unsqueeze(5).expand(-1, -1, -1, kernel[0], -1, kernel[1])
        return view(shared, [-1, x.shape[1], height, width])
    geometry = Geometry(tuple(kernel), tuple(stride), tuple(padding), (1, 1))
    views = taps(
        outer(spread(share, stride), x.shape[2:], geometry), geometry.turned(), x.shape[2:]
    )
    return functools.reduce(torch.add, views)


def outer(spread: Tensor, size: torch.Size, geometry: Geometry) -> Tensor:
    """Return `spread` padded so that the turned geometry has the output size `size`.

    Output p of the convolution reads input p * stride - padding + k * dilation. Values at the end
    of the input that are never read meet zeros.
    """
    sides = list(zip(geometry.extent, geometry.padding, size, spread.shape[2:], strict=True))
    pads = [
        side
        for extent, padding, whole, part in reversed(sides)
        for side in (extent - 1 - padding, whole - part + padding)
    ]
    padded: Tensor = _aten.constant_pad_nd(spread, pads, 0.0) if any(pads) else spread
    return padded


def spread(grad: Tensor, stride: Sequence[int]) -> Tensor:
    """Return `grad` (batch, channels, \\*out) with zeros between neighbours for strides above 1.

    Each side of the result has (out - 1) * stride + 1 values.
    """
    for d, step in enumerate(stride):
        if step > 1:
            side = grad.shape[d + 2]
            padded = _aten.constant_pad_nd(
                grad.unsqueeze(d + 3), [0, 0] * (grad.dim() - d - 3) + [0, step - 1], 0.0
            )
            merged = view(padded, [-1, *grad.shape[1 : d + 2], side * step, *grad.shape[d + 3 :]])
            grad = merged.narrow(d + 2, 0, (side - 1) * step + 1)
    return grad


def view(x: Tensor, shape: list[int]) -> Tensor:
    """Return a view of x, in whose shape -1 stands for the size that depends on the batch.

    XNNPACK accepts no other dynamic size.
    """
    viewed: Tensor = _aten.view.default(x.contiguous(), shape)
    return viewed
