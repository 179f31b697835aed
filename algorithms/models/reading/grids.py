"""Rules of `algorithms.models.reading.reader` for convolutions, BatchNorm and pools.

These layers see the samples of a window, or the pixels of an image, as a grid.
"""

from math import prod
from typing import Any

from torch import nn

from algorithms.models.reading.layers import Pair, Unsupported, Value
from algorithms.models.reading.notes import Notes
from wire.arrays import names


def conv(reader: Notes, name: str, module: nn.Conv1d | nn.Conv2d, x: Value) -> Value:
    """Return the result of a convolution: strided, padded and dilated, but not in groups."""
    dims = _dimensions(reader, name, module, x)
    reader.require(name, module, groups=1, padding_mode="zeros")
    reader.expect(name, module, module.in_channels, x)
    kernel, stride, dilation = (
        pair(getattr(module, option), dims, 1) for option in ("kernel_size", "stride", "dilation")
    )
    around = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    if module.padding == "same":
        before: Pair = (around[0] // 2, around[1] // 2)
        after: Pair = (around[0] - before[0], around[1] - before[1])
    else:
        before = after = (
            (0, 0) if isinstance(module.padding, str) else pair(module.padding, dims, 0)
        )
    lines, columns = (
        (n + b + a - r - 1) // s + 1
        for n, b, a, r, s in zip(x.grid, before, after, around, stride, strict=True)
    )
    sizes, grid = _after(reader, name, x, (lines, columns), dims)
    looks = {
        "kernel": kernel,
        "stride": stride,
        "before": before,
        "after": after,
        "dilation": dilation,
    }
    outputs, tensors = module.out_channels, reader.tensors(name, module)
    return reader.add("conv", x, outputs, sizes, grid, outputs=outputs, tensors=tensors, **looks)


def norm(reader: Notes, name: str, module: nn.BatchNorm1d | nn.BatchNorm2d, x: Value) -> Value:
    """Return the result of BatchNorm, whose running statistics move by a fixed momentum."""
    if x.sizes or isinstance(module, nn.BatchNorm2d):
        _dimensions(reader, name, module, x)
    reader.expect(name, module, module.num_features, x)
    if module.momentum is None or not module.track_running_stats:
        raise Unsupported(
            f"{name} is {type(module).__name__} without running statistics that move by a fixed "
            "momentum"
        )
    tensors = reader.tensors(name, module, (names.RUNNING_MEAN, names.RUNNING_VAR))
    return reader.add(
        "norm",
        x,
        x.channels,
        x.sizes,
        x.grid,
        eps=module.eps,
        momentum=module.momentum,
        tensors=tensors,
    )


def max_pool(reader: Notes, name: str, module: nn.MaxPool1d | nn.MaxPool2d, x: Value) -> Value:
    """Return the result of max-pooling over parts that do not overlap."""
    dims = _dimensions(reader, name, module, x)
    _require_apart(reader, name, module, dims)
    reader.require(name, module, padding=0, dilation=1, ceil_mode=False, return_indices=False)
    return _pool(reader, name, "max_pool", x, pair(module.kernel_size, dims, 1), dims)


def avg_pool(reader: Notes, name: str, module: nn.AvgPool1d | nn.AvgPool2d, x: Value) -> Value:
    """Return the result of average-pooling over parts that do not overlap."""
    dims = _dimensions(reader, name, module, x)
    _require_apart(reader, name, module, dims)
    reader.require(name, module, padding=0, ceil_mode=False)
    if getattr(module, "divisor_override", None) is not None:
        raise Unsupported(f"{name} is {type(module).__name__} with a divisor of its own")
    return _pool(reader, name, "avg_pool", x, pair(module.kernel_size, dims, 1), dims)


def adaptive(
    reader: Notes, name: str, module: nn.AdaptiveAvgPool1d | nn.AdaptiveAvgPool2d, x: Value
) -> Value:
    """Return the result of average-pooling over everything."""
    dims = _dimensions(reader, name, module, x)
    reader.require(name, module, output_size=1)
    return _pool(reader, name, "avg_pool", x, x.grid, dims)


def _dimensions(reader: Notes, name: str, module: nn.Module, x: Value) -> int:
    """Return the dimensions of a layer: 1 for time windows, 2 for images."""
    dims = 2 if type(module).__name__.endswith("2d") else 1
    if not x.sizes:
        raise Unsupported(f"{name} is {type(module).__name__} after Flatten")
    if len(x.sizes) != dims or prod(x.grid) != prod(x.sizes) or (dims == 1 and x.grid[0] != 1):
        raise Unsupported(
            f"{name} is {type(module).__name__}, and gets {x.channels} channels of "
            f"{' x '.join(map(str, x.sizes))}"
        )
    return dims


def _after(
    reader: Notes, name: str, x: Value, grid: Pair, dims: int
) -> tuple[tuple[int, ...], Pair]:
    if min(grid) < 1:
        raise Unsupported(f"{name} leaves nothing of {' x '.join(map(str, x.sizes))} samples")
    return grid[2 - dims :], grid


def _pool(reader: Notes, name: str, kind: str, x: Value, kernel: Pair, dims: int) -> Value:
    sizes, grid = _after(reader, name, x, (x.grid[0] // kernel[0], x.grid[1] // kernel[1]), dims)
    return reader.add(kind, x, x.channels, sizes, grid, kernel=kernel) if kernel != (1, 1) else x


def _require_apart(reader: Notes, name: str, module: Any, dims: int) -> None:
    """Raise Unsupported if a pool's parts overlap or leave gaps between them."""
    if pair(module.stride, dims, 1) != pair(module.kernel_size, dims, 1):
        raise Unsupported(
            f"{name} is {type(module).__name__} with stride={module.stride}, not that of its "
            f"kernel, {module.kernel_size}"
        )


def pair(value: int | tuple[int, ...], dims: int, one: int) -> Pair:
    """Return an option of a layer as (lines, columns).

    `one` is the value for the only line of a time window.
    """
    values = (value,) * dims if isinstance(value, int) else tuple(value)
    return (one, values[0]) if dims == 1 else (values[0], values[1])
