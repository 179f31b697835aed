"""The examples of one device, in the forms that Python programs use."""

import logging
from collections.abc import Mapping
from datetime import date, datetime, time
from numbers import Number
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from edge_client.data.padding import stacked
from wire.errors import DataError

Examples: TypeAlias = (
    "tuple[ArrayLike, ArrayLike] | tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike] | Dataset[Any]"
)
"""A pair (x, y), a tuple (x, y, test_x, test_y), or a map-style data set of pairs.

A label is a class number, or a row of 0 and 1 for several labels. Windows of different lengths are
a list of arrays (channels, time), or the examples of a data set. Windows of several sensors are a
mapping from names to arrays.
"""
log = logging.getLogger("shoal.data")


Uneven: TypeAlias = list[NDArray[Any]]
"""Windows (channels, time) that differ in length."""


def arrays_of(
    device_id: str, examples: Examples
) -> tuple[NDArray[Any] | Uneven, NDArray[Any], NDArray[Any]]:
    """Return the ``X``, ``y`` and ``split`` of a ``.npz`` from a device's examples.

    Windows that differ in length stay a list. All are ``train`` without a test part.

    Raises:
        DataError: they are not examples; the text names the device.
    """
    where = f"data, device {device_id!r}"
    parts = items_of(where, examples)[:2] if isinstance(examples, Dataset) else examples
    if not isinstance(parts, tuple) or len(parts) not in (2, 4):
        form = f"a tuple of {len(parts)}" if isinstance(parts, tuple) else type(parts).__name__
        raise DataError(
            f"{where}: expected (x, y), (x, y, test_x, test_y) or a torch Dataset, got {form}"
        )
    (*xs,), (*ys,) = (windows_of(where, x) for x in parts[::2]), (array_of(y) for y in parts[1::2])
    for x, y in zip(xs, ys, strict=True):
        if not np.ndim(y) or len(y) != len(x) or not len(x):
            x_form = f"{len(x)} windows" if isinstance(x, list) else f"{x.dtype}{list(x.shape)}"
            raise DataError(
                f"{where}: expected a label for each example, got x as {x_form} and y as "
                f"{y.dtype}{list(y.shape)}"
            )
    split, y = (
        np.repeat(["train", "test"][: len(ys)], [len(y) for y in ys]),
        _joined(where, "labels", ys),
    )
    even = [x for x in xs if not isinstance(x, list)]
    if len(even) < len(xs):
        return [window for x in xs for window in x], y, split
    return _joined(where, "examples", even), y, split


def windows_of(where: str, value: Any) -> NDArray[Any] | Uneven:
    """Return examples as one array, or as a list if windows differ in length.

    The inputs of a mapping become channels of one array.

    Raises:
        DataError: they differ in other ways; `where` begins the text.
    """
    if isinstance(value, Mapping):
        return _one_input(where, value)
    if isinstance(value, list | tuple) or (
        isinstance(value, np.ndarray) and value.dtype.kind == "O"
    ):
        try:
            windows = [array_of(window) for window in value]
            shapes = {window.shape for window in windows}
            if len(shapes) > 1 and all(window.ndim == 2 for window in windows):
                return windows
            return np.stack(windows) if windows else np.asarray(value)
        except (ValueError, TypeError):
            sizes = ", ".join(map(str, sorted({tuple(np.shape(window)) for window in value})[:3]))
            raise DataError(
                f"{where}: expected examples of one shape, or (channels, time) of any length, got "
                f"shapes {sizes}"
            ) from None
    return array_of(value)


def padded(windows: Uneven, length: int | None) -> dict[str, NDArray[Any]]:
    """Return the ``X`` and ``lengths`` of a ``.npz`` from windows that differ in length.

    They are padded to `length` samples, or to the longest.

    Raises:
        DataError: one is not (channels, time) with the same channels, or is longer than that.
    """
    x, lengths = stacked(windows, length or max(window.shape[-1] for window in windows), "data")
    return {"X": x, "lengths": lengths}


def array_of(value: Any) -> NDArray[Any]:
    """Return values as an array of numbers, times or text; a missing number is NaN, a text "".

    Values of other kinds stay objects.
    """
    if isinstance(value, Tensor):
        return value.detach().cpu().numpy()
    array = np.asarray(value.to_numpy() if hasattr(value, "to_numpy") else value)
    if array.dtype.kind == "m":
        return np.asarray(array / np.timedelta64(1, "s"))
    if array.dtype.kind != "O":
        return array
    cells = array.ravel().tolist()
    missing = [_is_missing(cell) for cell in cells]
    values = [cell for cell, lacks in zip(cells, missing, strict=True) if not lacks]
    if values and all(isinstance(cell, str) for cell in values):
        cells = ["" if lacks else cell for cell, lacks in zip(cells, missing, strict=True)]
    elif values and all(isinstance(cell, datetime) for cell in values):
        cells = [
            np.nan if lacks else c.timestamp() for c, lacks in zip(cells, missing, strict=True)
        ]
    elif values and all(isinstance(cell, date | time) for cell in values):
        cells = ["" if lacks else str(c) for c, lacks in zip(cells, missing, strict=True)]
    elif all(isinstance(cell, Number) for cell in values):
        if any(missing) or not all(isinstance(cell, int | np.integer) for cell in values):
            cells = [np.nan if lacks else float(c) for c, lacks in zip(cells, missing, strict=True)]
    else:
        return array
    return np.array(cells).reshape(array.shape)


def _is_missing(cell: Any) -> bool:
    """Return True for None, NaN, and what pandas writes for a missing value."""
    if cell is None or type(cell).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(cell, float) and bool(np.isnan(cell))


def input_channels(inputs: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the channels that windows of several inputs get together."""
    names = []
    for name, value in inputs.items():
        array = array_of(value)
        count = 1 if array.ndim == 2 else array.shape[1]
        names += [name] if count == 1 else [f"{name}.{i}" for i in range(count)]
    return tuple(names)


def _one_input(where: str, inputs: Mapping[str, Any]) -> NDArray[Any]:
    """Return windows (n, channels, time) of several inputs over the same spans of time.

    Inputs are (n, channels, time) or (n, time), each with a time of its own. A sample of a slower
    input stands at all samples of the fastest that fall into its time, so that no value is made up.

    Raises:
        DataError: an input has another number of windows, or is no array of windows.
    """
    arrays = {name: array_of(value) for name, value in inputs.items()}
    arrays = {name: a[:, None] if a.ndim == 2 else a for name, a in arrays.items()}
    counts = {len(a) for a in arrays.values() if a.ndim == 3}
    if not arrays or len(counts) != 1 or any(a.ndim != 3 or not a.size for a in arrays.values()):
        shapes = ", ".join(f"{name} {list(a.shape)}" for name, a in arrays.items()) or "none"
        raise DataError(
            f"{where}: several inputs are arrays (n, channels, time) of the same windows, by name, "
            f"got {shapes}"
        )
    length = max(a.shape[2] for a in arrays.values())
    for name, a in arrays.items():
        if a.shape[2] < length:
            text = "%s: input %s has %d samples in a window of %d, and each is repeated"
            log.warning(text, where, name, a.shape[2], length)
    places = {name: np.arange(length) * a.shape[2] // length for name, a in arrays.items()}
    return np.concatenate([a[:, :, places[name]] for name, a in arrays.items()], axis=1)


class Items(NamedTuple):
    """Examples of a data set, and the owner of each if its items have one."""

    x: Any
    y: NDArray[Any]
    owner: NDArray[Any] | None


def items_of(where: str, data: "Dataset[Any]", label: str = "", person: str = "") -> Items:
    """Return the examples of a map-style data set.

    An item is an example and its label, and optionally its owner; or a mapping in which `label`
    and `person` name these.

    Raises:
        DataError: the data set has no length, or other items.
    """
    if isinstance(data, TensorDataset) and len(data.tensors) in (2, 3):
        tensors = [array_of(tensor) for tensor in data.tensors]
        return Items(tensors[0], tensors[1], tensors[2] if tensors[2:] else None)
    if not hasattr(data, "__len__"):
        raise DataError(
            f"{where}: expected a map-style Dataset, got {type(data).__name__} without a length"
        )
    items = [data[i] for i in range(len(data))]
    if items and all(isinstance(item, Mapping) and label in item for item in items):
        items = [_of_mapping(item, label, person) for item in items]
    sizes = {len(item) if isinstance(item, tuple | list) else 0 for item in items}
    if sizes not in ({2}, {3}):
        keys = f" with {', '.join(items[0])}" if items and isinstance(items[0], Mapping) else ""
        raise DataError(
            f"{where}: {type(data).__name__} of {len(items)} items{keys}, expected pairs of an "
            "example and its label, or mappings in which label='NAME' and person='NAME' name them"
        )
    examples, labels, *owners = zip(*items, strict=True)
    x: Any = examples
    if isinstance(x[0], Mapping):
        x = {name: np.stack([array_of(each[name]) for each in x]) for name in x[0]}
    y = np.stack([array_of(each) for each in labels])
    return Items(x, y, array_of([_plain(each) for each in owners[0]]) if owners else None)


def _of_mapping(item: Mapping[str, Any], label: str, person: str) -> tuple[Any, ...]:
    """Return the example of a mapping, its label, and its owner if `person` names one."""
    inputs = {name: value for name, value in item.items() if name not in (label, person)}
    x = next(iter(inputs.values())) if len(inputs) == 1 else inputs
    return (x, item[label], item[person]) if person else (x, item[label])


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor | np.generic) else value


def _joined(where: str, what: str, arrays: list[NDArray[Any]]) -> NDArray[Any]:
    if arrays[0].shape[1:] != arrays[-1].shape[1:]:
        raise DataError(
            f"{where}: training {what} have shape {arrays[0].shape[1:]}, but test {what} "
            f"{arrays[-1].shape[1:]}"
        )
    return np.concatenate(arrays)
