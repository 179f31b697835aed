"""Windows from a device's data folder: arrays or recordings, with or without unlabelled windows.

Arrays: ``train.npz`` and ``test.npz``, each with ``X (n, channels, time)``, ``y (n,)`` and,
optionally, ``channel_names``. Or ``X.npy`` and ``y.npy``, whose last 25 % of each class are the
test part (of all windows, if labels are not classes). ``y`` holds one of:

- class numbers, or names that ``classes.txt`` lists (n,);
- several labels (n, names), 1 if the name is present, otherwise 0;
- quantities, floating-point numbers (n,) or (n, quantities);
- classes of steps (n, steps).

`edge_client.data.layout` and `edge_client.data.labels` check the arrays. Whole numbers in ``X`` are
measurements or ids, as the bundle says; an array ``vocabulary`` with one number is the number of
ids. An array ``lengths (n,)`` in an ``.npz`` is the number of samples of each window: the rest is
padding, which a channel ``present`` marks (`edge_client.data.padding`).

Recordings: any number of tables, ``*.csv`` or ``*.parquet`` (`edge_client.data.recordings`).

Unlabelled windows: ``unlabelled.npz`` with ``X (n, channels, time)``. A folder without other labels
may have ``test.npz`` beside it. Recordings may contain unlabelled windows too, in either part.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from edge_client.core.ports import Windows
from edge_client.data.labels import (
    as_held,
    check_labels,
    class_numbers,
    last_share_of_each_class,
    named_classes,
)
from edge_client.data.layout import examples, vocabulary
from edge_client.data.padding import read_lengths, with_presence
from edge_client.data.recordings.folders import (
    RecordingFiles,
    classes_of,
    sensor_in,
    sources_in,
)
from edge_client.data.recordings.loading import load_recordings, stretches_of_recordings
from edge_client.data.recordings.reading import DataReading
from edge_client.data.recordings.unread import unread
from edge_client.data.tables.parts import is_table
from edge_client.data.tables.text_form import stem_of
from edge_client.data.tables.words import FolderSettings, settings_in
from wire.arrays.tensors import Array
from wire.bundle import Window
from wire.errors import DataError

UNLABELLED = "unlabelled.npz"
"""Name of the file of windows without labels."""


def load_folder(
    folder: Path, length: int = 0, stride: int = 0, steps: int = 0, rate_hz: float = 0.0
) -> Windows:
    """Read a folder of arrays or recordings.

    Args:
        folder: folder in one of the layouts of this module.
        length: number of samples of a window that is cut from a recording; 0 for the usual one.
        stride: number of samples between the starts of two such windows; 0 for the usual one.
        steps: number of steps with a class of their own in such a window; 0 for one class.
        rate_hz: rate of recordings; 0 for that of most of them.

    Raises:
        DataError: the folder has none of the layouts, or one of its files is wrong.
    """
    return read_folder(folder, length, stride, steps, rate_hz)[0]


def read_folder(
    folder: Path,
    length: int = 0,
    stride: int = 0,
    steps: int = 0,
    rate_hz: float = 0.0,
    recorded: Windows | None = None,
) -> tuple[Windows, DataReading | None]:
    """Return `load_folder`, and what was taken for what in recordings, None without any.

    `recorded` are the windows of the folder's recordings, if they have been read before.

    Raises:
        DataError: the folder has none of the layouts, or one of its files is wrong.
    """
    if not folder.is_dir():
        raise DataError(f"data folder {folder}: there is no such folder")
    unlabelled = None
    if (path := folder / UNLABELLED).exists():
        contents = _held(path, "X")
        unlabelled = _examples(
            contents.arrays[0], str(path), contents.channels, bool(contents.vocabulary)
        )
    reading = None
    if (
        recorded is None
        and not has_arrays(folder)
        and (sources := sources_in(folder, settings_in(folder)))
    ):
        recorded, reading = load_recordings(folder, sources, length, stride, steps, rate_hz)
    if recorded is not None:
        windows = replace(recorded, classes=recorded.classes or _numbers(recorded))
    else:
        windows = _labelled(folder, unlabelled)
        classes = classes_of(folder) or _numbers(windows)
        windows = replace(windows, channels=channels_of(folder), classes=classes)
    if unlabelled is None:
        return windows, reading
    if unlabelled.shape[1:] != windows.train_x.shape[1:]:
        shapes = f"{unlabelled.shape[1:]} and {windows.train_x.shape[1:]}"
        raise DataError(
            f"data folder {folder}: windows of {UNLABELLED} must have the shape of the others, got "
            f"{shapes}"
        )
    others = [windows.unlabelled_x] if windows.num_unlabelled else []
    return replace(windows, unlabelled_x=np.concatenate([*others, unlabelled])), reading


def _numbers(windows: Windows) -> tuple[str, ...]:
    """Return the names of classes that have none: their numbers, from 0 to the largest."""
    labels = [y for y in (windows.train_y, windows.test_y) if y.dtype.kind in "iu" and y.size]
    return tuple(map(str, range(1 + max((int(y.max()) for y in labels), default=-1))))


def has_arrays(folder: Path) -> bool:
    """Return True if a folder has arrays with labels, which are read in place of recordings."""
    return any((folder / name).exists() for name in ("train.npz", "X.npy"))


def _labelled(folder: Path, unlabelled: Array | None) -> Windows:
    """Return the windows of arrays.

    If there are none for training, the empty training array has the shape of `unlabelled`.
    """
    if (folder / "train.npz").exists():
        train = _arrays(folder / "train.npz", classes_of(folder))
        test = (
            _arrays(folder / "test.npz", classes_of(folder))
            if (folder / "test.npz").exists()
            else (train[0][:0], train[1][:0])
        )
        if train[0].shape[1:] != test[0].shape[1:]:
            raise DataError(
                f"data folder {folder}: windows of train.npz and test.npz must have one shape, got "
                f"{train[0].shape[1:]} and {test[0].shape[1:]}"
            )
        return Windows(*train, *test)
    if (folder / "X.npy").exists():
        x, y = _checked(
            _load(folder / "X.npy"), _load(folder / "y.npy"), folder, classes_of(folder)
        )
        test_mask = last_share_of_each_class(y)
        return Windows(x[~test_mask], y[~test_mask], x[test_mask], y[test_mask])
    if unlabelled is not None:
        none = unlabelled[:0], np.zeros(0, np.int64)
        test = (
            _arrays(folder / "test.npz", classes_of(folder))
            if (folder / "test.npz").exists()
            else none
        )
        if test[0].shape[1:] != unlabelled.shape[1:]:
            raise DataError(
                f"data folder {folder}: windows of {UNLABELLED} and test.npz must have one shape, "
                f"got {unlabelled.shape[1:]} and {test[0].shape[1:]}"
            )
        return Windows(*none, *test)
    expected = (
        "train.npz (and test.npz), X.npy and y.npy, recordings as *.csv or *.parquet, or "
        f"{UNLABELLED} (and test.npz)"
    )
    raise DataError(f"data folder {folder} must have {expected}.{unread([folder])}")


def _load(path: Path) -> Array:
    try:
        array: Array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} is not readable: {error}") from None
    return array


def channels_of(folder: Path) -> tuple[str, ...]:
    """Return the names of the channels of a folder's arrays, none if they do not have any.

    Raises:
        DataError: a file cannot be read.
    """
    if (folder / "train.npz").exists():
        return _held(folder / "train.npz").channels
    if (folder / "X.npy").exists():
        return ()
    return _held(folder / UNLABELLED).channels if (folder / UNLABELLED).exists() else ()


def vocabulary_of(folder: Path) -> int:
    """Return the number of ids if the files of a device's folder say that ``X`` has ids, else 0.

    Raises:
        DataError: a file cannot be read, or its number of ids is wrong.
    """
    for name in ("train.npz", UNLABELLED):
        if (folder / name).exists():
            return _held(folder / name).vocabulary
    return 0


def _arrays(path: Path, classes: Sequence[str]) -> tuple[Array, Array]:
    contents = _held(path, "X", "y")
    x, y = contents.arrays
    return _checked(x, y, path, classes, contents.channels, bool(contents.vocabulary))


class _Held(NamedTuple):
    """Content of an ``.npz``: arrays, names of the channels, and number of ids.

    There may be no names; the number is 0 if the file has none. Windows of different lengths have
    the channel ``present``.
    """

    arrays: list[Array]
    channels: tuple[str, ...]
    vocabulary: int


def _held(path: Path, *names: str) -> _Held:
    try:
        with np.load(path, allow_pickle=False) as file:
            channels = file["channel_names"] if "channel_names" in file.files else ()
            words = file["vocabulary"] if "vocabulary" in file.files else None
            contents = _Held(
                [file[name] for name in names],
                tuple(map(str, channels)),
                vocabulary(words, str(path)),
            )
            if "lengths" not in file.files:
                return contents
            x, padded = read_lengths(
                file["X"], file["lengths"], contents.channels, bool(contents.vocabulary), str(path)
            )
            pairs = zip(names, contents.arrays, strict=True)
            return contents._replace(
                arrays=[x if name == "X" else array for name, array in pairs], channels=padded
            )
    except ValueError:
        raise DataError(
            f"{path}: an array holds Python objects or is cut off; windows are one array [n, "
            "channels, time], padded to the longest, with lengths"
        ) from None
    except (OSError, KeyError, EOFError) as error:
        raise DataError(
            f"{path} must have {'arrays' if names[1:] else 'an array'} {' and '.join(names)}: "
            f"{error}"
        ) from None


def _checked(
    x: Array,
    y: Array,
    origin: Path,
    classes: Sequence[str],
    channels: Sequence[str] = (),
    has_ids: bool = False,
) -> tuple[Array, Array]:
    x = _examples(x, str(origin), channels, has_ids)
    if len(x) == len(y) == 0:
        return x, as_held(y) if y.ndim > 1 else np.zeros(0, np.int64)
    if y.dtype.kind in "US" and classes:
        check_labels(y, len(x), str(origin))
        return x, named_classes(y, classes, str(origin))
    return x, class_numbers(y, len(x), str(origin))


def _examples(x: Array, origin: str, channels: Sequence[str], has_ids: bool) -> Array:
    """Return `examples`, but accept an array without windows whose shape is known.

    A device may lack one part, or have no window at all.
    """
    if x.ndim in (3, 4) and len(x) == 0 and x.dtype.kind in "fiu" and min(x.shape[1:]) > 0:
        return x if x.dtype.kind in "iu" else x.astype(np.float32)
    return examples(x, origin, channels, has_ids)


def read_windows(path: Path, window: Window, words: FolderSettings | None = None) -> Array:
    """Return all windows (n, \\*shape) of `read_stretches`.

    Raises:
        DataError: the path is none of those.
    """
    none = np.zeros((0, len(window.channels), window.length), np.float32)
    stretches = list(read_stretches(path, window, words))
    return np.concatenate(stretches) if stretches else none


def read_stretches(
    path: Path, window: Window, words: FolderSettings | None = None
) -> Iterator[Array]:
    """Yield windows (n, \\*shape) to predict, in the units and channel order of `window`.

    An array of a file comes whole. Windows of recordings come by stretches without a gap, each in
    order of time. The path is that of an array ``*.npy``, of an ``*.npz`` with the array X, of a
    recording, or of a folder of recordings, whose columns have at least the window's channels.
    Recordings are cut at the window's own stride. Their ``shoal.toml`` goes before a user's
    `words`.

    Raises:
        DataError: the path is none of these.
    """
    if path.is_dir() or is_table(path):
        folder = path if path.is_dir() else path.parent
        sensor = sensor_in(stem_of(path))
        is_one = any(c.lower().startswith(f"{sensor}.".lower()) for c in window.channels)
        alone = RecordingFiles(stem_of(path), ((sensor if is_one else "", path),))
        mine = settings_in(folder, words)
        if not (sources := [alone] if folder != path else sources_in(path, mine)):
            raise DataError(
                f"{path} has no recording, such as *.csv or *.parquet. Name the file of windows: "
                f"{path / 'X.npy'}.{unread([path])}"
            )
        yield from stretches_of_recordings(folder, sources, mine, window)
        return
    if path.suffix == ".npz":
        try:
            with np.load(path, allow_pickle=False) as file:
                x = np.asarray(file["X"])
                if "lengths" in file.files:
                    x = with_presence(x, file["lengths"], str(path))
        except (OSError, ValueError, KeyError, EOFError) as error:
            raise DataError(f"{path} must have an array X: {error}") from None
        yield x
        return
    yield _load(path)
