"""The examples of one device, in the forms that Python programs use."""

from typing import Any, TypeAlias

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
a list of arrays (channels, time), or the examples of a data set.
"""


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
    parts = _of_dataset(where, examples) if isinstance(examples, Dataset) else examples
    if not isinstance(parts, tuple) or len(parts) not in (2, 4):
        form = f"a tuple of {len(parts)}" if isinstance(parts, tuple) else type(parts).__name__
        raise DataError(
            f"{where}: expected (x, y), (x, y, test_x, test_y) or a torch Dataset, got {form}"
        )
    (*xs,), (*ys,) = (windows_of(where, x) for x in parts[::2]), (_array(y) for y in parts[1::2])
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

    Raises:
        DataError: they differ in other ways; `where` begins the text.
    """
    if isinstance(value, list | tuple) or (
        isinstance(value, np.ndarray) and value.dtype.kind == "O"
    ):
        try:
            windows = [_array(window) for window in value]
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
    return _array(value)


def padded(windows: Uneven, length: int | None) -> dict[str, NDArray[Any]]:
    """Return the ``X`` and ``lengths`` of a ``.npz`` from windows that differ in length.

    They are padded to `length` samples, or to the longest.

    Raises:
        DataError: one is not (channels, time) with the same channels, or is longer than that.
    """
    x, lengths = stacked(windows, length or max(window.shape[-1] for window in windows), "data")
    return {"X": x, "lengths": lengths}


def _joined(where: str, what: str, arrays: list[NDArray[Any]]) -> NDArray[Any]:
    if arrays[0].shape[1:] != arrays[-1].shape[1:]:
        raise DataError(
            f"{where}: training {what} have shape {arrays[0].shape[1:]}, but test {what} "
            f"{arrays[-1].shape[1:]}"
        )
    return np.concatenate(arrays)


def _array(value: Any) -> NDArray[Any]:
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)


def _of_dataset(where: str, data: "Dataset[Any]") -> tuple[Any, NDArray[Any]]:
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        return _array(data.tensors[0]), _array(data.tensors[1])
    if not hasattr(data, "__len__"):
        raise DataError(
            f"{where}: expected a map-style Dataset, got {type(data).__name__} without a length"
        )
    pairs = [data[i] for i in range(len(data))]
    if not pairs or any(not isinstance(pair, tuple | list) or len(pair) != 2 for pair in pairs):
        raise DataError(
            f"{where}: {type(data).__name__} of {len(pairs)} items, expected pairs of an example "
            "and its label"
        )
    return windows_of(where, [x for x, _ in pairs]), np.stack([_array(y) for _, y in pairs])
