"""Tables in memory, of any library whose tables have names of columns and a column by its name.

pandas, polars, pyarrow and Hugging Face's datasets have such tables; mappings from names to arrays,
and arrays with named fields, count as tables too. A row is a sample if its cells are numbers, and a
window if they are arrays of numbers.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from edge_client.data.recordings.folders import RecordingFiles
from edge_client.data.recordings.loading import windows_of_recordings
from edge_client.data.tables.parts import MemoryTable
from edge_client.data.tables.roles import (
    CHANNEL,
    LABEL,
    LEFT_OUT,
    PERSON,
    TIME,
    RoleName,
    is_label_column,
)
from edge_client.data.tables.words import FolderSettings
from shoal.api.examples import array_of, windows_of
from simulation.datasets.device_folders import load_tables
from simulation.datasets.npz import device_ids
from simulation.datasets.windows import FleetData
from wire.arrays.tensors import Array
from wire.bundle import Window
from wire.errors import DataError

log = logging.getLogger("shoal.data")

Table = dict[str, NDArray[Any]]
"""Columns (n,), or (n, ...), by name."""
INDEX = "index_time"
"""Name of the column that an index of times becomes."""


class Roles(NamedTuple):
    """Names of the columns that are no channels; "" where a user names none."""

    person: str = ""
    label: str = ""
    time: str = ""

    @property
    def columns(self) -> dict[str, RoleName]:
        """Roles by the names of the columns."""
        roles: dict[str, RoleName] = {self.label: LABEL, self.time: TIME, self.person: PERSON}
        return {name: role for name, role in roles.items() if name}


def is_table(value: Any) -> bool:
    """Return True if a value is a table, but no mapping."""
    if isinstance(value, np.ndarray):
        return value.dtype.names is not None
    has_names = hasattr(value, "column_names") or hasattr(value, "columns")
    return has_names and hasattr(value, "__getitem__") and not isinstance(value, Mapping)


def columns_of(table: Any, where: str = "data") -> Table:
    """Return the columns of a table.

    Levels of an index are columns if they have names or are times. Class numbers whose names the
    table knows become names.

    Raises:
        DataError: two columns have the same name, or it is a plan of a table that was not computed.
    """
    if isinstance(table, Mapping):
        return {str(name): array_of(values) for name, values in table.items()}
    if isinstance(table, np.ndarray):
        return {name: array_of(table[name]) for name in table.dtype.names or ()}
    if hasattr(table, "collect") and not hasattr(table, "to_numpy"):
        raise DataError(f"{where}: a {type(table).__name__} has no rows yet; use its .collect()")
    if hasattr(table, "with_format") and hasattr(table, "features"):
        kinds, arrays = table.features, table.with_format("numpy")[:]
        columns = {name: array_of(values) for name, values in arrays.items()}
        for name, kind in kinds.items():
            if (names := getattr(kind, "names", None)) and columns[name].dtype.kind in "iu":
                numbers = columns[name]
                columns[name] = np.where(numbers < 0, "", np.array(names, str)[numbers])
        return columns
    if hasattr(table, "reset_index"):
        table = _with_index(table)
    names = list(table.column_names if hasattr(table, "column_names") else table.columns)
    if twice := [str(name) for at, name in enumerate(names) if name in names[:at]]:
        raise DataError(
            f"{where} has column {twice[0]!r} twice; give each column a name of its own"
        )
    return {str(name): array_of(table[name]) for name in names}


def has_windows(table: Table) -> bool:
    """Return True if the cells of a column are arrays, so that a row is a window."""
    return any(column.ndim > 1 or column.dtype.kind == "O" for column in table.values())


def arrays_of_windows(table: Table, roles: Roles, channels: Sequence[str]) -> dict[str, Any]:
    """Return the examples ``X``, labels and owners of a table whose rows are windows.

    The columns with arrays are the examples, as several inputs if there is more than one; other
    columns without a role are left out, and logged.

    Raises:
        DataError: the label or person is not named, or a column is missing.
    """
    person, label = (
        _role(table, name, role)
        for name, role in ((roles.person, "person"), (roles.label or LABEL, LABEL))
    )
    inputs = [
        name
        for name, column in table.items()
        if name not in (person, label)
        and (column.ndim > 1 or column.dtype.kind == "O")
        and (name in channels or not channels)
    ]
    others: dict[str, Any] = {
        name: table[name] for name in ("split", "session", "start") if name in table
    }
    if ignored := sorted(table.keys() - {person, label, *inputs, *others}):
        log.warning("Columns of no role are left out: %s", ", ".join(ignored))
    if not inputs:
        raise DataError(f"data: no column has arrays, got {', '.join(table)}")
    windows = {name: windows_of(f"data, column {name!r}", table[name]) for name in inputs}
    whole = next(iter(windows.values())) if len(inputs) == 1 else windows
    return {"X": whole, "y": table[label], "subject": table[person], **others}


def by_person(table: Table, roles: Roles) -> dict[str, list[Table]]:
    """Return the samples of each person as recordings, in the order of the rows.

    Raises:
        DataError: no column is named as the person, or it has empty cells.
    """
    person = _role(table, roles.person, "person")
    owners = table[person]
    lacking = np.flatnonzero(owners == "" if owners.dtype.kind == "U" else np.isnan(owners))
    if len(lacking):
        raise DataError(
            f"data: column {person!r} must name a person in each row, got no value in row "
            f"{lacking[0]}"
        )
    if owners.dtype.kind == "f" and not (owners % 1).any():
        owners = owners.astype(np.int64)
    ids = device_ids(owners, len(owners), f"column {person!r}")
    order = np.argsort(owners, kind="stable")
    values, begins = np.unique(owners[order], return_index=True)
    rows = dict(zip(values.tolist(), np.split(order, begins[1:]), strict=True))
    return {
        ids[value]: [{name: column[at] for name, column in table.items() if name != person}]
        for value, at in rows.items()
    }


def by_owner(
    x: Sequence[Any], y: Any, owner: Any, channels: Sequence[str]
) -> dict[str, list[Table]]:
    """Return recordings (channels, time) of any lengths as tables, by their owners.

    `y` has a label for each recording, or for each of its samples; None if there are none.

    Raises:
        DataError: a recording is no such array, or the labels or owners do not fit.
    """
    owners = array_of(owner)
    ids = device_ids(owners, len(x), "data")
    if y is not None and len(y) != len(x):
        raise DataError(f"data: expected a label for each of {len(x)} recordings, got {len(y)}")
    devices: dict[str, list[Table]] = {device_id: [] for device_id in ids.values()}
    for number, value in enumerate(x):
        samples = array_of(value)
        where = f"data: recording {number} is {samples.dtype}{list(samples.shape)}"
        if samples.ndim != 2 or samples.dtype.kind not in "fiub":
            raise DataError(f"{where}, expected numbers (channels, time)")
        if samples.shape[0] > samples.shape[1]:
            raise DataError(f"{where}, more channels than samples: use x.T for (channels, time)")
        names = channels or [f"c{i}" for i in range(len(samples))]
        if len(names) != len(samples):
            raise DataError(f"{where}, and there are {len(names)} names of channels")
        table = dict(zip(names, samples, strict=True))
        if y is not None:
            labels = array_of(y[number])
            if labels.shape not in ((), samples.shape[1:]):
                raise DataError(
                    f"{where}, expected one label, or one for each sample, got {list(labels.shape)}"
                )
            table[LABEL] = np.broadcast_to(labels, samples.shape[1:])
        devices[ids[owners[number].item()]].append(table)
    return devices


def fleet_of_samples(
    devices: Mapping[str, Sequence[Table]],
    roles: Roles,
    words: FolderSettings,
    *,
    classes: Sequence[str],
    channels: Sequence[str],
    length: int,
    stride: int,
    steps: int,
    name: str,
) -> FleetData:
    """Return the fleet of recordings by device, read and cut as those of files are.

    Raises:
        DataError: a column is missing, or the recordings cannot be used.
    """
    present = {name for recordings in devices.values() for table in recordings for name in table}
    columns: dict[str, RoleName] = {LABEL: LEFT_OUT} if roles.label else {}
    columns |= roles.columns
    columns = {name: role for name, role in columns.items() if name in present}
    tables: dict[str, list[MemoryTable]] = {}
    for device_id, recordings in devices.items():
        tables[device_id] = []
        for table in recordings:
            named = ((roles.time, TIME), (roles.label, LABEL), *((c, CHANNEL) for c in channels))
            for column, role in named:
                if column:
                    _role(table, column, role)
            content = {
                name: _cells(name, values, roles.label or LABEL, classes)
                for name, values in table.items()
                if not channels or name in channels or name in columns or is_label_column(name)
            }
            tables[device_id].append(MemoryTable(f"data, device {device_id!r}", content))
    columns |= dict.fromkeys(channels, CHANNEL)
    words = replace(words, columns=columns | words.columns)
    return load_tables(tables, words, classes, length, stride, steps, name)


def _cells(name: str, column: Array, label: str, classes: Sequence[str]) -> Array:
    """Return a column as float64, datetime64 or text; class numbers get the names of `classes`.

    Raises:
        DataError: a class number has no name.
    """
    if name == label and column.dtype.kind in "iu" and classes:
        if len(column) and not 0 <= int(column.min()) <= int(column.max()) < len(classes):
            raise DataError(
                f"column {label!r} has class numbers {column.min()} to {column.max()}, and classes "
                f"names 0 to {len(classes) - 1}. Store {label} - {column.min()} if that is all, or "
                "leave classes out"
            )
        return np.array(classes, str)[column]
    if column.dtype.kind in "UO" or (name == label and column.dtype.kind == "b"):
        return column.astype(str)
    return column if column.dtype.kind == "M" else column.astype(np.float64)


def windows_of_table(table: Any, words: FolderSettings | None, window: Window) -> Array:
    """Return the windows (n, channels, length) of a table of samples, cut as those of files are.

    `words` are a user's words about the table.

    Raises:
        DataError: a channel is missing, or a cell of it is no number.
    """
    columns = columns_of(table, "x").items()
    samples = MemoryTable("x", {name: _cells(name, column, "", ()) for name, column in columns})
    source = RecordingFiles("x", (("", samples),))
    return windows_of_recordings(Path("x"), [source], words or FolderSettings(), window)


def _role(table: Table, name: str, role: str) -> str:
    """Return the name of a column that a user names, or that has the usual name of its role."""
    if name in table:
        return name
    if not name:
        raise DataError(
            f"data: {role}='NAME' must name the column of the {role}, one of {', '.join(table)}"
        )
    raise DataError(f"data: no column {name!r} ({role}). Known columns: {', '.join(table)}.")


def _with_index(table: Any) -> Any:
    """Return a table of pandas whose index is made of columns, as far as it says something."""
    index = table.index
    if levels := [n for n in index.names if n is not None and n not in table.columns]:
        return table.reset_index(level=levels)
    return table.rename_axis(INDEX).reset_index() if index.dtype.kind in "mM" else table
