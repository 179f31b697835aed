"""Windows from a ``.npz``: ``X (n, channels, time)``, ``y``, ``subject`` and, if there is one, ``split``; one device per subject."""

import zipfile
from pathlib import Path

import numpy as np

from edge_client.ports import Windows
from simulation.datasets.windows import FleetData, last_share_of_each_class
from wire.bundle import Window
from wire.errors import DataError
from wire.tensors import Array

LAYOUT = "X (n, channels, time) float, y (n,) int, subject (n,) int and optionally split (n,) of 'train' and 'test'"


def load_npz(path: Path) -> FleetData:
    """Read a ``.npz`` file.

    Raises:
        DataError: not such a file; the text says what is wrong with it.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files if name in ("X", "y", "subject", "split", "channel_names", "activity_names")}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise DataError(f"data {path}: not readable as .npz: {error}") from None
    return from_arrays(path.stem, str(path), arrays)


def from_arrays(name: str, origin: str, arrays: dict[str, Array]) -> FleetData:
    """A fleet from the arrays of a ``.npz``.

    Without ``split``, or with one that leaves a subject without training or without test windows, the last 25 % of each
    subject's windows per class, in their order in the file, are the test part.

    Raises:
        DataError: an array is missing or has another shape or type.
    """
    x, y, subject = (_required(arrays, key, origin) for key in ("X", "y", "subject"))
    if x.ndim != 3 or x.dtype.kind != "f" or not len(x):
        raise DataError(f"data {origin}: X is {x.dtype}{list(x.shape)}, expected {LAYOUT}")
    for key, array in (("y", y), ("subject", subject)):
        if array.shape != (len(x),) or array.dtype.kind not in "iu":
            raise DataError(f"data {origin}: {key} is {array.dtype}{list(array.shape)}, expected int[{len(x)}]")
    if not np.isfinite(x).all():
        raise DataError(f"data {origin}: X holds values that are not finite")
    if int(y.min()) < 0 or int(y.max()) > 10_000:
        raise DataError(f"data {origin}: y reaches {int(y.min())}..{int(y.max())}, expected class numbers from 0")
    split = arrays.get("split")
    if split is not None and (split.shape != (len(x),) or not set(np.unique(split)) <= {"train", "test"}):
        raise DataError(f"data {origin}: split is {split.dtype}{list(split.shape)}, expected {len(x)} times 'train' or 'test'")
    num_classes = int(y.max()) + 1
    classes = tuple(str(c) for c in arrays.get("activity_names", ())) or tuple(str(i) for i in range(num_classes))
    channels = tuple(str(c) for c in arrays.get("channel_names", ())) or tuple(f"c{i}" for i in range(x.shape[1]))
    if len(classes) < num_classes or len(channels) != x.shape[1]:
        raise DataError(
            f"data {origin}: {len(classes)} class and {len(channels)} channel names for {num_classes} classes, {x.shape[1]} channels"
        )
    width = max(2, len(str(int(subject.max()))))
    devices = {}
    for number in np.unique(subject):
        at = subject == number
        own_split = None if split is None or len(np.unique(split[at])) < 2 else split[at] == "test"
        test = last_share_of_each_class(y[at]) if own_split is None else own_split
        own_x, own_y = np.ascontiguousarray(x[at], dtype=np.float32), y[at].astype(np.int64)
        devices[f"s{int(number):0{width}d}"] = Windows(own_x[~test], own_y[~test], own_x[test], own_y[test])
    return FleetData(name, Window(channels, x.shape[2], x.shape[2]), classes, devices)


def _required(arrays: dict[str, Array], key: str, origin: str) -> Array:
    if key not in arrays:
        raise DataError(f"data {origin}: array {key!r} is missing, expected {LAYOUT}")
    return arrays[key]
