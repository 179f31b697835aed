"""A device's windows from a folder: arrays, or recordings as CSV.

Arrays: ``train.npz`` and ``test.npz``, each with ``X (n, channels, time)`` and ``y (n,)``; or ``X.npy`` and ``y.npy``, of which the
last 25 % of each class are the test part.

Recordings: any number of ``*.csv`` with a header, or of ``*.parquet`` where pyarrow is installed; the column ``label`` holds class
numbers, or names that ``classes.txt`` lists one a line; a column ``t`` is ignored; all others are channels, in the header's order, one
sample a row. The first 75 % of each recording are for training; windows are cut on either side of that point, so that none is shared,
and only where the label stays the same.
"""

import csv
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from edge_client.adapters.parquet import PARQUET, read_parquet
from edge_client.core.ports import Windows
from wire.bundle import Window
from wire.errors import DataError
from wire.tensors import Array

TEST_SHARE = 0.25


def load_folder(folder: Path, length: int = 128, stride: int = 64) -> Windows:
    """Read a folder of arrays or recordings; `length` and `stride`, in samples, are used for recordings.

    Raises:
        DataError: the folder holds none of the layouts above, or a file of it is wrong; the text says which and how.
    """
    if not folder.is_dir():
        raise DataError(f"data folder {folder}: there is no such folder")
    if (folder / "train.npz").exists():
        train = _arrays(folder / "train.npz")
        test = _arrays(folder / "test.npz") if (folder / "test.npz").exists() else (train[0][:0], train[1][:0])
        if train[0].shape[1:] != test[0].shape[1:]:
            raise DataError(f"data folder {folder}: windows of train.npz are {train[0].shape[1:]}, of test.npz {test[0].shape[1:]}")
        return Windows(*train, *test)
    if (folder / "X.npy").exists():
        x, y = _checked(_load(folder / "X.npy"), _load(folder / "y.npy"), folder)
        test_mask = _last_of_each_class(y)
        return Windows(x[~test_mask], y[~test_mask], x[test_mask], y[test_mask])
    if paths := recordings_in(folder):
        return load_recordings(folder, paths, length, stride)
    raise DataError(f"data folder {folder}: expected train.npz (and test.npz), X.npy and y.npy, or recordings as *.csv or *.parquet")


def _load(path: Path) -> Array:
    try:
        array: Array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path}: not readable: {error}") from None
    return array


def _arrays(path: Path) -> tuple[Array, Array]:
    try:
        with np.load(path, allow_pickle=False) as file:
            x, y = file["X"], file["y"]
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise DataError(f"{path}: expected arrays X and y: {error}") from None
    return _checked(x, y, path)


def _checked(x: Array, y: Array, origin: Path) -> tuple[Array, Array]:
    if x.ndim not in (3, 4) or x.dtype.kind not in "fiu" or y.shape != (len(x),) or y.dtype.kind not in "iu":
        raise DataError(
            f"{origin}: X is {x.dtype}{list(x.shape)} and y {y.dtype}{list(y.shape)}, expected "
            "float[n, channels, time], for images [n, channels, height, width], and int[n]"
        )
    x = np.ascontiguousarray(x, np.float32)
    if not np.isfinite(x).all():
        raise DataError(f"{origin}: X holds values that are not finite")
    return x, y.astype(np.int64)


def _last_of_each_class(y: Array) -> Array:
    mask = np.zeros(len(y), bool)
    for label in np.unique(y):
        at = np.flatnonzero(y == label)
        mask[at[len(at) - round(TEST_SHARE * len(at)) :]] = True
    return mask


def recordings_in(folder: Path) -> list[Path]:
    """The recordings of a folder, by name.

    Raises:
        DataError: two have the same name but for its end, as copies of one recording have.
    """
    paths = sorted(path for path in folder.iterdir() if path.suffix in (".csv", PARQUET) and not path.name.startswith("."))
    for path, following in pairwise(paths):
        if path.stem == following.stem:
            raise DataError(f"data folder {folder}: {path.name} and {following.name} have one name: expected each recording once")
    return paths


def load_recordings(folder: Path, paths: list[Path], length: int, stride: int) -> Windows:
    """Windows of these recordings of a folder.

    Raises:
        DataError: one of them cannot be read, their channels differ, or none is long enough.
    """
    names = folder / "classes.txt"
    classes = {name: i for i, name in enumerate(names.read_text().split("\n")) if name} if names.exists() else {}
    header: list[str] = []
    parts: list[list[Array]] = [[], [], [], []]
    for path in paths:
        own_header, samples, labels = _read_recording(path, classes)
        if header and own_header != header:
            raise DataError(f"{path}: channels {own_header}, {paths[0].name} has {header}")
        header = own_header
        cut = round((1 - TEST_SHARE) * len(samples))
        for at, part in ((0, slice(0, cut)), (2, slice(cut, None))):
            x, y = _cut(samples[part], labels[part], length, stride)
            parts[at].append(x)
            parts[at + 1].append(y)
    windows = Windows(*(np.concatenate(part) for part in parts))
    if not windows.num_train:
        raise DataError(f"data folder {folder}: no recording has {length} samples in a row with one label")
    return windows


def read_windows(path: Path, window: Window) -> Array:
    """Windows (n, \\*shape) to predict, in the units and the order of channels that `window` has: an array in ``*.npy``, the array X in
    ``*.npz``, or a recording ``*.csv`` whose header names at least these channels, cut at the window's own stride.

    Raises:
        DataError: the file holds none of these.
    """
    if path.suffix == ".csv":
        samples = _read_columns(path, window.channels)
        return _cut(samples, np.zeros(len(samples), np.int64), window.length, window.stride)[0]
    if path.suffix == ".npz":
        try:
            with np.load(path, allow_pickle=False) as file:
                return np.asarray(file["X"])
        except (OSError, ValueError, KeyError, EOFError) as error:
            raise DataError(f"{path}: expected an array X: {error}") from None
    return _load(path)


def _read_columns(path: Path, channels: Sequence[str]) -> Array:
    try:
        with path.open(newline="") as file:
            rows = csv.reader(file)
            header = next(rows, [])
            if missing := [name for name in channels if name not in header]:
                raise DataError(f"{path}: its header {header} has no column {missing[0]!r}")
            places = [header.index(name) for name in channels]
            samples = [[float(row[i]) for i in places] for row in rows]
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    except (ValueError, IndexError) as error:
        raise DataError(f"{path}: a row does not fit the header ({type(error).__name__}: {error})") from None
    return np.array(samples, np.float32).reshape(-1, len(channels))


def _rows(path: Path) -> Iterator[list[str]]:
    """The header of a recording, and then its rows."""
    if path.suffix == PARQUET:
        yield from read_parquet(path)
    else:
        with path.open(newline="") as file:
            yield from csv.reader(file)


def _read_recording(path: Path, classes: dict[str, int]) -> tuple[list[str], Array, Array]:
    rows = _rows(path)
    header = next(rows, [])
    if "label" not in header:
        raise DataError(f"{path}: its header {header} has no column 'label'")
    label_at = header.index("label")
    channels = [i for i, name in enumerate(header) if name not in ("label", "t")]
    samples, labels = [], []
    for line, row in enumerate(rows, start=2):
        try:
            samples.append([float(row[i]) for i in channels])
            labels.append(classes[row[label_at]] if classes else int(row[label_at]))
        except (ValueError, IndexError, KeyError) as error:
            raise DataError(f"{path}, line {line}: {row} does not fit the header {header} ({type(error).__name__}: {error})") from None
    array = np.array(samples, np.float32).reshape(-1, len(channels))
    if not np.isfinite(array).all():
        raise DataError(f"{path}: holds values that are not finite")
    return [header[i] for i in channels], array, np.array(labels, np.int64)


def _cut(samples: Array, labels: Array, length: int, stride: int) -> tuple[Array, Array]:
    starts = [s for s in range(0, len(samples) - length + 1, stride) if (labels[s : s + length] == labels[s]).all()]
    x = np.stack([samples[s : s + length].T for s in starts]) if starts else np.zeros((0, samples.shape[1], length), np.float32)
    return np.ascontiguousarray(x), labels[starts] if starts else np.zeros(0, np.int64)
