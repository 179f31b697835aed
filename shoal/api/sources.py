"""The kinds of sources in memory that `shoal.load` tells apart."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shoal.api.columns import Roles, Table, by_owner, columns_of, has_windows, is_table
from simulation.datasets.npz import ARRAYS
from wire.errors import DataError


def are_tables(value: Any) -> bool:
    """Return True if a value is a table, or a list of tables."""
    return is_table(value) or (isinstance(value, list) and bool(value) and is_table(value[0]))


def tables_of(device_id: str, value: Any) -> list[Table]:
    """Return the recordings of a device, a table each."""
    tables = value if isinstance(value, list) else [value]
    where = f"data, device {device_id!r}"
    if not all(map(is_table, tables)):
        raise DataError(
            f"{where}: expected a table or a list of tables, got {type(value).__name__}"
        )
    return [columns_of(table, where) for table in tables]


def recordings_of(device_id: str, pair: Any, channels: Sequence[str]) -> list[Table]:
    """Return the recordings of a device from a pair of them and their labels."""
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise DataError(
            f"data, device {device_id!r}: with stride, expected a pair (recordings, labels), got "
            f"{type(pair).__name__}"
        )
    return by_owner(*pair, ["0"] * len(pair[0]), channels)["0"]


def is_file(source: Mapping[Any, Any]) -> bool:
    """Return True if a mapping has the arrays of a ``.npz`` by their names."""
    return "X" in source and not isinstance(source["X"], tuple) and len({*ARRAYS} & {*source}) > 1


def table_of(source: Any, roles: Roles) -> Table | None:
    """Return the columns of a table, or of tables named ``train`` and ``test``; None of others.

    Raises:
        DataError: the parts have samples in place of windows, or there are other parts.
    """
    if is_table(source):
        return columns_of(source)
    if not isinstance(source, Mapping) or is_file(source):
        return None
    if "train" in source and is_table(source["train"]):
        parts = {str(part): columns_of(table) for part, table in source.items()}
        if not parts.keys() <= {"train", "test"} or not all(map(has_windows, parts.values())):
            raise DataError(
                "data: parts must be train and test, with tables whose rows are windows, got "
                f"{', '.join(parts)}. Join other parts into one table."
            )
        return {
            column: np.concatenate([table[column] for table in parts.values()])
            for column in parts["train"]
        } | {"split": np.repeat([*parts], [len(next(iter(t.values()))) for t in parts.values()])}
    return columns_of(source) if roles.person and roles.person in source else None
