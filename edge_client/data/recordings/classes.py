"""Classes of a file's samples, from one column of names or from a column of 0 and 1 per class."""

from collections.abc import Mapping, Sequence

import numpy as np

from edge_client.data.labels import NAMED, TARGET
from edge_client.data.tables.parts import TablePart, TableSource, add_line, in_words, roles_line
from edge_client.data.tables.roles import LABEL, LEFT_OUT, MISSING, ColumnRole
from edge_client.data.tables.text_form import NUMERAL
from wire.arrays.tensors import Array
from wire.errors import DataError

FIRST_FLAGS = 50
"""Number of cells that are read first: they rule out most columns."""
LARGEST_WHOLE = 1e15
"""Size from which floats are not exact, so that numbers keep their text."""
NO, YES = ("", "0", "0.0", "false"), ("1", "1.0", "true")
"""Cells for an absent and a present class."""


def class_columns(roles: Mapping[str, ColumnRole]) -> list[str]:
    """Return the names of the columns of classes: one of names, or several of 0 and 1."""
    names = [name for name, role in roles.items() if role.role == LABEL]
    return [name for name in names if not name.startswith((NAMED, TARGET))]


def class_cells(path: TableSource, part: TablePart, labels: Sequence[str]) -> Array:
    """Return the labels (n,) of rows: the cells of a column, or the name of the one that says 1.

    Raises:
        DataError: a cell of several columns is neither 0 nor 1, or two say 1.
    """
    if not labels[1:]:
        return part.columns[labels[0]]
    each = [flags_of(part.columns[name]) for name in labels]
    flags = np.array([flag for flag in each if flag is not None])
    if len(flags) < len(each) or (flags.sum(0) > 1).any():
        raise DataError(several_labels_error(path, labels))
    return np.array(["", *labels])[np.where(flags.any(0), flags.argmax(0) + 1, 0)]


def flags_of(column: Array) -> Array | None:
    """Return True (n,) where cells are 1 or true; None if a cell is not 0, 1, true or false."""
    if column.dtype.kind != "U":
        return np.equal(column, 1) if np.isin(column, (0, 1)).all() else None
    if not {cell.strip().lower() for cell in column[:FIRST_FLAGS].tolist()} <= {*NO, *YES}:
        return None
    cells = np.char.lower(np.char.strip(column))
    says_one: Array = np.isin(cells, YES)
    return says_one if (says_one | np.isin(cells, NO)).all() else None


def several_labels_error(path: TableSource, labels: Sequence[str]) -> str:
    """Return the error text about several columns with the role `label`."""
    ways = dict.fromkeys(labels, LEFT_OUT) | {labels[0]: LABEL}
    return (
        f"{path}: one column may be the label, got {in_words(labels)}, or several of which one "
        f"says 1 and the others 0. If each says 1 or 0, call the columns {NAMED}NAME. To take one: "
        + add_line(roles_line(ways))
    )


def class_texts(column: Array) -> tuple[list[str], Array, Array]:
    """Return the labels in a column ("" for none), their first rows, and each row's label (n,)."""
    texts, first, inverse = np.unique(texts_of(column), return_index=True, return_inverse=True)
    return texts.tolist(), first, inverse


def has_cell(column: Array) -> Array:
    """Return True (n,) where a cell of a column of classes is not empty."""
    if column.dtype.kind == "f":
        return ~np.isnan(column)
    names, inverse = np.unique(column.astype(str), return_inverse=True)
    has_text = [name.strip() not in ("", "nan", "NaN", "None") for name in names.tolist()]
    return np.array(has_text, bool)[inverse]


def texts_of(column: Array) -> Array:
    """Return the cells of a column of classes as text, whole numbers without a point."""
    if column.dtype.kind == "f":
        return np.array(["" if np.isnan(v) else f"{v:.10g}" for v in column.tolist()], str)
    names, inverse = np.unique(column.astype(str), return_inverse=True)
    cells = [name.strip() for name in names.tolist()]
    short = ["" if cell.lower() in MISSING else _without_point(cell) for cell in cells]
    return np.array(short, str)[inverse]


def _without_point(text: str) -> str:
    """Return a whole number without its point, and any other text unchanged."""
    if "." not in text or not NUMERAL.fullmatch(text):
        return text
    number = float(text)
    return str(int(number)) if abs(number) < LARGEST_WHOLE and number == int(number) else text
