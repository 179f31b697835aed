"""Texts as programs write them: encoding, separator, header, and the cells of each row.

Text may be in UTF-8 or UTF-16, with or without a byte order mark, or in Windows' Western encoding;
its cells are separated by commas, semicolons, tabs or blanks, and a decimal comma is read where
commas separate no cells.
"""

import contextlib
import csv
import gzip
import io
import json
import re
from codecs import getincrementaldecoder
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import IO

from edge_client.data.tables.roles import (
    LABELS,
    MISSING,
    is_number_of_row,
    is_time,
    plain,
    unit_of,
)
from host.files import file_error
from wire.errors import DataError

HEAD = 65_536
"""Number of bytes from which the form of a text is read."""
SINCE_1970 = 3e8, 4e9
"""Range of seconds since 1970 that a recording may have."""
LARGEST_RATE_HZ = 1e5
COMMENTS = "#", "//", "%", '"TOA5"', "TOA5,"
"""Beginnings of lines that are comments. TOA5 begins what loggers of Campbell Scientific write."""
BEGINS = ("start", "begin", "from", "onset", "start_time", "begin_time", "time_start", "start_at")
ENDS = ("end", "stop", "to", "offset", "end_time", "stop_time", "time_end", "end_at")
"""Names of the times at which an interval with one label begins and ends."""
DURATION = "duration"
"""Column with the length of an interval (s), if no column has its end."""
_BESIDE_INTERVALS = frozenset((DURATION, "comment", "note", "notes", "confidence", "annotator"))
_KINDS = frozenset(("", "smp", "avg", "max", "min", "std", "tot", "med", "wvc"))
"""Kinds of values in a line below the units, by loggers of Campbell Scientific."""
_SEPARATOR_LINE = re.compile(r'"?sep=(\\t|.)"?', re.IGNORECASE)
_DATE = re.compile(r"(?:\d{4}-\d{2}-\d{2}|\d{1,4}([-./])\d{1,2}\1\d{1,4})[T ]\d{1,2}:\d{2}")
MOMENT = re.compile(rf"{_DATE.pattern}|\d{{1,2}}:\d{{2}}(?!\d)")
"""Beginning of a cell with a date or a time of day."""
_ARROW = re.compile(r"^(\d{1,2}:\d{2}:\d{2}(?:[.,]\d+)?) -> *")
"""Time before a line of Arduino's serial monitor."""
_NAMES_IN_COMMENT = re.compile(r'"columns?"\s*:\s*(\[[^]]*\])')
_RATE_IN_COMMENT = re.compile(
    r"(?:sampl\w*[\W_]*(?:rate|freq\w*)[^\d\n]{0,12}?|(?:rate|freq\w*|fs)\W{1,4}(?=[\d.]+ ?k?hz))"
    r"(\d+(?:\.\d+)?) ?(k?)",
    re.IGNORECASE,
)
NUMERAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
FIRST_CELLS = 2000
"""Number of cells of a column that say if marks in it are of thousands."""
FEWEST_MARKED = 10
"""Minimum number of cells with a mark of thousands, and of those without one."""
THOUSANDS = re.compile(r"[+-]?[0-9]{1,3}([.,' ][0-9]{3})+([.,][0-9]+)?")
"""A number whose thousands are marked; it is refused, because 1.013 may be two numbers."""
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
    comment_rate_hz: float = 0.0
    """Rate (Hz) in comments before the rows; 0 if there is none."""
    start_s: float = 0.0
    rate_hz: float = 0.0
    """Time of the first row since 1970 and rows a second, if the first two lines say them, else 0.

    Each row then gets its time as a first cell.
    """
    intervals: tuple[int, int, int] | None = None
    """Places of the beginning, end and label in rows that are intervals; else None.

    Such a row is read as two: a time with the label, and a time without one.
    """


def stem_of(path: Path) -> str:
    """Return the name of a table without its suffixes."""
    return path.name.removesuffix(".gz").rpartition(".")[0] or path.name


def has_numbers(path: Path) -> bool:
    """Return True if the first line of a text has several cells, and its second one a number.

    The third one may have it if the second has as many cells. Comments do not count.
    """
    try:
        text = _decoded(_head(path), path)[1]
    except (OSError, DataError):
        return False
    lines = [line for line in text.splitlines() if not line.startswith(COMMENTS)][:3]
    separator = _separator(lines[:2])
    cells = [_split(line, separator) for line in lines]
    rows = cells[1:2] if separator == " " or len({*map(len, cells)}) > 1 else cells[1:]
    return len(cells[0]) > 1 and any(map(NUMERAL.fullmatch, chain(*rows))) if cells else False


def first_rows(path: Path, count: int = 20) -> list[list[str]]:
    """Return the cells of the first rows of a text, after its header."""
    form = form_of(path)
    begin = 1 if form.has_header else 0
    return [row for _, row in islice(rows_of(path, form), begin, begin + count)]


def is_number(cell: str) -> bool:
    """Return True if a cell of a text is a number."""
    return bool(NUMERAL.fullmatch(cell) or DECIMAL_COMMA.fullmatch(cell))


def marked_thousands(texts: Sequence[str]) -> str:
    """Return the first of a column's texts if their points or commas mark thousands, else "".

    They do if each is before three digits, and all other numbers are whole and below 1000.
    """
    cells = [cell for text in texts if is_number(cell := text.strip())]
    marked = [cell for cell in cells if THOUSANDS.fullmatch(cell) and not re.match("[+-]?0", cell)]
    whole = [cell for cell in cells if re.fullmatch(r"[+-]?(\d{1,3}|1000)", cell)]
    are_all = len(marked) + len(whole) == len(cells)
    return marked[0] if are_all and min(len(marked), len(whole)) >= FEWEST_MARKED else ""


def form_of(path: Path) -> TextForm:
    """Return the form of a table of text.

    Raises:
        DataError: the file cannot be read, or is no text.
    """
    try:
        status = path.stat()
        return _form(path, status.st_size, status.st_mtime_ns)
    except OSError as error:
        raise DataError(file_error(path, error)) from None
    except EOFError as error:
        raise DataError(f"{path}: {error}; copy the whole file again") from None


@lru_cache(maxsize=1024)
def _form(path: Path, _size: int, _changed_ns: int) -> TextForm:
    encoding, text = _decoded(_head(path), path)
    lines = text.split("\n")
    skipped = 0
    separator = ""
    for line in lines:
        if match := _SEPARATOR_LINE.fullmatch(line.rstrip("\r")):
            separator = "\t" if match[1] == r"\t" else match[1]
        elif line.strip() and not line.startswith(COMMENTS):
            break
        skipped += 1
    comments = lines[:skipped]
    rest = [line.rstrip("\r") for line in lines[skipped : skipped + 50] if line.strip()]
    of_rows = separator or _separator(rest[20:40])
    before = _lines_before_header(rest, of_rows)
    if before:
        separator, rest = of_rows, rest[before:]
        skipped = lines.index(next(s for s in lines[skipped:] if s.rstrip("\r") == rest[0]))
    separator = separator or _separator(rest)
    cells = _split(rest[0], separator) if rest else []
    has_header = _is_header(cells)
    names = (
        _names_of_lines(rest, separator)
        if has_header
        else _names_in_comments(comments, cells, separator) or _names_of_dates(rest, separator)
    )
    ends_rows = separator == "," and all(line.rstrip().endswith(";") for line in rest[:3])
    first, rows = tuple(cells), 0
    if not has_header and (sidecar := _sidecar(path, len(cells))):
        names, start_s, hz = sidecar
        return TextForm(
            encoding, separator, False, skipped, ("", *first), False, names, 0.0, start_s, hz
        )
    if clock := _start_and_rate(rest, separator):
        width = len(cells)
        values = ("x", "y", "z") if width == 3 else tuple(f"c{i}" for i in range(1, width + 1))
        names = "time", *(values if width > 1 else (stem_of(path).lower(),))
        return TextForm(
            encoding, separator, False, skipped + 2, ("", *first), False, names, 0.0, *clock
        )
    if has_header and separator != " " and (intervals := intervals_in(cells)):
        unit = unit_of(cells[intervals[0]])
        header = f"time ({unit})" if unit else "time", "label"
        return TextForm(encoding, separator, True, skipped, header, intervals=intervals)
    if has_header and _have_row_names(rest, separator):
        first = ("", *first)
    if has_header and names:
        first, rows = names, _lines_of_header(rest, separator) - 1
    rates = {
        float(n) * (1000 if k else 1) for n, k in _RATE_IN_COMMENT.findall("\n".join(comments))
    }
    return TextForm(
        encoding,
        separator,
        has_header,
        skipped + rows,
        first if has_header or not names else first[: len(names)],
        ends_rows,
        () if rows else names,
        rates.pop() if len(rates) == 1 else 0.0,
    )


def _sidecar(path: Path, width: int) -> tuple[tuple[str, ...], float, float] | None:
    """Return names, start and rate of a BIDS table from its JSON file; None without such a file."""
    beside = path.with_name(f"{stem_of(path)}.json")
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        facts = json.loads(beside.read_bytes())
        names = [str(name) for name in facts["Columns"]]
        rate_hz, start_s = float(facts["SamplingFrequency"]), float(facts.get("StartTime", 0))
        if len({*names}) == len(names) == width and 0 < rate_hz <= LARGEST_RATE_HZ:
            return ("time", *names), start_s, rate_hz
    return None


def _names_in_comments(
    comments: Sequence[str], cells: Sequence[str], separator: str
) -> tuple[str, ...]:
    """Return the names of columns in comments before rows without a header, () if none has them.

    They are a list called ``column`` in JSON, or the last comment, if it has as many names.
    """
    width = max((i for i, cell in enumerate(cells, 1) if cell), default=0)
    text = "\n".join(comments)
    lists = (json.loads(each) for each in _NAMES_IN_COMMENT.findall(text))
    with contextlib.suppress(ValueError):
        names = tuple(str(name) for each in lists for name in each)
        if len(names) == width > 0:
            return names
    names = tuple(_split(comments[-1].lstrip("#/% "), separator)) if comments else ()
    are_names = len({*names}) == len(names) == width > 1 and not any(map(is_number, names))
    return names if are_names and all(names) and (separator != " " or is_time(names[0])) else ()


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


def intervals_in(header: Sequence[str]) -> tuple[int, int, int] | None:
    """Return the places of beginning, end and label if a table has intervals with a label alone.

    A duration may stand for the end.
    """
    words = [plain(name) for name in header]
    ends = ENDS if {*ENDS} & {*words} else (DURATION,)
    places = [[i for i, w in enumerate(words) if w in names] for names in (BEGINS, ends, LABELS)]
    others = {w for w in words if w not in (*BEGINS, *ends, *LABELS) and not is_number_of_row(w)}
    others -= _BESIDE_INTERVALS
    if others or any(len(each) != 1 for each in places):
        return None
    begin, end, label = (each[0] for each in places)
    return begin, end, label


def _lines_before_header(lines: Sequence[str], separator: str) -> int:
    """Return the number of lines of a program about itself before the header of a table.

    They have fewer cells than the header, which has as many as the rows. Or some have as many, and
    all lines behind the header begin with a number.
    """
    cells = [_split(line, separator) for line in lines]
    counts = [len(row) for row in cells]
    width = counts[-2] if len(counts) > 24 else 0
    if width < 2 or set(counts[24:-1]) != {width} or counts[0] >= width:
        return 0
    at = counts.index(width)
    last = max((i for i, row in enumerate(cells[:-1]) if not is_number(row[0])), default=0)
    if at < last < 24 and any(map(is_number, chain(*cells[at:last]))):
        at = last
    is_table = set(counts[at:-1]) == {width} and max(counts[:at]) <= width
    return at if is_table and _is_header(cells[at]) else 0


def _lines_of_header(lines: Sequence[str], separator: str) -> int:
    """Return the number of lines of text, such as names and units, before the first numbers."""
    for at, line in enumerate(lines[:5]):
        cells = [cell for cell in _split(line, separator) if cell.lower() not in MISSING]
        if any(map(is_number, cells)):
            return at
        if 2 * len(cells) <= len(_split(lines[0], separator)) or any(c[0].isdigit() for c in cells):
            return 0
    return 0


def _have_row_names(lines: Sequence[str], separator: str) -> bool:
    """Return True if each row has one cell more than the header, its number, as R writes it."""
    rows = [_split(line, separator) for line in lines[:20]]
    numbers = [row[0].strip('"') for row in rows[1:] if len(row) == len(rows[0]) + 1 and row[-1]]
    return len(numbers) > 2 and numbers == [str(i) for i in range(1, len(rows))]


def _names_of_lines(lines: Sequence[str], separator: str) -> tuple[str, ...]:
    """Return names with units of columns whose header has several lines; () if it has one."""
    count = _lines_of_header(lines, separator)
    rows = [_split(line, separator) for line in lines[:count]]
    if count < 2 or len({len(row) for row in rows}) > 1:
        return ()
    while not any(row[-1] for row in rows):
        rows = [row[:-1] for row in rows]
    if len(rows) > 2 and {cell.lower() for cell in rows[-1]} <= _KINDS:
        rows.pop()
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
    if len(rows) < 2 or not all(MOMENT.match(row[0]) for row in rows):
        return ()
    columns = list(zip(*rows, strict=True))[1:]
    if not columns or any(is_code(cells) or any(map(is_text, cells)) for cells in columns):
        return ()
    return "t", *(f"c{i}" for i in range(1, len(columns) + 1))


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
    line = _with_cell_of_time(line, separator)
    if separator == " ":
        return line.split()
    cells = next(csv.reader([line.rstrip("\r\n")], delimiter=separator), [])
    return [_cell(cell) for cell in cells]


def _with_cell_of_time(line: str, separator: str) -> str:
    """Return a line of Arduino's serial monitor with its time as a cell; leave others unchanged."""
    has_time = "->" in line[:20] and (separator in " ," or separator in line)
    return _ARROW.sub(rf"\1{separator}", line) if has_time else line


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
        if separator == " " and most > 1 and any(map(_DATE.search, lines[:20])):
            continue  # it is in dates
        if counts and min(counts) > most and (max(counts) - min(counts) <= 1 or separator == ";"):
            best, most = separator, min(counts)
            if separator in ";\t":  # commas may then be decimal
                break
    return best


def _is_header(cells: Sequence[str]) -> bool:
    """Return True if cells are names: fewer than half are numbers, or they count from 0."""
    present = [cell for cell in cells if not cell or cell.lower() not in MISSING]
    numbers = [cell for cell in present if NUMERAL.fullmatch(cell) or DECIMAL_COMMA.fullmatch(cell)]
    counted = [str(i) for i in range(len(cells))]
    return 2 * len(numbers) < len(present) or not cells or numbers == counted


def is_text(cell: str) -> bool:
    """Return True if a cell of a text has a value that is no number."""
    return not is_number(cell) and cell.lower() not in MISSING


def is_code(cells: Sequence[str]) -> bool:
    """Return True if cells are whole numbers that seldom change, as those of classes do."""
    changes = sum(cell != following for cell, following in pairwise(cells))
    whole = all(re.fullmatch(r"-?\d{1,6}", cell) for cell in cells)
    return whole and changes <= max(1, len(cells) / 50)


def rows_of(path: Path, form: TextForm) -> Iterator[tuple[int, list[str]]]:
    """Yield the line of each row and its cells; empty lines are skipped."""
    with _open(path) as raw, io.TextIOWrapper(raw, form.encoding, newline="") as file:
        try:
            for _ in range(form.skipped):
                file.readline()
            if form.separator == " ":
                for line, text in enumerate(file, form.skipped + 1):
                    if cells := _split(text, " "):
                        yield line, cells
                return
            if form.ends_rows:
                for line, text in enumerate(file, form.skipped + 1):
                    for part in text.split(";"):
                        if part.strip(" ,\r\n"):
                            yield line, _split(part, form.separator)
                return
            texts = (_with_cell_of_time(text, form.separator) for text in file)
            reader, count = csv.reader(texts, delimiter=form.separator), 0
            lasts = False
            for row in reader:
                if not row or (len(row) == 1 and not row[0].strip()):
                    continue
                line, cells = form.skipped + reader.line_num, [_cell(cell) for cell in row]
                if form.intervals and count:
                    begin, end, label = ([*cells, "", "", ""][i] for i in form.intervals)
                    if lasts and NUMERAL.fullmatch(begin) and NUMERAL.fullmatch(end):
                        end = repr(float(begin) + float(end))
                    yield line, [begin, label]
                    yield line, [end, ""]
                elif form.rate_hz:
                    yield line, [repr(form.start_s + count / form.rate_hz), *cells]
                else:
                    end_at = form.intervals[1] if form.intervals else None
                    lasts = end_at is not None and plain(cells[end_at]) == DURATION
                    yield line, cells
                count += 1
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path} is not text in {form.encoding}: {error.reason} at byte {error.start}"
            ) from None
        except OSError as error:
            raise DataError(file_error(path, error)) from None
        except (csv.Error, EOFError) as error:
            raise DataError(f"{path}: {error}; write or copy the file again") from None
