"""Windows from a device's recordings: ``*.csv`` with a header, or ``*.parquet`` (needs pyarrow).

A row is a sample. A column ``t`` is ignored. The labels of a recording are of one kind:

- ``label``: class numbers, or names that ``classes.txt`` lists one a line;
- ``label.NAME``, any number of them: 1 if the name is present, otherwise 0;
- ``target.NAME``, any number of them: a quantity.

All other columns are channels, in the header's order. An empty cell means that the sample has no
such label. The first 75 % of each recording are for training. Windows are cut separately before and
after that point, so no sample is in both parts. The label of a window is:

- its class, if all its samples have the same one; other windows are left out. If windows are cut
  into steps, each step has its class instead (`edge_client.data.labels.classes_of_steps`), and no
  window is left out;
- for each name 1 if it is present in at least half of the samples with a value, otherwise 0;
- for each quantity the mean over the samples with a value.

A window of either part is unlabelled if its samples have no class, or have no value at all for some
name or quantity.
"""

import csv
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from edge_client.core.ports import Windows
from edge_client.data.labels import NAMED, TARGET, classes_of_steps, of_samples
from wire.arrays.tensors import Array
from wire.errors import DataError
from wire.tasks import NO_LABEL

PARQUET = ".parquet"


def read_parquet(path: Path) -> Iterator[list[str]]:
    """Yield the header, and then a row for each sample, as text. A missing value is "".

    Raises:
        DataError: pyarrow is not installed, or the file cannot be read.
    """
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ModuleNotFoundError:
        raise DataError(
            f"{path}: Parquet needs the package pyarrow: pip install 'shoal[parquet]'"
        ) from None
    try:
        with ParquetFile(path) as file:
            yield list(file.schema_arrow.names)
            for batch in file.iter_batches():
                columns = [column.to_pylist() for column in batch.columns]
                yield from (
                    ["" if value is None else str(value) for value in row]
                    for row in zip(*columns, strict=True)
                )
    except (OSError, ArrowException) as error:
        raise DataError(
            f"{path} is not readable as Parquet: {str(error).splitlines()[0]}"
        ) from None


TEST_SHARE = 0.25
CLASSES = "classes.txt"
LARGEST = float(np.finfo(np.float32).max)
LARGEST_CLASS = 65_535
TIME, LABEL = "t", "label"
"""Columns that are not channels."""


class Columns(NamedTuple):
    """Columns of a recording, from its header.

    `channels` and `places` are the names and indexes of the channels, `label` is the index of the
    class column, None if there is none. `names` and `named` are the names and indexes of the
    columns of names or quantities.
    """

    channels: tuple[str, ...]
    places: list[int]
    label: int | None
    names: tuple[str, ...]
    named: list[int]
    are_quantities: bool


def classes_of(folder: Path) -> tuple[str, ...]:
    """Return the classes in ``classes.txt`` of a folder, in their order; none without that file.

    Raises:
        DataError: the file is not text, or lists a name twice.
    """
    path = folder / CLASSES
    if not path.exists():
        return ()
    try:
        names = tuple(name for name in path.read_text("utf-8-sig").split("\n") if name)
    except UnicodeDecodeError as error:
        raise _not_utf_8(path, error) from None
    if twice := [name for at, name in enumerate(names) if name in names[:at]]:
        raise DataError(f"{path} lists class {twice[0]!r} twice; list each class once")
    return names


def channels_in(recording: Path) -> tuple[str, ...]:
    """Return the names of the channels of a recording.

    Raises:
        DataError: its header has labels of more than one kind.
    """
    return _columns(recording, next(rows_of(recording), [])).channels


def recordings_in(folder: Path) -> list[Path]:
    """Return the paths of the recordings in a folder, sorted by name.

    Raises:
        DataError: two differ only in the suffix, like copies of one recording.
    """
    paths = sorted(
        path
        for path in folder.iterdir()
        if path.suffix in (".csv", PARQUET) and not path.name.startswith(".")
    )
    for path, following in pairwise(paths):
        if path.stem == following.stem:
            raise DataError(
                f"data folder {folder}: {path.name} and {following.name} have the same name; keep "
                "each recording once"
            )
    return paths


def load_recordings(
    folder: Path, paths: list[Path], length: int, stride: int, steps: int = 0
) -> Windows:
    """Return the windows of recordings, `length` samples long, one every `stride` samples.

    Args:
        folder: folder of the recordings.
        paths: the recordings.
        length: number of samples of a window.
        stride: number of samples between the starts of two windows.
        steps: number of steps with a class of their own in each window; 0 for one class.

    Raises:
        DataError: a recording cannot be read, columns differ, no recording is long enough, or
            windows cannot be cut into the steps.
    """
    if steps and (length % steps or steps < 2):
        raise DataError(
            f"data folder {folder}: steps must be a number from 2 that divides the {length} "
            f"samples of a window, got {steps}"
        )
    first: Columns | None = None
    parts: tuple[list[_Cut], list[_Cut]] = ([], [])
    for path in paths:
        columns, samples, labels = _read(path, folder)
        first = first or columns
        _check_alike(path, columns, paths[0], first)
        if steps and columns.label is None and columns.names:
            raise DataError(
                f"{path}: windows of steps need a column {LABEL!r} with classes, got "
                f"{', '.join(_said(columns))}"
            )
        cut = round((1 - TEST_SHARE) * len(samples))
        for part, span in zip(parts, (slice(0, cut), slice(cut, None)), strict=True):
            part.append(_cut(columns, samples[span], labels[span], length, stride, steps))
    train, test = (_Cut(*map(np.concatenate, zip(*part, strict=True))) for part in parts)
    unlabelled = np.concatenate([part.x[~part.labelled] for part in (train, test)])
    if not train.labelled.any() and not len(unlabelled):
        raise DataError(
            f"data folder {folder}: no recording has {length} consecutive samples with the same "
            "label, or without labels"
        )
    (train_x, train_y), (test_x, test_y) = (
        (part.x[part.labelled], part.y[part.labelled]) for part in (train, test)
    )
    return Windows(train_x, train_y, test_x, test_y, unlabelled, first.names if first else ())


def cut_samples(samples: Array, length: int, stride: int) -> Array:
    """Return windows (n, channels, length) of samples (time, channels), one every `stride`.

    There are none if the samples are too few.
    """
    if len(samples) < length:
        return np.zeros((0, samples.shape[1], length), samples.dtype)
    return np.lib.stride_tricks.sliding_window_view(samples, length, axis=0)[::stride]


class _Cut(NamedTuple):
    """Windows x (n, channels, time), their labels y (n, \\*label), and a mask `labelled` (n,)."""

    x: Array
    y: Array
    labelled: Array


def _cut(
    columns: Columns, samples: Array, said: Array, length: int, stride: int, steps: int
) -> _Cut:
    x = np.ascontiguousarray(cut_samples(samples, length, stride))
    if columns.names:
        of_windows = cut_samples(said, length, stride)
        return _Cut(
            x,
            of_samples(of_windows, columns.are_quantities),
            (~np.isnan(of_windows)).sum(2).min(1) > 0,
        )
    classes = cut_samples(said[:, None], length, stride)[:, 0]
    if steps:
        y = classes_of_steps(classes, steps)
        return _Cut(x, y, (y != NO_LABEL).any(1))
    alike = (classes == classes[:, :1]).all(1)
    y = classes[alike, 0]
    return _Cut(x[alike], y, y != NO_LABEL)


def rows_of(path: Path) -> Iterator[list[str]]:
    """Yield the header of a recording, and then its rows."""
    if path.suffix == PARQUET:
        yield from read_parquet(path)
    else:
        try:
            with path.open(
                newline="", encoding="utf-8-sig"
            ) as file:  # spreadsheets write a byte-order mark
                yield from ([cell.strip() for cell in row] for row in csv.reader(file) if row)
        except UnicodeDecodeError as error:
            raise _not_utf_8(path, error) from None


def _not_utf_8(path: Path, error: UnicodeDecodeError) -> DataError:
    return DataError(f"{path} is not text in UTF-8: {error.reason} at byte {error.start}")


def _columns(path: Path, header: list[str]) -> Columns:
    if twice := sorted({name for name in header if header.count(name) > 1}):
        raise DataError(
            f"{path}: its header has {twice[0]!r} twice; give each column a name of its own"
        )
    if near := [
        name for name in header if name not in (TIME, LABEL) and name.lower() in (TIME, LABEL)
    ]:
        raise DataError(
            f"{path}: column {near[0]!r} must be {near[0].lower()!r}, or have another name if it "
            "is a channel"
        )
    classes = [i for i, name in enumerate(header) if name == LABEL]
    named, targets = (
        [i for i, name in enumerate(header) if name.startswith(begin)] for begin in (NAMED, TARGET)
    )
    if sum(map(bool, (classes, named, targets))) > 1:
        label_columns = ", ".join(header[i] for i in sorted((*classes, *named, *targets)))
        raise DataError(
            f"{path}: labels must be in columns of one kind: {LABEL}, or {NAMED}NAME for each "
            f"name, or {TARGET}NAME for each quantity, got {label_columns}"
        )
    label_places = named or targets
    names = tuple(header[i].partition(".")[2] for i in label_places)
    if "" in names or len(set(names)) < len(names):
        raise DataError(
            f"{path}: columns of labels must have different names after the point, got "
            f"{', '.join(header[i] for i in label_places)}"
        )
    places = [
        i for i, name in enumerate(header) if name != TIME and i not in (*classes, *label_places)
    ]
    if not places:
        raise DataError(f"{path}: its header {header} names no channel")
    return Columns(
        tuple(header[i] for i in places),
        places,
        classes[0] if classes else None,
        names,
        label_places,
        bool(targets),
    )


def _said(columns: Columns) -> list[str]:
    """Return the columns of names or quantities, as in a header."""
    return [(TARGET if columns.are_quantities else NAMED) + name for name in columns.names]


def _check_alike(path: Path, own: Columns, first: Path, expected: Columns) -> None:
    if own.channels != expected.channels:
        raise DataError(
            f"{path}: channels must be {list(expected.channels)}, as in {first.name}, got "
            f"{list(own.channels)}"
        )
    if _said(own) != _said(expected):
        labels, first_labels = (", ".join(_said(columns)) or LABEL for columns in (own, expected))
        raise DataError(f"{path}: labels must be {first_labels}, as in {first.name}, got {labels}")


def _read(path: Path, folder: Path) -> tuple[Columns, Array, Array]:
    """Return a recording's columns, its samples (time, channels) float32, and their labels.

    Labels are class numbers (time,) int64, `NO_LABEL` if there is none; or numbers (time, names)
    float64, NaN if there is none.
    """
    rows = rows_of(path)
    header = next(rows, [])
    columns, numbers = (
        _columns(path, header),
        {name: i for i, name in enumerate(classes_of(folder))},
    )
    samples, labels = list[list[float]](), list[float | list[float]]()
    for line, row in enumerate(rows, start=2):
        if len(row) > len(header):
            raise DataError(
                f"{path}, line {line} has {len(row)} cells, and the header has {len(header)}"
            )
        try:
            samples.append([float(_numeral(row[i])) for i in columns.places])
            if columns.names:
                labels.append(
                    [_number(row[i], header[i], columns.are_quantities) for i in columns.named]
                )
            else:
                labels.append(
                    _class(row[columns.label], numbers, folder)
                    if columns.label is not None
                    else NO_LABEL
                )
        except DataError as error:
            raise DataError(f"{path}, line {line}: {error}") from None
        except (ValueError, IndexError) as error:
            raise DataError(
                f"{path}, line {line}: {row} does not fit the header {header} "
                f"({type(error).__name__}: {error})"
            ) from None
    with np.errstate(over="ignore"):  # values that are too large raise an error below
        array = np.array(samples, np.float32).reshape(-1, len(columns.places))
    if not np.isfinite(array).all():
        index, column = (int(i) for i in np.argwhere(~np.isfinite(array))[0])
        place = f"line {index + 2}, column {columns.channels[column]}"
        raise DataError(f"{path} must hold finite values, got {array[index, column]} in {place}")
    label_array = (
        np.array(labels, np.float64).reshape(-1, len(columns.names))
        if columns.names
        else np.array(labels, np.int64)
    )
    return columns, array, label_array


def _numeral(text: str) -> str:
    """Return the text if all clients read it as the same number.

    Python also accepts underscores and digits of other scripts.

    Raises:
        ValueError: the text is not such a number.
    """
    if "_" in text or not text.isascii():
        raise ValueError(f"{text!r} is not a number")
    return text


def _class(text: str, numbers: Mapping[str, int], folder: Path) -> int:
    """Return the number of a class."""
    if not text:
        return NO_LABEL
    if numbers:
        if text not in numbers:
            raise DataError(
                f"no class {text!r} in {folder / CLASSES}. Known classes: {', '.join(numbers)}."
            )
        return numbers[text]
    try:
        number = int(
            _numeral(text).removesuffix(".0")
        )  # programs write whole numbers so in a column with gaps
    except ValueError:
        raise DataError(
            f"label {text!r} is not a number, and {folder / CLASSES}, which lists the names of "
            "classes, is missing"
        ) from None
    if not 0 <= number <= LARGEST_CLASS:
        raise DataError(f"a class number must be between 0 and {LARGEST_CLASS}, got {text}")
    return number


def _number(text: str, column: str, is_quantity: bool) -> float:
    """Return the value of a name or quantity of a sample, NaN if the cell is empty."""
    if not text:
        return np.nan
    try:
        number = float(_numeral(text))
    except ValueError:
        number = np.nan
    if not (abs(number) <= LARGEST if is_quantity else number in (0, 1)):
        raise DataError(
            f"{column} must be {'a finite number' if is_quantity else '0 or 1'}, or empty, got "
            f"{text!r}"
        )
    return number
