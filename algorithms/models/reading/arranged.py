"""Rules of `algorithms.models.reading.reader` for transposition, flattening and means."""

from dataclasses import replace
from math import prod
from typing import Any

from torch import nn

from algorithms.models.reading import views
from algorithms.models.reading.layers import Unsupported, Value
from algorithms.models.reading.notes import Notes


def transposed(reader: Notes, x: Value, one: int, other: int) -> Value:
    """Return x with channels after the samples, or before them again."""
    if len(x.sizes) != 1 or {one % 3, other % 3} != {1, 2}:
        raise Unsupported(f"of {one} and {other}: only of channels and samples")
    return replace(x, last=not x.last)


def permuted(reader: Notes, x: Value, order: Any) -> Value:
    """Return x with channels and samples exchanged, from the arguments of torch.permute."""
    if [d % 3 for d in order] != [0, 2, 1]:
        raise Unsupported(f"to {tuple(order)}: only of channels and samples")
    return transposed(reader, x, 1, 2)


def flatten(reader: Notes, name: str, module: nn.Flatten, x: Value) -> Value:
    """Return all values of an example as a vector, for the layer nn.Flatten."""
    reader.require(name, module, start_dim=1, end_dim=-1)
    return flattened(reader, x, 1)


def flattened(reader: Notes, x: Value, start_dim: int = 0, end_dim: int = -1) -> Value:
    """Return all values of an example as a vector, or all samples of each channel."""
    last = len(x.sizes) + 1
    if x.last:
        raise Unsupported("of channels behind the samples")
    if end_dim not in (-1, last) or start_dim not in (1, 2):
        raise Unsupported(f"from dimension {start_dim} to {end_dim}")
    if start_dim == 2:
        return replace(x, sizes=(prod(x.sizes),))
    return reader.add("flatten", x, x.channels * prod(x.sizes), (), (1, 1)) if x.sizes else x


def reshaped(reader: Notes, name: str, x: Value, *shape: Any) -> Any:
    """Return all values of an example as a vector, or the result of `views.moved`."""
    flat = (shape[0] if len(shape) == 1 else shape) in ((views.BATCH, -1), [views.BATCH, -1])
    return flattened(reader, x, 1) if flat and not x.last else views.moved(name, x, *shape)


def mean(reader: Notes, x: Value, dim: int | tuple[int, ...] = (), keepdim: bool = False) -> Value:
    """Return the mean over the samples or the pixels of each channel."""
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    window_dims = {1} if x.last else set(range(2, len(x.sizes) + 2))
    if {d % (len(x.sizes) + 2) for d in dims} != window_dims or keepdim or not x.sizes:
        raise Unsupported(f"over {dim}: only over all but examples and channels")
    pooled = (
        x
        if x.grid == (1, 1)
        else reader.add("avg_pool", x, x.channels, (1,), (1, 1), kernel=x.grid)
    )
    return replace(
        flattened(reader, replace(pooled, sizes=(1,), last=False), 1), channels=x.channels
    )
