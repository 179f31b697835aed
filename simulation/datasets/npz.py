"""Examples from a ``.npz``: ``X``, ``y`` and, if there are any, ``subject``, ``split``, ``session`` and ``start``; one device per subject.

``session`` names the recording that a window is from, in the order in which a subject made them; ``start`` is its first sample there.
``X`` is (n, channels, time) for windows, (n, channels, height, width) for images. Without ``subject`` the file is a pool.
"""

import zipfile
from pathlib import Path

import numpy as np

from edge_client.core.ports import Windows
from simulation.datasets.pool import Pool
from simulation.datasets.windows import FleetData, Recordings, last_share_of_each_class
from wire.bundle import Window
from wire.errors import DataError
from wire.tensors import Array

LAYOUT = (
    "X (n, channels, time) or (n, channels, height, width) float, y (n,) int, "
    "and optionally subject (n,) int, split (n,) of 'train' and 'test', session (n,) int or str and start (n,) int"
)
MOST_CLASSES = 10_000
"""A larger label is taken for a mistake."""


ARRAYS = ("X", "y", "subject", "split", "session", "start", "channel_names", "activity_names")


def load_npz(path: Path, session: str = "session") -> FleetData | Pool:
    """Read a ``.npz`` file: a fleet where there is a ``subject``, else a pool. `session`: the array that says the windows' recordings.

    Raises:
        DataError: not such a file; the text says what is wrong with it.
    """
    arrays = read_npz(path, session)
    return from_arrays(path.stem, str(path), arrays) if "subject" in arrays else pool_from_arrays(path.stem, str(path), arrays)


def read_npz(path: Path, session: str = "session") -> dict[str, Array]:
    """The arrays of a ``.npz`` file that mean something here, by name, as they are in it. `session`: the one that says the windows'
    recordings.

    Raises:
        DataError: not such a file.
    """
    if path.is_file() and not zipfile.is_zipfile(path):
        raise DataError(f"data {path}: not readable as .npz: expected an archive of arrays, as numpy.savez writes it")
    try:
        with np.load(path, allow_pickle=False) as file:
            stored = {"session" if name == session else name: name for name in file.files}
            return {name: file[stored[name]] for name in ARRAYS if name in stored}
    except ValueError:
        raise DataError(f"data {path}: an array holds Python objects or is cut off, expected {LAYOUT}") from None
    except (OSError, zipfile.BadZipFile, EOFError) as error:
        raise DataError(f"data {path}: not readable as .npz: {error}") from None


def from_arrays(name: str, origin: str, arrays: dict[str, Array]) -> FleetData:
    """A fleet from the arrays of a ``.npz``.

    Without ``split``, or with one that leaves a subject without training or without test examples, the last 25 % of each
    subject's examples per class, in their order in the file, are the test part.

    Raises:
        DataError: an array is missing or has another shape or type.
    """
    window, classes = _describe(origin, arrays)
    x, y, subject = arrays["X"], arrays["y"], _required(arrays, "subject", origin)
    if subject.shape != (len(x),) or subject.dtype.kind not in "iu":
        raise DataError(f"data {origin}: subject is {subject.dtype}{list(subject.shape)}, expected int[{len(x)}]")
    session, start = _places(origin, arrays)
    width = max(2, len(str(int(subject.max()))))
    devices, recordings = {}, {}
    for number in np.unique(subject):
        at = np.flatnonzero(subject == number)
        test = _test_part(y[at], arrays["split"][at] if "split" in arrays else None)
        at, cut = np.concatenate([at[~test], at[test]]), int((~test).sum())
        own_x, own_y = np.ascontiguousarray(x[at], dtype=np.float32), y[at].astype(np.int64)
        device_id = f"s{int(number):0{width}d}"
        devices[device_id] = Windows(own_x[:cut], own_y[:cut], own_x[cut:], own_y[cut:])
        recordings[device_id] = Recordings(own_x, own_y, *(None if place is None else place[at] for place in (session, start)))
    return FleetData(name, window, classes, devices, recordings=recordings)


def pool_from_arrays(name: str, origin: str, arrays: dict[str, Array]) -> Pool:
    """A pool from the arrays of a ``.npz``; the test part is found as `from_arrays` finds that of one subject.

    Raises:
        DataError: an array is missing or has another shape or type.
    """
    window, classes = _describe(origin, arrays)
    x, y = np.ascontiguousarray(arrays["X"], dtype=np.float32), arrays["y"].astype(np.int64)
    test = _test_part(y, arrays.get("split"))
    return Pool(name, window, classes, x[~test], y[~test], x[test], y[test])


def _describe(origin: str, arrays: dict[str, Array]) -> tuple[Window, tuple[str, ...]]:
    """Check what every file has, and say what one example is and what its classes are called."""
    x, y = (_required(arrays, key, origin) for key in ("X", "y"))
    if x.ndim not in (3, 4) or x.dtype.kind != "f" or not x.size:
        raise DataError(f"data {origin}: X is {x.dtype}{list(x.shape)}, expected {LAYOUT}")
    if y.shape != (len(x),) or y.dtype.kind not in "iu":
        raise DataError(f"data {origin}: y is {y.dtype}{list(y.shape)}, expected int[{len(x)}]")
    if not np.isfinite(x).all():
        raise DataError(f"data {origin}: X holds values that are not finite")
    if int(y.min()) < 0 or int(y.max()) > MOST_CLASSES:
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
    return Window(channels, x.shape[-1], x.shape[-1], height=x.shape[2] if x.ndim == 4 else 0), classes


def _places(origin: str, arrays: dict[str, Array]) -> tuple[Array | None, Array | None]:
    """Session and start (n,) int64 of every window, as far as they are there; sessions have numbers by where they first occur."""
    count, session, start = len(arrays["X"]), arrays.get("session"), arrays.get("start")
    if session is not None:
        if session.shape != (count,) or session.dtype.kind not in "iuU":
            raise DataError(f"data {origin}: session is {session.dtype}{list(session.shape)}, expected {count} times a number or a name")
        _, first, which = np.unique(session, return_index=True, return_inverse=True)
        session = np.argsort(np.argsort(first))[which].astype(np.int64)
    if start is not None:
        if start.shape != (count,) or start.dtype.kind not in "iu":
            raise DataError(f"data {origin}: start is {start.dtype}{list(start.shape)}, expected int[{count}]")
        start = start.astype(np.int64)
    return session, start


def _test_part(y: Array, split: Array | None) -> Array:
    """Boolean mask (n,) of the test part: as `split` says if it leaves both parts something, else the last share of each class."""
    return last_share_of_each_class(y) if split is None or len(np.unique(split)) < 2 else split == "test"


def _required(arrays: dict[str, Array], key: str, origin: str) -> Array:
    if key not in arrays:
        raise DataError(f"data {origin}: array {key!r} is missing, expected {LAYOUT}")
    return arrays[key]
