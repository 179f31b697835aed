"""Views: tensors with the values of a source in another order, such as a result cut into heads.

Sources are parameters, constants and results of layers. A view holds the places of its values in
the source, as a torch tensor. Torch's own functions move these places, so that every function that
only moves values has the same effect here as in torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from algorithms.models.reading.layers import Unsupported, Value
from algorithms.models.reading.notes import Notes


class Batch:
    """Number of examples, which is 1 in every view."""


BATCH = Batch()


@dataclass(frozen=True, eq=False)
class View:
    r"""A view of a source: `at` (\*shape) int64 is the place of each value in the source.

    The source is a layer's result (1, samples, channels), the name of a parameter, or constants.
    """

    source: Value | str | Tensor
    at: Tensor


MOVING = (
    "expand",
    "repeat",
    "unflatten",
    "reshape",
    "view",
    "permute",
    "transpose",
    "unbind",
    "chunk",
    "flatten",
    "unsqueeze",
    "squeeze",
)
"""Methods of a tensor that only move or repeat its values."""


def viewed(source: Value | str | Tensor, shape: Sequence[int]) -> View:
    """Return a view of all values of a source, in its own order."""
    return View(source, torch.arange(prod(shape)).reshape(*shape))


def moved(name: str, x: View | Value, *args: Any, **kwargs: Any) -> Any:
    """Return the result of a method of `MOVING`: a view, a tuple of views, or a layer's result.

    It is the layer's result if all values are in its order.

    Raises:
        Unsupported: the arguments are invalid for the method.
    """
    view = x if isinstance(x, View) else _of_result(x)
    arguments = tuple(1 if value is BATCH else value for value in args)
    arguments = tuple(
        tuple(1 if v is BATCH else v for v in value) if isinstance(value, (tuple, list)) else value
        for value in arguments
    )
    try:
        places = getattr(view.at, name)(*arguments, **kwargs)
    except (RuntimeError, TypeError, IndexError) as error:
        raise Unsupported(f"with {args}: {str(error).splitlines()[0]}") from None
    return (
        tuple(_settled(view.source, piece) for piece in places)
        if isinstance(places, (tuple, list))
        else _settled(view.source, places)
    )


def item(x: View, at: Any) -> Any:
    """Return a part of a view."""
    return _settled(x.source, x.at[at])


def shape_of(x: View | Value) -> tuple[Any, ...]:
    """Return torch's shape, with `BATCH` in front.

    A view of parameters or constants has no batch.
    """
    if isinstance(x, View):
        shape: tuple[Any, ...] = tuple(x.at.shape)
        return shape if isinstance(x.source, (str, Tensor)) else (BATCH, *shape[1:])
    return (BATCH, *((*x.sizes, x.channels) if x.last else (x.channels, *x.sizes)))


def size(x: View | Value, dim: int | None = None) -> Any:
    """Return the result of `torch.Tensor.size`."""
    return shape_of(x) if dim is None else shape_of(x)[dim]


def added(reader: Notes, x: Value, table: View) -> Value:
    """Return a layer's result plus parameters or constants, one per sample and channel."""
    if not x.sizes or x.grid[0] > 1:
        raise Unsupported("of parameters and a value that is not a window of samples")
    shape = tuple(shape_of(x)[1:])
    try:
        at = table.at.expand(1, *shape)[0] if table.at.dim() <= 3 else None
    except RuntimeError:
        at = None
    if at is None:
        raise Unsupported(
            f"of parameters or constants {list(table.at.shape)} and {list(shape)} of an example"
        )
    return _tabled(reader, x, table.source, at if x.last else at.T, 0)


def joined(reader: Notes, parts: Sequence[Any], dim: int = 0) -> Value:
    """Return a layer's result with rows of parameters or constants in front."""
    *fronts, x = parts
    if (
        len(fronts) != 1
        or not isinstance(fronts[0], View)
        or isinstance(x, View)
        or not x.last
        or x.grid[0] > 1
        or dim not in (1, -2)
    ):
        raise Unsupported(
            "of anything but one parameter or constant in front of the samples of a window"
        )
    front = fronts[0].at
    if front.dim() != 3 or front.shape[0] != 1 or front.shape[2] != x.channels:
        raise Unsupported(
            f"of parameters or constants {list(front.shape)} and {x.channels} channels"
        )
    return _tabled(reader, x, fronts[0].source, front[0], front.shape[1])


def attended(
    reader: Notes,
    q: Any,
    k: Any,
    v: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
) -> View:
    """Return the attention of queries, keys and values, which one layer computes side by side.

    Each is (batch, heads, samples, size of a head).
    """
    if attn_mask is not None or dropout_p or is_causal:
        raise Unsupported("with a mask or dropout")
    if not all(isinstance(x, View) and x.at.dim() == 4 for x in (q, k, v)):
        raise Unsupported("of values that are not heads of one layer")
    x, (_, heads, samples, width) = q.source, q.at.shape
    whole = heads * width
    if (
        isinstance(x, (str, Tensor))
        or x.channels != 3 * whole
        or x.sizes != (samples,)
        or reader.layers[x.layer].kind != "conv"
    ):
        raise Unsupported("of heads that are not those of one Linear")
    query_places = (
        torch.arange(samples)[:, None] * 3 * whole
        + torch.arange(heads)[:, None, None] * width
        + torch.arange(width)
    )
    for number, part in enumerate((q, k, v)):
        if part.source != x or not torch.equal(part.at[0], query_places + number * whole):
            raise Unsupported("of queries, keys and values that do not lie one after the other")
    if reader.layers[x.layer].parts != 1:
        raise Unsupported("of heads that are read twice")
    reader.layers[x.layer] = replace(reader.layers[x.layer], parts=3)
    output = reader.add("attention", x, whole, x.sizes, x.grid, outputs=whole, parts=3, row=heads)
    return View(
        replace(output, last=True),
        (query_places - 2 * whole * torch.arange(samples)[:, None])[None],
    )


def _of_result(x: Value) -> View:
    if not x.last or x.grid[0] > 1:
        raise Unsupported("of a value that is not (batch, samples, channels) of a window")
    return viewed(x, (1, *x.sizes, x.channels))


def _settled(source: Value | str | Tensor, at: Tensor) -> View | Value:
    if isinstance(source, (str, Tensor)):
        return View(source, at)
    shape = (1, *source.sizes, source.channels)
    return (
        source
        if at.shape == shape and torch.equal(at.flatten(), torch.arange(at.numel()))
        else View(source, at)
    )


def _tabled(reader: Notes, x: Value, source: Value | str | Tensor, at: Tensor, front: int) -> Value:
    """Return x with a table's rows `at` (rows, channels).

    `front` of the rows are in front of the samples of x; if it is 0, all rows are added to the
    samples.
    """
    samples = x.sizes[0] + front
    table: dict[str, Any] = {"rows": len(at), "row": front}
    if isinstance(source, Tensor):
        table["values"] = tuple(source.flatten()[at.flatten()].tolist())
    elif isinstance(source, str):
        places = tuple(at.flatten().tolist())
        if sorted(places) != list(range(prod(reader.parameters[source]))):
            raise Unsupported(f"of a part of {source}, or of values of it that are repeated")
        if source in reader.shapes:
            raise Unsupported(f"{source} is used more than once")
        reader.shapes[source] = reader.parameters[source]
        table |= {"places": places, "tensors": {"weight": source}}
    else:
        raise Unsupported("of samples in another order")
    return replace(
        reader.add("table", x, x.channels, (samples,), (1, samples), **table), last=x.last
    )
