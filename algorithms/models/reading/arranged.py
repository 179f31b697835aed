"""Results in another arrangement, as `algorithms.models.reading.reader` reads them: channels behind
the samples, all in a row, or their mean."""

from dataclasses import replace
from math import prod
from typing import Any

from torch import nn

from algorithms.models.reading import views
from algorithms.models.reading.layers import Unsupported, Value
from algorithms.models.reading.notes import Notes


def transposed(reader: Notes, x: Value, one: int, other: int) -> Value:
    """Channels behind the samples, or before them again."""
    if len(x.sizes) != 1 or {one % 3, other % 3} != {1, 2}:
        raise Unsupported(f"of {one} and {other}: only of channels and samples")
    return replace(x, last=not x.last)


def permuted(reader: Notes, x: Value, order: Any) -> Value:
    """The same, as torch.permute says it."""
    if [d % 3 for d in order] != [0, 2, 1]:
        raise Unsupported(f"to {tuple(order)}: only of channels and samples")
    return transposed(reader, x, 1, 2)


def flatten(reader: Notes, name: str, module: nn.Flatten, x: Value) -> Value:
    """All values of an example in a row, as the layer says it."""
    reader.require(name, module, start_dim=1, end_dim=-1)
    return flattened(reader, x, 1)


def flattened(reader: Notes, x: Value, start_dim: int = 0, end_dim: int = -1) -> Value:
    """All values of an example in a row, or all samples of each channel."""
    last = len(x.sizes) + 1
    if x.last:
        raise Unsupported("of channels behind the samples")
    if end_dim not in (-1, last) or start_dim not in (1, 2):
        raise Unsupported(f"from dimension {start_dim} to {end_dim}")
    if start_dim == 2:
        return replace(x, sizes=(prod(x.sizes),))
    return reader.add("flatten", x, x.channels * prod(x.sizes), (), (1, 1)) if x.sizes else x


def reshaped(reader: Notes, name: str, x: Value, *shape: Any) -> Any:
    """All values of an example in a row, or what `views` makes of it."""
    flat = (shape[0] if len(shape) == 1 else shape) in ((views.BATCH, -1), [views.BATCH, -1])
    return flattened(reader, x, 1) if flat and not x.last else views.moved(name, x, *shape)


def mean(reader: Notes, x: Value, dim: int | tuple[int, ...] = (), keepdim: bool = False) -> Value:
    """Over the samples or the pixels of each channel."""
    given = (dim,) if isinstance(dim, int) else tuple(dim)
    over = {1} if x.last else set(range(2, len(x.sizes) + 2))
    if {d % (len(x.sizes) + 2) for d in given} != over or keepdim or not x.sizes:
        raise Unsupported(f"over {dim}: only over all but examples and channels")
    pooled = (
        x
        if x.grid == (1, 1)
        else reader.add("avg_pool", x, x.channels, (1,), (1, 1), kernel=x.grid)
    )
    return replace(
        flattened(reader, replace(pooled, sizes=(1,), last=False), 1), channels=x.channels
    )
