"""Tables of recordings: text, Parquet, or columns in memory.

A table is read in parts of `PART` rows, so that its size costs no memory.
"""

import contextlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from itertools import chain, groupby, islice, pairwise, zip_longest
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from edge_client.data.tables.roles import MISSING
from edge_client.data.tables.text_form import (
    DECIMAL_COMMA,
    MOMENT,
    NUMERAL,
    first_rows,
    form_of,
    has_numbers,
    is_code,
    is_text,
    rows_of,
    stem_of,
)
from wire.arrays.tensors import Array
from wire.errors import DataError

PARQUET = ".parquet"
TEXTS = (".csv", ".tsv", ".dat", ".txt", ".log")
"""Suffixes of tables of text. They may be followed by ``.gz``."""
PART = 65_536
"""Number of rows of a part."""
SHOWN_LINES = 20
"""Maximum number of lines in an error."""
WIDE = 64
"""Number of columns without names and times from which a row may be a whole window."""
SHOWN_NAMES = 4
"""Maximum number of names in a sentence."""
_DAY = re.compile(r"\d{1,4}([-./])\d{1,2}\1\d{1,4}")
_SERIES = re.compile(r"(.*?)(\d+)\.\.\1(\d+)")


@dataclass(frozen=True)
class TablePart:
    """Rows of a table, by column.

    Columns of text are arrays of str. Those of Parquet may be float64, NaN without a value.
    """

    columns: dict[str, Array] = field(repr=False)
    lines: Array = field(repr=False)
    """Line (n,) of each row in the file; in Parquet the row's number from 1."""


@dataclass(frozen=True)
class MemoryTable:
    """A table in memory: columns (n,) of float64, datetime64 or str by name."""

    name: str
    """Origin of the table, with which errors start."""
    columns: dict[str, Array] = field(repr=False)

    def __str__(self) -> str:
        return self.name


TableSource = Path | MemoryTable
"""A table in a file or in memory."""
ColumnNames = Sequence[str] | Mapping[str, Sequence[str]]
"""Names of the columns of texts without a header; for kinds of files, by a pattern of their names.
"""


def is_text_file(path: TableSource) -> TypeGuard[Path]:
    """Return True if a table is in a file of text, so that it has a `TextForm`."""
    return isinstance(path, Path) and path.suffix != PARQUET


def is_table(path: Path) -> bool:
    """Return True if a file may be a recording.

    A ``.txt``, a ``.log`` or a file without a suffix counts only if its first line has several
    cells and its second a number.
    """
    name = path.name.lower().removesuffix(".gz")
    if name.startswith(".") or not ("." not in name or name.endswith((PARQUET, *TEXTS))):
        return False
    return name.endswith((PARQUET, ".csv", ".tsv", ".dat")) or has_numbers(path)


def header_of(path: TableSource, names: ColumnNames = ()) -> tuple[str, ...]:
    """Return the names of a table's columns.

    Args:
        path: the table.
        names: names of the columns of texts, in place of those in a first line of as many.

    Raises:
        DataError: the table cannot be read, has a name twice, or has no names.
    """
    if isinstance(path, MemoryTable):
        return tuple(path.columns)
    if path.suffix == PARQUET:
        with _open_parquet(path) as file:
            return _distinct(path, list(file.schema_arrow.names))
    form = form_of(path)
    if form.has_header:
        header = list(form.first)
        while header and not header[-1] and len(header) > 1:
            header.pop()  # a separator at the end of the line
        mine = spelled_out(_names_of_file(path, names))
        return mine if mine and len(mine) == len(header) else _distinct(path, header)
    mine = spelled_out(_names_of_file(path, names))
    columns = form.names if form.rate_hz or not mine else mine
    if len(columns) != len(form.first):
        what = f"{len(columns)} names" if columns else "names of its columns"
        rows = first_rows(path, 2000)
        line = f"names = {_names_list(rows, mine)}"
        alone = ""
        if isinstance(names, Mapping):
            line = f"names.{json.dumps(path.name)} = {_names_list(rows, ())}"
        elif columns:
            lists = {path.name: _names_list(rows, ()), "*": json.dumps(list(names))}
            each = ", ".join(f"{json.dumps(key)} = {value}" for key, value in lists.items())
            alone = (
                f"If other files have {len(columns)} cells, give names by patterns of the files' "
                f"names, names = {{{each}}}. If all have {len(form.first)}: "
            )
        if len(form.first) >= WIDE and '"t"' not in line and not columns:
            alone = (
                "If each row is a whole window, make arrays of the rows: shoal.load(x, y, owner) "
                "with x (n, channels, time). If it is a sample: "
            )
        raise DataError(
            f"{path}, line {form.skipped + 1}: the first line is a row of {len(form.first)} cells "
            f"({', '.join(form.first[:6])}{', ...' if len(form.first) > 6 else ''}) in place of "
            f"{what}. {alone}{add_line(line)}"
        )
    return columns


def _names_of_file(path: Path, names: ColumnNames) -> Sequence[str]:
    """Return a user's names of the columns of a file, none if no pattern is of its name."""
    if not isinstance(names, Mapping):
        return names
    return next((each for key, each in names.items() if is_of_file(key, path)), ())


def is_of_file(pattern: str, path: Path) -> bool:
    """Return True if a pattern is one of a file's name, of its stem, or of the end of its path."""
    ends = ("/".join(path.parts[i:]) for i in range(len(path.parts)))
    return any(fnmatch(name, pattern) for name in (stem_of(path), *ends))


def add_line(line: str) -> str:
    """Return the sentence of an error that says what to add to ``shoal.toml``."""
    return f"Add to shoal.toml beside the recordings: {line}"


def at_row(path: TableSource, line: int) -> str:
    """Return the place of a row for an error: a line of a file, a row from 0 in memory."""
    return f"{path}, {'row' if isinstance(path, MemoryTable) else 'line'} {line}"


def role_line(role: str, *names: str) -> str:
    """Return the line of ``shoal.toml`` that gives columns a role."""
    return roles_line(dict.fromkeys(names, role))


def roles_line(roles: Mapping[str, str]) -> str:
    """Return the line of ``shoal.toml`` with roles by the names of columns."""
    words = [f'{json.dumps(name, ensure_ascii=False)} = "{role}"' for name, role in roles.items()]
    return f"columns.{words[0]}" if len(words) == 1 else "columns = {" + ", ".join(words) + "}"


def class_line(label: str, name: str) -> str:
    """Return the line of ``shoal.toml`` that gives a label another name, "" for no label."""
    words = (json.dumps(each, ensure_ascii=False) for each in (label, name))
    return f"classes = {{{' = '.join(words)}}}"


def missing_line(numbers: Iterable[float]) -> str:
    """Return the line of ``shoal.toml`` that makes these numbers empty cells."""
    return f"missing = [{', '.join(f'{number:.15g}' for number in sorted(numbers))}]"


def in_words(names: Collection[str]) -> str:
    """Return names in quotation marks, the first of many and the number of the others."""
    first = [*map(repr, islice(names, SHOWN_NAMES))]
    words = first if len(names) <= SHOWN_NAMES else [*first, f"{len(names) - SHOWN_NAMES} more"]
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def labels_line(classes: Mapping[str, str]) -> str:
    """Return the line of ``shoal.toml`` with classes by patterns of the recordings' names."""
    pairs = (json.dumps(each, ensure_ascii=False) for pair in classes.items() for each in pair)
    return "labels = {" + ", ".join(map(" = ".join, zip(pairs, pairs, strict=True))) + "}"


def parts_of(
    path: TableSource,
    names: ColumnNames = (),
    columns: Sequence[str] = (),
    optional: Collection[str] = (),
) -> Iterator[TablePart]:
    """Yield the rows of a table in parts, for these columns, or for all if there are none.

    Args:
        path: the table.
        names: names of the columns of texts whose first line has none.
        columns: names of the columns to read.
        optional: names of the columns whose cells a row may lack at its end.

    Raises:
        DataError: the table cannot be read, or a row does not fit the header.
    """
    header = header_of(path, names)
    wanted = list(columns) or list(header)
    if isinstance(path, MemoryTable):
        rows = len(next(iter(path.columns.values())))
        for at in range(0, rows, PART):
            span = slice(at, at + PART)
            values = {name: path.columns[name][span] for name in wanted}
            yield TablePart(values, np.arange(at, min(at + PART, rows)))
        return
    if path.suffix == PARQUET:
        yield from _parquet_parts(path, wanted)
        return
    form = form_of(path)
    cells_of_rows = rows_of(path, form)
    if form.has_header:
        next(cells_of_rows, None)
    places = [header.index(name) for name in wanted]
    needed = [i for i in places if header[i] not in optional]

    fewest, most = max(needed, default=-1) + 1, len(header)

    def fits(row: Sequence[str]) -> bool:
        return len(row) >= fewest and not any(row[most:])

    while part := list(islice(cells_of_rows, PART)):
        wrong = next((at for at, (_, row) in enumerate(part) if not fits(row)), None)
        if wrong is not None:
            line, row = part[wrong]
            lacking = next((header[i] for i in needed if i >= len(row)), None)
            what = (
                f" has {len(row)} cells, and the header has {most}"
                if lacking is None
                else f": {row} does not fit the header: no cell for column {lacking!r}"
            )
            rest = chain(part[wrong + 1 :], cells_of_rows)
            fit = {number: fits(other) for number, other in rest}
            others = [number for number in fit if not fit[number]]
            way = _mend(others)
            if len(others) > max(SHOWN_LINES, len(fit) / 2):
                way = (
                    "Most lines do not fit. If the first lines of the file are no part of the "
                    "table, put # before each line above the header, or above the first row."
                )
            raise DataError(f"{path}, line {line}{what}. {way}")
        cells = list(zip_longest(*(row for _, row in part), fillvalue=""))
        yield TablePart(
            {
                name: np.array(cells[i] if i < len(cells) else [""] * len(part), str)
                for name, i in zip(wanted, places, strict=True)
            },
            np.array([line for line, _ in part], np.int64),
        )


def empty_numbers(part: TablePart, missing: Collection[float]) -> set[float]:
    """Empty the cells of a part that have one of the numbers `missing`; return these numbers."""
    there = set[float]()
    for name, column in part.columns.items() if missing else ():
        numbers = read_numbers(column)[0]
        is_missing = np.isin(numbers, [*missing])
        if is_missing.any():
            there |= set(numbers[is_missing].tolist())
            part.columns[name] = np.where(
                is_missing, "" if column.dtype.kind == "U" else np.nan, column
            )
    return there


def _mend(others: Sequence[int]) -> str:
    """Return the sentence of an error about a line, and other lines, that do not fit the header."""
    if not others:
        return "Mend the line, or remove it."
    shown = ", ".join(map(str, others[:SHOWN_LINES])) + ", ..." * (len(others) > SHOWN_LINES)
    are = "1 more line does" if len(others) == 1 else f"{len(others)} more lines do"
    return f"{are} not fit either: {shown}. Mend these lines, or remove them."


def read_numbers(column: Array) -> tuple[Array, int | None]:
    """Return a column as float64 (n,), NaN for an empty cell, and the first row that is no number.

    The row is None if all are numbers. All clients read the same text as a number: no underscores
    and no digits of other scripts.
    """
    if column.dtype.kind in "fiub":
        return column.astype(np.float64), None
    if column.dtype.kind == "M":
        moments = np.flatnonzero(~np.isnat(column))
        return np.full(len(column), np.nan), int(moments[0]) if len(moments) else None
    joined = "".join(column.tolist())
    if joined.isascii() and "_" not in joined:
        with contextlib.suppress(ValueError):  # a cell is empty or no number
            return column.astype(np.float64), None
    numbers = np.full(len(column), np.nan)
    wrong = None
    for i, cell in enumerate(column.tolist()):
        text = cell.strip()
        if NUMERAL.fullmatch(text):
            numbers[i] = float(text)
        elif DECIMAL_COMMA.fullmatch(text):
            numbers[i] = float(text.replace(",", "."))
        elif text.lower() in ("inf", "+inf", "-inf", "infinity", "-infinity"):
            numbers[i] = -np.inf if text[0] == "-" else np.inf
        elif text.lower() not in MISSING and wrong is None:
            wrong = i
    return numbers, wrong


def _names_list(rows: Sequence[Sequence[str]], words: Sequence[str]) -> str:
    """Return the list in ``shoal.toml`` that names columns: a user's words, then guesses.

    The time seldom falls. A person and classes are text, or whole numbers that seldom change.
    """
    columns = list(zip(*(row for row in rows if len(row) == len(rows[0])), strict=True))
    days = [all(map(_DAY.fullmatch, cells)) for cells in columns]
    moments = [all(map(MOMENT.match, cells)) for cells in columns]
    texts = [any(map(is_text, cells)) and not days[i] for i, cells in enumerate(columns)]
    codes = [is_code(cells) for cells in columns]
    flags = [is_code(cells) and {*cells} <= {"0", "1"} for cells in columns]
    if codes == flags and sum(flags) > 1:  # digital inputs, or a column for each class
        codes = [False] * len(codes)
    few = 2 * sum(codes) <= len(codes)
    counts, names = dict[str, int](), list[str]()
    for word in words:
        base = word.rstrip("0123456789")
        counts[base.rstrip("_")] = max(int(word[len(base) :] or 1), counts.get(base, 0))
    for i, cells in enumerate(columns):
        name = "c"
        if i < len(words):
            names.append(words[i])
            continue
        if "t" not in names and (moments[i] if any(moments) else _grows(cells)):
            name = "t"
        elif days[i] and "date" not in names:
            name = "date"
        elif texts[i]:
            name = "label"
        elif codes[i] and few:
            is_person = any(texts) or _begins_anew(cells, columns)
            name = "person" if is_person and "person" not in names else "label"
        counts[name] = counts.get(name, 0) + 1
        is_first = name != "c" and counts[name] == 1
        names.append(name if is_first else f"{name.replace('label', 'label_')}{counts[name]}")
    shown = list[str]()
    for _, group in groupby(names, lambda name: name.rstrip("0123456789")):
        same = list(group)
        numbered = [name for name in same if name[-1].isdecimal()]
        shown += [name for name in same if name not in numbered]
        series = f"{numbered[0]}..{numbered[-1]}" if len(numbered) > 3 else ""
        shown += [series] if list(spelled_out([series])) == numbered else numbered
    return json.dumps(shown)


def _begins_anew(codes: Sequence[str], columns: Sequence[Sequence[str]]) -> bool:
    """Return True if a growing column falls where codes change, like the cycles of a machine."""
    changes = [i for i, (cell, next_) in enumerate(pairwise(codes), 1) if cell != next_]
    growing = [read_numbers(np.array(cells))[0] for cells in columns if _grows(cells)]
    return bool(changes) and any((np.diff(t)[np.array(changes) - 1] < 0).all() for t in growing)


def _grows(cells: Sequence[str]) -> bool:
    """Return True if cells are numbers that seldom fall, as a time does."""
    numbers, wrong = read_numbers(np.array(cells))
    steps = np.diff(numbers)
    if wrong is not None or not len(steps):
        return wrong is None and len(cells[0].partition(".")[0]) > 8
    return bool((steps > 0).mean() > 0.9)


def spelled_out(names: Sequence[str]) -> tuple[str, ...]:
    """Return names of columns with a series such as ``c1..c9`` name by name."""
    each = list[str]()
    for name in names:
        series = _SERIES.fullmatch(name)
        if series is None:
            each.append(name)
        else:
            each += [f"{series[1]}{i}" for i in range(int(series[2]), int(series[3]) + 1)]
    return tuple(each)


def _distinct(path: Path, header: list[str]) -> tuple[str, ...]:
    if twice := sorted({name for name in header if header.count(name) > 1}):
        numbered = [
            f"{name or 'c'}_{header[:at].count(name) + 1}" if header.count(name) > 1 else name
            for at, name in enumerate(header)
        ]
        raise DataError(
            f"{path}: its header has {twice[0]!r} twice. Give each column a name of its own. "
            + add_line(f"names = {json.dumps(numbered)}")
        )
    return tuple(header)


def _open_parquet(path: Path) -> Any:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ModuleNotFoundError:
        raise DataError(
            f"{path}: Parquet needs the package pyarrow: pip install 'shoal[parquet]'"
        ) from None
    try:
        return ParquetFile(path, buffer_size=2**20, pre_buffer=False)  # else whole row groups
    except (OSError, ArrowException) as error:
        raise DataError(
            f"{path} is not readable as Parquet: {str(error).splitlines()[0]}"
        ) from None


def _parquet_parts(path: Path, columns: list[str]) -> Iterator[TablePart]:
    with _open_parquet(path) as file:
        from pyarrow import ArrowException

        line = 1
        try:
            for batch in file.iter_batches(PART, columns=columns):
                values = {name: _arrow_column(batch.column(name)) for name in columns}
                yield TablePart(values, np.arange(line, line + batch.num_rows))
                line += batch.num_rows
        except (OSError, ArrowException) as error:
            raise DataError(
                f"{path} is not readable as Parquet: {str(error).splitlines()[0]}"
            ) from None


def _arrow_column(column: Any) -> Array:
    """Return a column of Parquet as float64, datetime64 or str."""
    from pyarrow import types

    if types.is_integer(column.type) or types.is_floating(column.type):
        return column.cast("float64", safe=False).fill_null(np.nan).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
    if types.is_timestamp(column.type):
        return column.cast("timestamp[ns]").to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
    words = column if types.is_dictionary(column.type) else column.dictionary_encode()
    texts = ["" if v is None else str(v) for v in words.dictionary.to_pylist()]
    places = words.indices.fill_null(len(texts)).cast("int64").to_numpy(zero_copy_only=False)
    cells: Array = np.array([*texts, ""], str)[places]
    return cells
