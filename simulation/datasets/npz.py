"""Examples from a ``.npz``, as a fleet with one device per subject, or as a pool.

The arrays are ``X``, ``y`` and, if there are any, ``subject``, ``split``, ``session`` and
``start``. ``X`` is (n, channels, time) for windows, (n, channels, height, width) for images.
Without ``subject`` the file is a pool. Subjects and labels are numbers or names. ``session`` names
the recording of a window, in the order in which a subject made them; ``start`` is the window's
first sample there.

``y`` is one of these:

- class numbers or names (n,). Without ``activity_names`` the labels that occur are the classes, in
  sorted order, and keep their names.
- several labels of a window: 0 and 1 (n, names), each there or not.
- quantities: floats (n, quantities) or (n,).
- the classes of a window's steps: other numbers, or names, (n, steps); -1 or an empty name where
  the class is unknown (`edge_client.data.labels.are_steps`).

``activity_names`` are the names of the classes or of the columns. ``vocabulary``, a number, says
that ``X`` holds ids of words or events, from 0 to below it. ``lengths (n,)`` is the number of
samples of each window; the others are padding (`edge_client.data.padding`). ``anomaly (n,)`` of 0
and 1, in the place of ``y``, says which windows are anomalous; the classes are then ``usual`` and
``anomalous``.
"""

import logging
import re
import zipfile
from difflib import get_close_matches
from pathlib import Path

import numpy as np

from edge_client.core.ports import Windows
from edge_client.data.labels import (
    are_steps,
    as_held,
    check_labels,
    column_names,
    has_classes,
    last_share_of_each_class,
    named_classes,
)
from edge_client.data.layout import examples, fitting, vocabulary
from edge_client.data.padding import read_lengths
from simulation.datasets.pool import Pool
from simulation.datasets.windows import ANOMALOUS, USUAL, FleetData, Recordings
from wire.arrays.tensors import Array
from wire.bundle import Window
from wire.errors import DataError
from wire.tasks import NO_LABEL

LAYOUT = (
    "X (n, channels, time) or (n, channels, height, width) float, y (n,) int or str, (n, names) "
    "of 0 and 1, "
    "(n, steps) int or str, or (n, quantities) float, "
    "and optionally subject (n,) int or str, split (n,) of 'train' and 'test', session (n,) int "
    "or str, start (n,) int and "
    "lengths (n,) int; or, in the place of y, anomaly (n,) of 0 and 1"
)
log = logging.getLogger("shoal.data")

MOST_CLASSES = 10_000
"""Highest class number; a larger label is probably a mistake."""
VARIABLE = (
    "windows of different lengths are one array where they are padded, with lengths (n,) int; or "
    "give recordings as CSV"
)
FEW = 8
"""Maximum number of labels that a message lists."""
_CASTS = {"f": ": use subject.astype(int)", "O": ": use subject.astype(str)"}
"""Hints at owners of another dtype."""


ARRAYS = (
    "X",
    "y",
    "subject",
    "split",
    "session",
    "start",
    "lengths",
    "channel_names",
    "activity_names",
    "vocabulary",
    "anomaly",
)


def load_npz(path: Path, session: str = "session") -> FleetData | Pool:
    """Read a ``.npz`` file: a fleet if it has a ``subject``, else a pool.

    `session` is the name of the array of the windows' recordings.

    Raises:
        DataError: the file is not a valid ``.npz``; the text says what is wrong with it.
    """
    arrays = read_npz(path, session)
    return (
        from_arrays(path.stem, str(path), arrays)
        if "subject" in arrays
        else pool_from_arrays(path.stem, str(path), arrays)
    )


def read_npz(path: Path, session: str = "session") -> dict[str, Array]:
    """Return the arrays of a ``.npz`` file that Shoal knows by name, unchanged.

    `session` is the name of the array of the windows' recordings.

    Raises:
        DataError: the file is not a valid ``.npz``.
    """
    if path.is_file() and not zipfile.is_zipfile(path):
        raise DataError(
            f"data {path} is not a .npz file, which is an archive of arrays as numpy.savez writes "
            "it"
        )
    try:
        with np.load(path, allow_pickle=False) as file:
            stored = {"session" if name == session else name: name for name in file.files}
            missing = [name for name in ARRAYS if name not in stored]
            for name in sorted(stored.keys() - set(ARRAYS)):
                if near := get_close_matches(name, missing, 1, 0.8):
                    raise DataError(
                        f"data {path}: unknown array {name!r}. Did you mean {near[0]!r}?"
                    )
            if others := sorted(stored.keys() - set(ARRAYS)):
                log.warning(
                    "data %s: arrays %s are not read. Those that are: %s",
                    path,
                    ", ".join(others[:FEW]),
                    ", ".join(ARRAYS),
                )
            return {name: file[stored[name]] for name in ARRAYS if name in stored}
    except ValueError:
        raise DataError(
            f"data {path}: an array holds Python objects or is cut off. A file has {LAYOUT}; "
            f"names are stored by y.astype(str); {VARIABLE}"
        ) from None
    except (OSError, zipfile.BadZipFile, EOFError) as error:
        raise DataError(f"data {path} cannot be read as a .npz file: {error}") from None


def from_arrays(name: str, origin: str, arrays: dict[str, Array]) -> FleetData:
    """Return a fleet from the arrays of a ``.npz``.

    Without ``split``, or with one that leaves a subject without training or without test examples,
    the last 25 % of each subject's examples per class, in their order in the file, are the test
    part. Without classes it is the last 25 % of all. All windows that ``anomaly`` marks as
    anomalous are in the test part.

    Raises:
        DataError: an array is missing or has another shape or type.
    """
    arrays = _of_anomalies(origin, arrays)
    window, classes, x, y = _describe(origin, arrays)
    subject = _required(arrays, "subject", origin)
    called = device_ids(subject, len(x), origin)
    session, start = _places(origin, arrays)
    devices, recordings = {}, {}
    for number in np.unique(subject):
        at = np.flatnonzero(subject == number)
        test = _test_part(
            y[at], arrays["split"][at] if "split" in arrays else None, "anomaly" in arrays
        )
        at, cut = np.concatenate([at[~test], at[test]]), int((~test).sum())
        device_id = called[number.item()]
        own_x, own_y = fitting(x[at], window, f"data {origin}, device {device_id}"), y[at]
        devices[device_id] = Windows(own_x[:cut], own_y[:cut], own_x[cut:], own_y[cut:])
        recordings[device_id] = Recordings(
            own_x, own_y, *(None if place is None else place[at] for place in (session, start))
        )
    return FleetData(name, window, classes, devices, recordings=recordings)


def pool_from_arrays(name: str, origin: str, arrays: dict[str, Array]) -> Pool:
    """Return a pool from the arrays of a ``.npz``.

    Its test part follows the rule of `from_arrays` for one subject.

    Raises:
        DataError: an array is missing or has another shape or type.
    """
    arrays = _of_anomalies(origin, arrays)
    window, classes, x, y = _describe(origin, arrays)
    x, test = (
        fitting(x, window, f"data {origin}"),
        _test_part(y, arrays.get("split"), "anomaly" in arrays),
    )
    return Pool(name, window, classes, x[~test], y[~test], x[test], y[test])


def _describe(
    origin: str, arrays: dict[str, Array]
) -> tuple[Window, tuple[str, ...], Array, Array]:
    """Check the arrays that every file has; return window, classes, examples and labels.

    The examples x are float32 or ids, the labels y (n, \\*label) in the form in which devices hold
    them.

    Raises:
        DataError: an array is missing or has another shape or type.
    """
    x, y = (_required(arrays, key, origin) for key in ("X", "y"))
    named = tuple(str(c) for c in arrays.get("channel_names", ()))
    ids = vocabulary(arrays.get("vocabulary"), f"data {origin}")
    if "lengths" in arrays:
        x, named = read_lengths(x, arrays["lengths"], named, bool(ids), f"data {origin}")
    x = examples(x, f"data {origin}", named, bool(ids))
    x = x if ids else np.ascontiguousarray(x, np.float32)
    check_labels(y, len(x), f"data {origin}")
    y = y if y.dtype.kind in "US" else as_held(y)
    split = arrays.get("split")
    if split is not None and (
        split.shape != (len(x),) or not set(np.unique(split)) <= {"train", "test"}
    ):
        raise DataError(
            f"data {origin}: split must be 'train' or 'test' for each of {len(x)} windows, got "
            f"{split.dtype}{list(split.shape)}"
        )
    called = tuple(str(c) for c in arrays.get("activity_names", ()))
    steps = y.shape[1] if are_steps(y, called) else 0
    if steps and (x.ndim == 4 or steps > x.shape[-1]):
        raise DataError(
            f"data {origin}: y has classes for {steps} steps of a window, and the windows of X "
            f"have fewer samples: {list(x.shape)}"
        )
    classes, y = numbered_classes(y, called, origin)
    channels = named or tuple(f"c{i}" for i in range(x.shape[1]))
    if len(channels) != x.shape[1]:
        raise DataError(
            f"data {origin}: channel_names has {len(channels)} names, and X has {x.shape[1]} "
            "channels. Give a name for each"
        )
    return (
        Window(
            channels,
            x.shape[-1],
            x.shape[-1],
            height=x.shape[2] if x.ndim == 4 else 0,
            vocabulary=ids,
            steps=steps,
        ),
        classes,
        x,
        y,
    )


def numbered_classes(
    y: Array, names: tuple[str, ...], origin: str
) -> tuple[tuple[str, ...], Array]:
    """Return the names of the classes, and the labels as their numbers (n,), or (n, steps), int64.

    The numbers are indices into `names` if there are any; else the labels that occur are the
    classes, in sorted order. For several labels, or quantities, the names are those of the columns.

    Raises:
        DataError: labels are out of bounds, or no step has one.
    """
    steps = are_steps(y, names)
    if not has_classes(y) and not steps:
        return column_names(y, names, f"data {origin}"), y
    if steps and not _labelled(y).any():
        raise DataError(f"data {origin}: no step of any window has a label")
    if y.dtype.kind in "US":
        y = y.astype(str)
        return (names, named_classes(y, names, f"data {origin}")) if names else _those_that_occur(y)
    labels = y[_labelled(y)] if steps else y
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or highest > MOST_CLASSES:
        raise DataError(
            f"data {origin}: y must hold class numbers from 0 to {MOST_CLASSES}, got {lowest} to "
            f"{highest}{_without_label(lowest)}"
        )
    if not names:
        return _those_that_occur(y)
    if len(names) <= highest:
        counted = (
            ". They seem to be counted from 1: store y - 1."
            if lowest == 1 and highest == len(names)
            else ""
        )
        raise DataError(
            f"data {origin}: there are {len(names)} class names, and y has class numbers {lowest} "
            f"to {highest}{counted}"
        )
    return names, y


def _without_label(lowest: int) -> str:
    """Return the hint of an error about a lowest class that usually means no label, else ""."""
    if lowest != NO_LABEL:
        return ""
    return (
        f". Leave out windows without a label, here {NO_LABEL}; in the folder of a device, "
        "unlabelled.npz may hold them"
    )


def _those_that_occur(y: Array) -> tuple[tuple[str, ...], Array]:
    labelled = _labelled(y)
    values, numbers = np.unique(y[labelled], return_inverse=True)
    if y.dtype.kind in "iu" and len(values) <= int(values[-1]):
        labels = [str(label) for label in values.tolist()]
        few = labels if len(labels) <= FEW else [*labels[: FEW - 1], "...", labels[-1]]
        text = "Labels %s become the classes 0 to %d, and keep their names"
        log.warning(text, ", ".join(few), len(values) - 1)
    class_numbers = np.full(y.shape, NO_LABEL, np.int64)
    class_numbers[labelled] = numbers
    return tuple(str(label) for label in values.tolist()), class_numbers


def _labelled(y: Array) -> Array:
    """Return a mask of the labels that are known; those of some steps are not."""
    return np.ones(y.shape, bool) if y.ndim == 1 else y != ("" if y.dtype.kind == "U" else NO_LABEL)


def device_ids(subject: Array, count: int, origin: str) -> dict[int | str, str]:
    """Return the id of each subject's device.

    The id of number 7 is ``s07``. The id of a name is the name, with a hyphen for each character
    that ids cannot have.

    Raises:
        DataError: not one number or name for each example, or two names that give one id.
    """
    if subject.shape != (count,) or subject.dtype.kind not in "iuUS":
        raise DataError(
            f"data {origin}: subject must be int[{count}] or str[{count}], got "
            f"{subject.dtype}{list(subject.shape)}{_CASTS.get(subject.dtype.kind, '')}"
        )
    values = np.unique(subject).tolist()
    if subject.dtype.kind in "iu":
        width = max(2, len(str(values[-1])))
        return {number: f"s{number:0{width}d}" for number in values}
    id_by_subject = {name: re.sub(r"[^A-Za-z0-9._-]", "-", str(name))[:64] for name in values}
    if len(set(id_by_subject.values())) < len(id_by_subject) or "" in id_by_subject.values():
        raise DataError(
            f"data {origin}: two subjects' names give the same device id. The first names: "
            f"{', '.join(map(str, values[:4]))}"
        )
    return id_by_subject


def _places(origin: str, arrays: dict[str, Array]) -> tuple[Array | None, Array | None]:
    """Return session and start (n,) int64 of every window; each is None if it is missing.

    The numbers of sessions follow their first occurrence.

    Raises:
        DataError: an array has another shape or type.
    """
    count, session, start = len(arrays["X"]), arrays.get("session"), arrays.get("start")
    if session is not None:
        if session.shape != (count,) or session.dtype.kind not in "iuU":
            raise DataError(
                f"data {origin}: session must be a number or name for each of {count} windows, got "
                f"{session.dtype}{list(session.shape)}"
            )
        _, first, which = np.unique(session, return_index=True, return_inverse=True)
        session = np.argsort(np.argsort(first))[which].astype(np.int64)
    if start is not None:
        if start.shape != (count,) or start.dtype.kind not in "iu":
            raise DataError(
                f"data {origin}: start must be int[{count}], got {start.dtype}{list(start.shape)}"
            )
        start = start.astype(np.int64)
    return session, start


def _of_anomalies(origin: str, arrays: dict[str, Array]) -> dict[str, Array]:
    """Return the arrays with ``y`` and class names from ``anomaly``, if it is there.

    Raises:
        DataError: it is not 0 or 1 for each window, or there are labels as well.
    """
    if "anomaly" not in arrays:
        return arrays
    mask, count = arrays["anomaly"], len(_required(arrays, "X", origin))
    if beside := [name for name in ("y", "activity_names") if name in arrays]:
        raise DataError(
            f"data {origin} has both anomaly and {beside[0]}. Remove one: anomaly is a label of "
            "its own."
        )
    if mask.shape != (count,) or mask.dtype.kind not in "biu" or not np.isin(mask, (0, 1)).all():
        raise DataError(
            f"data {origin}: anomaly must be 1 for an anomalous window, else 0, for each of "
            f"{count} windows, got {mask.dtype}{list(mask.shape)}"
        )
    return arrays | {"y": mask.astype(np.int64), "activity_names": np.array([USUAL, ANOMALOUS])}


def _test_part(y: Array, split: Array | None, has_anomalies: bool) -> Array:
    """Return the boolean mask (n,) of the test part.

    It follows `split` if that leaves examples for both parts. Else it is the last share of each
    class, or of all examples without classes. All anomalous windows are in it.
    """
    if split is not None and len(np.unique(split)) > 1:
        return np.equal(split, "test")
    last = last_share_of_each_class(y)
    if has_anomalies:
        last[y == 1] = True
    return last


def _required(arrays: dict[str, Array], key: str, origin: str) -> Array:
    if key not in arrays:
        raise DataError(f"data {origin}: array {key!r} is missing. A file has {LAYOUT}.")
    return arrays[key]
