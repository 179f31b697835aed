"""Tables of recordings as programs write them: text with any usual separator, or Parquet.

A table is read in parts of `PART` rows, so that its size costs no memory. Text may be in UTF-8 or
UTF-16, with or without a byte order mark, or in Windows' Western encoding; its cells are separated
by commas, semicolons, tabs or blanks, and a decimal comma is read where commas separate no cells.
"""

import contextlib
import csv
import gzip
import io
import json
import re
from codecs import getincrementaldecoder
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby, islice, pairwise, zip_longest
from pathlib import Path
from typing import IO, Any

import numpy as np

from wire.arrays.tensors import Array
from wire.errors import DataError

PARQUET = ".parquet"
TEXTS = (".csv", ".tsv", ".dat", ".txt", ".log")
"""Suffixes of tables of text. They may be followed by ``.gz``."""
PART = 65_536
"""Number of rows of a part."""
HEAD = 65_536
"""Number of bytes from which the form of a text is read."""
SINCE_1970 = 3e8, 4e9
"""Range of seconds since 1970 that a recording may have."""
LARGEST_RATE_HZ = 1e5
MISSING = frozenset(("", "nan", "na", "n/a", "null", "none"))
"""Cells without a value, in lower case."""
_SEPARATOR_LINE = re.compile(r'"?sep=(\\t|.)"?', re.IGNORECASE)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{1,2}:\d{2}")
_SERIES = re.compile(r"(.*?)(\d+)\.\.\1(\d+)")
NUMERAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
DECIMAL_COMMA = re.compile(r"[+-]?[0-9]+,[0-9]+([eE][+-]?[0-9]+)?")


@dataclass(frozen=True)
class TextForm:
    """Encoding and separator of a text, and the number of lines before its rows."""

    encoding: str
    separator: str
    has_header: bool
    skipped: int
    first: tuple[str, ...]
    """Cells of the first line."""
    ends_rows: bool = False
    """True if a semicolon ends each row, so that a line may have several rows."""
    names: tuple[str, ...] = ()
    """Names of columns without a header that are clear."""
    start_s: float = 0.0
    rate_hz: float = 0.0
    """Time of the first row since 1970 and rows a second, if the first two lines say them, else 0.

    Each row then gets its time as a first cell.
    """


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


def stem_of(path: Path) -> str:
    """Return the name of a table without its suffixes."""
    return path.name.removesuffix(".gz").rpartition(".")[0] or path.name


def is_table(path: Path) -> bool:
    """Return True if a file may be a recording.

    A ``.txt`` or ``.log`` counts only if its first line has several cells and its second a number.
    """
    name = path.name.lower().removesuffix(".gz")
    if path.name.startswith(".") or not name.endswith((PARQUET, *TEXTS)):
        return False
    if not name.endswith((".txt", ".log")):
        return True
    try:
        lines = _decoded(_head(path), path)[1].splitlines()[:2]
    except (OSError, DataError):
        return False
    cells = [_split(line, _separator(lines)) for line in lines]
    return len(cells) == 2 and len(cells[0]) > 1 and any(map(NUMERAL.fullmatch, cells[1]))


def first_rows(path: Path, count: int = 20) -> list[list[str]]:
    """Return the cells of the first rows of a text, after its header."""
    form = form_of(path)
    begin = 1 if form.has_header else 0
    return [row for _, row in islice(_rows(path, form), begin, begin + count)]


def is_number(cell: str) -> bool:
    """Return True if a cell of a text is a number."""
    return bool(NUMERAL.fullmatch(cell) or DECIMAL_COMMA.fullmatch(cell))


def form_of(path: Path) -> TextForm:
    """Return the form of a table of text.

    Raises:
        DataError: the file cannot be read, or is no text.
    """
    try:
        status = path.stat()
        return _form(path, status.st_size, status.st_mtime_ns)
    except (OSError, EOFError) as error:
        raise DataError(f"{path}: {getattr(error, 'strerror', None) or error}") from None


@lru_cache(maxsize=1024)
def _form(path: Path, _size: int, _changed_ns: int) -> TextForm:
    encoding, text = _decoded(_head(path), path)
    lines = text.split("\n")
    skipped = 0
    separator = ""
    for line in lines:
        if match := _SEPARATOR_LINE.fullmatch(line.rstrip("\r")):
            separator = "\t" if match[1] == r"\t" else match[1]
        elif line.strip() and not line.startswith("#"):
            break
        skipped += 1
    rest = [line.rstrip("\r") for line in lines[skipped : skipped + 50] if line.strip()]
    of_rows = separator or _separator(rest[20:40])
    before = _lines_before_header(rest, of_rows)
    if before:
        separator, rest = of_rows, rest[before:]
        skipped = lines.index(next(s for s in lines[skipped:] if s.rstrip("\r") == rest[0]))
    separator = separator or _separator(rest)
    cells = _split(rest[0], separator) if rest else []
    has_header = _is_header(cells)
    names = _names_of_lines(rest, separator) if has_header else _names_of_dates(rest, separator)
    ends_rows = separator == "," and all(line.rstrip().endswith(";") for line in rest[:3])
    first, rows = tuple(cells), 0
    if clock := _start_and_rate(rest, separator):
        width = len(cells)
        values = ("x", "y", "z") if width == 3 else tuple(f"c{i}" for i in range(1, width + 1))
        names = "time", *(values if width > 1 else (stem_of(path).lower(),))
        return TextForm(encoding, separator, False, skipped + 2, ("", *first), False, names, *clock)
    if has_header and names:
        first, rows = names, _lines_of_header(rest, separator) - 1
    return TextForm(
        encoding, separator, has_header, skipped + rows, first, ends_rows, () if rows else names
    )


def _start_and_rate(lines: Sequence[str], separator: str) -> tuple[float, float] | None:
    """Return the numbers of the first two lines if they are a time since 1970 and a rate.

    Devices of Empatica write both once for each column, and then a row for each sample.
    """
    rows = [_split(line, separator) for line in lines[:3]]
    if separator == " " or len(rows) < 3 or len({len(row) for row in rows}) > 1:
        return None
    if any(len(set(row)) > 1 or not NUMERAL.fullmatch(row[0]) for row in rows[:2]):
        return None
    start_s, rate_hz = float(rows[0][0]), float(rows[1][0])
    fits = SINCE_1970[0] <= start_s < SINCE_1970[1] and 0 < rate_hz <= LARGEST_RATE_HZ
    return (start_s, rate_hz) if fits else None


def _lines_before_header(lines: Sequence[str], separator: str) -> int:
    """Return the number of lines of a program about itself before the header of a table.

    They have fewer cells than the header, which has as many as the rows.
    """
    counts = [len(_split(line, separator)) for line in lines]
    width = counts[-2] if len(counts) > 24 else 0
    if width < 2 or set(counts[24:-1]) != {width} or counts[0] >= width:
        return 0
    at = counts.index(width)
    is_table = set(counts[at:-1]) == {width} and max(counts[:at]) < width
    return at if is_table and _is_header(_split(lines[at], separator)) else 0


def _lines_of_header(lines: Sequence[str], separator: str) -> int:
    """Return the number of lines of text, such as names and units, before the first numbers."""
    for at, line in enumerate(lines[:5]):
        cells = [cell for cell in _split(line, separator) if cell.lower() not in MISSING]
        if any(map(is_number, cells)):
            return at
        if 2 * len(cells) <= len(_split(lines[0], separator)) or any(c[0].isdigit() for c in cells):
            return 0
    return 0


def _names_of_lines(lines: Sequence[str], separator: str) -> tuple[str, ...]:
    """Return names with units of columns whose header has several lines; () if it has one."""
    count = _lines_of_header(lines, separator)
    rows = [_split(line, separator) for line in lines[:count]]
    if count < 2 or len({len(row) for row in rows}) > 1:
        return ()
    while not any(row[-1] for row in rows):
        rows = [row[:-1] for row in rows]
    names = max(rows, key=lambda row: len(set(row)))
    units = rows[-1] if rows[-1] is not names else [""] * len(names)
    plain = [re.sub(r"[()\[\]]", "", unit) for unit in units]
    return tuple(
        f"{name} ({unit})" if unit and not unit.lower().startswith("no") else name
        for name, unit in zip(names, plain, strict=True)
    )


def _names_of_dates(lines: Sequence[str], separator: str) -> tuple[str, ...]:
    """Return names of columns without a header if they are dates and measurements, else ()."""
    rows = [_split(line, separator) for line in lines[:-1]]
    rows = [row for row in rows if len(row) == len(rows[0])]
    if len(rows) < 2 or not all(_DATE.match(row[0]) for row in rows):
        return ()
    columns = list(zip(*rows, strict=True))[1:]
    if not columns or any(_is_code(cells) or any(map(_is_text, cells)) for cells in columns):
        return ()
    return "t", *(f"c{i}" for i in range(1, len(columns) + 1))


def header_of(path: TableSource, names: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the names of a table's columns.

    Args:
        path: the table.
        names: names of the columns of a text whose first line has none.

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
        return _distinct(path, header)
    mine = spelled_out(names)
    names = form.names if form.rate_hz or not mine else mine
    if len(names) != len(form.first):
        what = f"{len(names)} names" if names else "names of its columns"
        rows = first_rows(path, 2000)
        alone = f"If other files have {len(names)} cells, write a header into this file. "
        raise DataError(
            f"{path}, line {form.skipped + 1}: the first line is a row of {len(form.first)} cells "
            f"({', '.join(form.first[:6])}{', ...' if len(form.first) > 6 else ''}) in place of "
            f"{what}. {alone if names else ''}{add_line(_names_line(rows, mine))}"
        )
    return names


def add_line(line: str) -> str:
    """Return the sentence of an error that says what to add to ``shoal.toml``."""
    return f"Add to shoal.toml beside the recordings: {line}"


def at_row(path: TableSource, line: int) -> str:
    """Return the place of a row for an error: a line of a file, a row from 0 in memory."""
    return f"{path}, {'row' if isinstance(path, MemoryTable) else 'line'} {line}"


def role_line(role: str, *names: str) -> str:
    """Return the line of ``shoal.toml`` that gives columns a role."""
    keys = [json.dumps(name, ensure_ascii=False) for name in names]
    if len(keys) == 1:
        return f'columns.{keys[0]} = "{role}"'
    return "columns = {" + ", ".join(f'{key} = "{role}"' for key in keys) + "}"


def parts_of(
    path: TableSource,
    names: Sequence[str] = (),
    columns: Sequence[str] = (),
    optional: Collection[str] = (),
) -> Iterator[TablePart]:
    """Yield the rows of a table in parts, for these columns, or for all if there are none.

    Args:
        path: the table.
        names: names of the columns of a text whose first line has none.
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
    cells_of_rows = _rows(path, form)
    if form.has_header:
        next(cells_of_rows, None)
    places = [header.index(name) for name in wanted]
    needed = [i for i in places if header[i] not in optional]
    while part := list(islice(cells_of_rows, PART)):
        for line, row in part:
            if len(row) > len(header) and any(row[len(header) :]):
                raise DataError(
                    f"{path}, line {line} has {len(row)} cells, and the header has {len(header)}. "
                    "Mend the line, or remove it."
                )
            if len(row) <= max(needed, default=-1):
                lacking = next(header[i] for i in needed if i >= len(row))
                raise DataError(
                    f"{path}, line {line}: {row} does not fit the header: no cell for column "
                    f"{lacking!r}. Mend the line, or remove it."
                )
        cells = list(zip_longest(*(row for _, row in part), fillvalue=""))
        yield TablePart(
            {
                name: np.array(cells[i] if i < len(cells) else [""] * len(part), str)
                for name, i in zip(wanted, places, strict=True)
            },
            np.array([line for line, _ in part], np.int64),
        )


def read_numbers(column: Array) -> tuple[Array, int | None]:
    """Return a column as float64 (n,), NaN for an empty cell, and the first row that is no number.

    The row is None if all are numbers. All clients read the same text as a number: no underscores
    and no digits of other scripts.
    """
    if column.dtype.kind in "fiub":
        return column.astype(np.float64), None
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


def text_of(path: Path) -> str:
    """Return the text of a small file, in the encodings of tables.

    Raises:
        DataError: it is no text.
    """
    return _decoded(path.read_bytes(), path)[1]


def _head(path: Path) -> bytes:
    with _open(path) as file:
        return file.read(HEAD)


def _open(path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        return gzip.open(path)  # type: ignore[return-value]
    return path.open("rb")


def _decoded(head: bytes, path: Path) -> tuple[str, str]:
    """Return the encoding of a text that begins with these bytes, and the bytes as text."""
    for mark, encoding in (
        (b"\xef\xbb\xbf", "utf-8-sig"),
        (b"\xff\xfe", "utf-16"),
        (b"\xfe\xff", "utf-16"),
    ):
        if head.startswith(mark):
            return encoding, head.decode(encoding, "ignore")
    for at, encoding in ((1, "utf-16-le"), (0, "utf-16-be")):
        if len(head) > 3 and not any(head[at:200:2]):
            return encoding, head.decode(encoding, "ignore")
    if b"\0" in head:
        raise DataError(f"{path} is no text: it has a byte of zero at {head.index(0)}")
    encoding = "utf-8" if _is_utf_8(path) else "cp1252"
    return encoding, head.decode(encoding, "ignore")


def _is_utf_8(path: Path) -> bool:
    decoder = getincrementaldecoder("utf-8")()
    try:
        with _open(path) as file:
            while chunk := file.read(2**20):
                decoder.decode(chunk)
            decoder.decode(b"", True)
    except UnicodeDecodeError:
        return False
    return True


def _split(line: str, separator: str) -> list[str]:
    if separator == " ":
        return line.split()
    cells = next(csv.reader([line.rstrip("\r\n")], delimiter=separator), [])
    return [_cell(cell) for cell in cells]


def _cell(text: str) -> str:
    return text.strip().rstrip(";").strip()


def _separator(lines: Sequence[str]) -> str:
    """Return the separator by which all lines have the same number of cells, and most of them.

    A semicolon or a tab separates no cells if more of them are numbers by commas: it is in texts.
    """
    best, most = ",", 1

    def numbers(separator: str) -> int:
        return sum(is_number(cell) for line in lines[:20] for cell in _split(line, separator))

    for separator in (";", "\t", ",", "|", " "):
        counts = [
            len(_split(line.rstrip("; \r\n") if separator == ";" else line, separator))
            for line in lines[:20]
        ]
        if separator in ";\t" and numbers(separator) < numbers(","):
            continue
        if counts and min(counts) > most and (max(counts) - min(counts) <= 1 or separator == ";"):
            best, most = separator, min(counts)
            if separator in ";\t":  # commas may then be decimal
                break
    return best


def _is_header(cells: Sequence[str]) -> bool:
    """Return True if cells are names: fewer than half are numbers, or they count from 0."""
    numbers = [cell for cell in cells if NUMERAL.fullmatch(cell) or DECIMAL_COMMA.fullmatch(cell)]
    counted = [str(i) for i in range(len(numbers))]
    return 2 * len(numbers) < len(cells) or not cells or numbers == counted


def _names_line(rows: Sequence[Sequence[str]], words: Sequence[str]) -> str:
    """Return the line of ``shoal.toml`` that names columns: a user's words, then guesses.

    The time seldom falls. A person and classes are text, or whole numbers that seldom change.
    """
    columns = list(zip(*(row for row in rows if len(row) == len(rows[0])), strict=True))
    texts = [any(map(_is_text, cells)) for cells in columns]
    codes = [_is_code(cells) for cells in columns]
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
        if texts[i]:
            name = "label"
        elif "t" not in names and _grows(cells):
            name = "t"
        elif codes[i] and few:
            name = "person" if any(texts) and "person" not in names else "label"
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
    return f"names = [{', '.join(json.dumps(name) for name in shown)}]"


def _is_text(cell: str) -> bool:
    return not is_number(cell) and cell.lower() not in MISSING


def _is_code(cells: Sequence[str]) -> bool:
    """Return True if cells are whole numbers that seldom change, as those of classes do."""
    changes = sum(cell != following for cell, following in pairwise(cells))
    whole = all(re.fullmatch(r"-?\d{1,6}", cell) for cell in cells)
    return whole and changes <= max(1, len(cells) / 50)


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
        raise DataError(
            f"{path}: its header has {twice[0]!r} twice; give each column a name of its own"
        )
    return tuple(header)


def _rows(path: Path, form: TextForm) -> Iterator[tuple[int, list[str]]]:
    """Yield the line of each row and its cells; empty lines are skipped."""
    with _open(path) as raw, io.TextIOWrapper(raw, form.encoding, newline="") as file:
        try:
            for _ in range(form.skipped):
                file.readline()
            if form.separator == " ":
                for line, text in enumerate(file, form.skipped + 1):
                    if cells := text.split():
                        yield line, cells
                return
            if form.ends_rows:
                for line, text in enumerate(file, form.skipped + 1):
                    for part in text.split(";"):
                        if part.strip(" ,\r\n"):
                            yield line, _split(part, form.separator)
                return
            reader, count = csv.reader(file, delimiter=form.separator), 0
            for row in reader:
                if row and not (len(row) == 1 and not row[0].strip()):
                    time = [repr(form.start_s + count / form.rate_hz)] if form.rate_hz else []
                    yield form.skipped + reader.line_num, time + [_cell(cell) for cell in row]
                    count += 1
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path} is not text in {form.encoding}: {error.reason} at byte {error.start}"
            ) from None
        except (csv.Error, OSError, EOFError) as error:
            raise DataError(f"{path}: {getattr(error, 'strerror', None) or error}") from None


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
