"""Windows of different lengths: padding with zeros, and a channel that marks the samples.

The rule is the same for boards, phones and simulations (`wire/SPEC.md`, 'Windows of different
lengths'). A model reads the channel like any other and may use it as a mask.
"""

from collections.abc import Sequence

import numpy as np

from wire.arrays.tensors import Array
from wire.bundle import Window
from wire.errors import DataError

PRESENCE = "present"
"""Name of the last channel of windows that may be padded: 1 at a sample, 0 at padding."""


def stacked(windows: Sequence[Array], length: int, origin: str) -> tuple[Array, Array]:
    """Return windows padded to one array (n, channels, length), and their lengths (n,) int64.

    Args:
        windows: windows (channels, time), each with its own time.
        length: number of samples of a padded window.
        origin: source of the windows, with which errors start.

    Raises:
        DataError: there is no window, one has another shape or dtype, or one is longer.
    """
    if not windows:
        raise DataError(f"{origin}: there are no windows")
    first = windows[0]
    for number, window in enumerate(windows):
        if (
            window.ndim != 2
            or not window.size
            or window.dtype.kind not in "fiu"
            or len(window) != len(first)
        ):
            description = (
                f"{window.dtype}{list(window.shape)}, and the first is "
                f"{first.dtype}{list(first.shape)}"
            )
            raise DataError(
                f"{origin}: all windows must be (channels, time) with the same channels; window "
                f"{number} is {description}"
            )
        if window.shape[1] > length:
            raise DataError(
                f"{origin}: window {number} must have at most {length} samples, got "
                f"{window.shape[1]}; cut it, or pad to more"
            )
    stack = np.zeros(
        (len(windows), len(first), length), np.result_type(*{window.dtype for window in windows})
    )
    for window, row in zip(windows, stack, strict=True):
        row[:, : window.shape[1]] = window
    return stack, np.array([window.shape[1] for window in windows], np.int64)


def with_presence(x: Array, lengths: Array, origin: str) -> Array:
    """Return windows (n, channels + 1, time) with zeros as padding and the channel `PRESENCE`.

    Args:
        x: windows (n, channels, time).
        lengths: number of samples (n,) of each window; the values after them are padding.
        origin: source of the windows, with which errors start.

    Raises:
        DataError: x has another shape or dtype, or the lengths are not n numbers from 1 to time.
    """
    if x.ndim != 3 or x.dtype.kind not in "fiu":
        raise DataError(
            f"{origin}: lengths are for windows, X [n, channels, time], and X is "
            f"{x.dtype}{list(x.shape)}"
        )
    if lengths.shape != (len(x),) or lengths.dtype.kind not in "iu":
        raise DataError(
            f"{origin}: lengths must be int[{len(x)}], the samples of each window, got "
            f"{lengths.dtype}{list(lengths.shape)}"
        )
    wrong = np.flatnonzero((lengths < 1) | (lengths > x.shape[2]))
    if len(wrong):
        raise DataError(
            f"{origin}: the length of window {wrong[0]} must be between 1 and {x.shape[2]}, got "
            f"{lengths[wrong[0]]}"
        )
    there = np.arange(x.shape[2]) < lengths[:, None, None]
    return np.concatenate(
        [np.where(there, x, np.zeros((), x.dtype)), there.astype(x.dtype)], axis=1
    )


def read_lengths(
    x: Array, lengths: Array, channels: Sequence[str], has_ids: bool, origin: str
) -> tuple[Array, tuple[str, ...]]:
    """Return a file's windows `with_presence`, and the names of their channels.

    Channels without names are called c0, c1, ...

    Args:
        x: windows (n, channels, time).
        lengths: number of samples (n,) of each window.
        channels: names of the channels, may be empty.
        has_ids: True if x holds ids.
        origin: source of the windows, with which errors start.

    Raises:
        DataError: x holds ids, or x or the lengths have a wrong shape, dtype or value.
    """
    if has_ids:
        raise DataError(
            f"{origin}: lengths are for measurements, and X holds ids; pad windows of ids with an "
            "id that you reserve for it"
        )
    windows = with_presence(x, lengths, origin)
    return windows, (*(channels or map("c{}".format, range(x.shape[1]))), PRESENCE)


def to_length(x: Array, window: Window) -> Array:
    """Return windows (n, channels, time) padded with zeros to the length of `window`.

    Windows that are long enough are returned unchanged, as are all windows if the last channel of
    `window` is not `PRESENCE`.
    """
    short = window.length - x.shape[-1] if x.ndim == 3 else 0
    if short <= 0 or x.shape[1] != len(window.channels) or window.channels[-1] != PRESENCE:
        return x
    return np.pad(x, ((0, 0), (0, 0), (0, short)))
