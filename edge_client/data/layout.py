"""Checks of arrays of examples, for devices and simulations alike.

An error about a wrong layout suggests what is likely meant. `channel_names` settle a doubtful case:
they confirm that an array has as many channels as it seems to have.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

import numpy as np

from edge_client.core.ports import Windows
from edge_client.data.labels import fit_labels_of
from edge_client.data.padding import to_length
from edge_client.data.recordings.stretches import SAME_RATE
from edge_client.data.tables.parts import add_line
from wire.arrays.tensors import Array
from wire.bundle import Manifest, Window
from wire.errors import DataError
from wire.tasks import CLASSIFICATION, NO_LABEL, RECONSTRUCTION, SEQUENCE, split_unlabelled

log = logging.getLogger("shoal.data")

_NO_CHANNEL = re.compile(r"c\d+")
"""Channel of a bundle whose data had no names."""
SQUARE = 8
"""Minimum number of channels at which square windows count as images."""
COLOURS = (1, 3, 4)
"""Possible numbers of channels of an image."""


def examples(x: Array, origin: str, names: Sequence[str] = (), has_ids: bool = False) -> Array:
    """Return examples X as float32, or as they are if they are whole numbers.

    X is (n, channels, time) or (n, channels, height, width). `fitting` converts whole numbers to
    the dtype of a bundle.

    Args:
        x: the examples.
        origin: source of the examples, with which errors start.
        names: names of the channels, if there are any.
        has_ids: True if whole numbers are known to be ids. If not, their range is logged.

    Raises:
        DataError: the number of axes is wrong, the values are not numbers, the axes are likely in
            another order, or a value is not finite (the text has the place of the first one).
    """
    description = f"{origin}: X is {x.dtype}{list(x.shape)}"
    if x.dtype.kind == "O":
        raise DataError(
            f"{description}: its windows differ in length, or are not arrays; pad them and store "
            "lengths, or give recordings as CSV"
        )
    if x.ndim == 2 and x.size:
        raise DataError(
            f"{description}; windows of one channel are [n, 1, time]: use X[:, None, :]"
        )
    if x.ndim not in (3, 4) or x.dtype.kind not in "fiu" or not x.size:
        raise DataError(
            f"{description}, expected float[n, channels, time], or for images float[n, channels, "
            "height, width]"
        )
    _check_axes(x, description, names)
    if x.dtype.kind in "iu":
        if not has_ids:
            log.warning(
                "%s: whole numbers from %d to %d count as measurements unless the bundle has ids",
                description,
                x.min(),
                x.max(),
            )
        return np.ascontiguousarray(x)
    array = np.ascontiguousarray(x, np.float32)
    _check_finite(x, array, origin, names)
    return array


def vocabulary(value: Array | None, origin: str) -> int:
    """Return the number of ids that an array ``vocabulary`` holds, 0 if there is no array.

    Raises:
        DataError: the array is not one whole number of at least 1.
    """
    if value is None:
        return 0
    if value.size != 1 or value.dtype.kind not in "iu" or int(value.item()) < 1:
        raise DataError(
            f"{origin}: vocabulary must be one whole number from 1, the number of ids, got "
            f"{value.dtype}{list(value.shape)}"
        )
    return int(value.item())


def fitting(x: Array, window: Window, origin: str) -> Array:
    """Return examples (n, \\*shape) in the dtype and length of `window`.

    Only windows that may be padded are lengthened (`edge_client.data.padding`).

    Raises:
        DataError: the window has ids, and x has no whole numbers or an id outside the vocabulary.
            The error starts with `origin` and names the id.
    """
    if not window.vocabulary:
        return np.ascontiguousarray(to_length(x, window), np.float32)
    if x.dtype.kind not in "iu" and x.size:
        raise DataError(
            f"{origin}: X must hold ids from 0 to {window.vocabulary - 1}, whole numbers, got "
            f"{x.dtype}{list(x.shape)}"
        )
    wrong = (x < 0) | (x >= window.vocabulary)
    if wrong.any():
        first = tuple(int(i) for i in np.argwhere(wrong)[0])
        place = f"window {first[0]}, channel {first[1]}, sample {', '.join(map(str, first[2:]))}"
        raise DataError(
            f"{origin}: X must hold ids from 0 to {window.vocabulary - 1}, got {x[first]} at "
            f"{place}"
        )
    return np.ascontiguousarray(x, np.int64)


PARTS = {
    "train_x": "training windows",
    "test_x": "test windows",
    "unlabelled_x": "windows without labels",
}
"""Names of the arrays of a device's windows in error messages."""


def fit_windows(windows: Windows, window: Window, origins: Mapping[str, str]) -> Windows:
    """Return a device's windows with each of their arrays made `fitting`.

    Windows that fit are returned unchanged. An error about an array starts with its origin.

    Raises:
        DataError: the window has ids, and an array has no whole numbers or an id outside the
            vocabulary.
    """
    old_arrays = {part: getattr(windows, part) for part in origins}
    new_arrays = {part: fitting(x, window, origins[part]) for part, x in old_arrays.items()}
    if all(new_arrays[part] is x for part, x in old_arrays.items()):
        return windows
    return Windows(
        **{
            part.name: new_arrays.get(part.name, getattr(windows, part.name))
            for part in fields(Windows)
        }
    )


def check_shape(windows: Windows, manifest: Manifest) -> Windows:
    """Return a device's windows made `fitting` for a bundle.

    Raises:
        DataError: the windows do not have the shape that the bundle expects.
    """
    fitted, shape = fit_windows(windows, manifest.window, PARTS), manifest.window.shape
    unlabelled = [fitted.unlabelled_x] if fitted.num_unlabelled else []
    for part, x in zip(PARTS.values(), (fitted.train_x, fitted.test_x, *unlabelled), strict=False):
        if x.shape[1:] != shape:
            raise DataError(
                f"{part} must have shape {shape} for bundle {manifest.name}, got "
                f"{x.shape[1:]}{likely_meant(x.shape[1:], shape)}"
            )
    return fitted


def no_windows(window: Window) -> Windows:
    """Return the windows of a device that has none."""
    x, y = np.zeros((0, *window.shape), window.dtype), np.zeros(0, np.int64)
    return Windows(x, y, x, y)


def windows_for(manifest: Manifest, windows: Windows) -> Windows:
    """Return a device's windows as the task of a bundle uses them.

    Channels and classes are taken by their names. A task without labels uses all windows for
    training and testing.

    Raises:
        DataError: the labels belong to another task, or have a class that the bundle lacks; a
            channel is missing, or the samples have another rate.
    """
    windows = _by_names(windows, manifest)
    return (
        fit_labels_of(windows, manifest)
        if manifest.task != RECONSTRUCTION
        else without_labels(windows)
    )


def _by_names(windows: Windows, manifest: Manifest) -> Windows:
    """Return a device's windows with the channels and classes of a bundle, in its order.

    What has no names on one of the two sides is taken in its order, and so are classes whose names
    are their numbers beside classes with other names.
    """
    window = manifest.window
    if windows.rate_hz and window.rate_hz and abs(windows.rate_hz / window.rate_hz - 1) > SAME_RATE:
        raise DataError(
            f"bundle {manifest.name} needs {window.rate_hz:g} samples a second, and the data have "
            f"{windows.rate_hz:g}. {add_line(f'rate = {window.rate_hz:g}')}"
        )
    arrays = {part: getattr(windows, part) for part in PARTS}
    channels = windows.channels
    if (
        channels
        and channels != window.channels
        and not all(map(_NO_CHANNEL.fullmatch, window.channels))
    ):
        if missing := [name for name in window.channels if name not in channels]:
            raise DataError(
                f"bundle {manifest.name} needs channel {missing[0]!r} "
                f"({', '.join(window.channels)}), and the data have {', '.join(channels)}"
            )
        places = [channels.index(name) for name in window.channels]
        arrays = {p: x[:, places] if x.ndim > 1 else x for p, x in arrays.items()}
    names = windows.classes
    numbers = _are_numbers(names) and not all(name.isdecimal() for name in manifest.classes)
    by_name = manifest.task in (CLASSIFICATION, SEQUENCE) and names and not numbers
    if by_name and names != manifest.classes:
        arrays["train_y"] = _renumbered(windows.train_y, names, manifest)
        arrays["test_y"] = _renumbered(windows.test_y, names, manifest)
    if all(x is getattr(windows, part) for part, x in arrays.items()):
        return windows
    return replace(windows, **arrays, channels=(), classes=(), rate_hz=0.0)


def _are_numbers(names: Sequence[str]) -> bool:
    """Return True if the names of classes are their numbers."""
    return tuple(names) == tuple(map(str, range(len(names))))


def _renumbered(y: Array, names: Sequence[str], manifest: Manifest) -> Array:
    """Return class numbers y of `names` as numbers of a bundle's classes."""
    if y.dtype.kind not in "iu" or not len(y):
        return y
    renumbered = y.copy()
    for number in np.unique(y[y != NO_LABEL]).tolist():
        name = names[number] if 0 <= number < len(names) else str(number)
        if name not in manifest.classes:
            raise DataError(
                f"no class {name!r} in bundle {manifest.name}. Known classes: "
                f"{', '.join(manifest.classes)}."
            )
        renumbered[y == number] = manifest.classes.index(name)
    return renumbered


def without_labels(windows: Windows) -> Windows:
    """Return a device's windows for a task without labels (`wire.tasks.split_unlabelled`)."""
    if not windows.num_unlabelled and windows.train_y.ndim == windows.test_y.ndim == 1:
        return windows
    parts = [part for part in (windows.train_x, windows.unlabelled_x) if len(part)]
    x = np.concatenate(parts) if parts else windows.train_x
    cut, _ = split_unlabelled(windows.num_train, windows.num_test, windows.num_unlabelled)
    test_x = windows.test_x if windows.num_test else x[cut:]
    return Windows(x[:cut], np.zeros(cut, np.int64), test_x, np.zeros(len(test_x), np.int64), x[:0])


def _check_axes(x: Array, told: str, names: Sequence[str]) -> None:
    channels, *sides = x.shape[1:]
    if len(names) == channels:
        return
    if len(sides) == 2:
        if sides[1] in COLOURS and channels not in COLOURS and sides[0] > sides[1]:
            raise DataError(
                f"{told}: these look like images with colours last, expected [n, channels, height, "
                "width]: use X.transpose(0, 3, 1, 2)"
            )
    elif channels == sides[0] and channels >= SQUARE:
        raise DataError(
            f"{told}; images are [n, 1, {channels}, {channels}]: use X[:, None]; for windows of "
            f"{channels} channels, give channel_names"
        )
    elif channels > sides[0]:
        likely = f"likely {sides[0]} channels of {channels} samples: use X.transpose(0, 2, 1)"
        raise DataError(
            f"{told}, which is {channels} channels of {sides[0]} samples, {likely}; if it is "
            "right, give channel_names"
        )


def _check_finite(x: Array, array: Array, origin: str, names: Sequence[str]) -> None:
    finite = np.isfinite(array)
    if finite.all():
        return
    first = tuple(int(i) for i in np.argwhere(~finite)[0])
    wrong = int((~finite).reshape(len(x), -1).any(1).sum())
    channel = f"channel {first[1]}" + (f" ({names[first[1]]})" if len(names) == x.shape[1] else "")
    place = f"window {first[0]}, {channel}, sample {', '.join(map(str, first[2:]))}"
    value = x[first]
    what = f"{value}, which float32 cannot hold" if np.isfinite(value) else str(value)
    raise DataError(
        f"{origin}: X must hold finite values, and {wrong} of {len(x)} windows have others; the "
        f"first is {what} at {place}"
    )


def likely_meant(shape: tuple[int, ...], expected: tuple[int, ...]) -> str:
    """Return a hint at the likely mistake in a shape, for the end of an error; "" if unknown."""
    if len(shape) == len(expected) == 2 and shape == expected[::-1]:
        return "; they are likely transposed: use X.transpose(0, 2, 1)"
    if len(shape) == len(expected) == 3 and (shape[2], *shape[:2]) == expected:
        return "; their channels are likely last: use X.transpose(0, 3, 1, 2)"
    if len(shape) == 2 and len(expected) == 3 and (1, *shape) == expected:
        return "; they are likely images of one channel: use X[:, None]"
    return ""
