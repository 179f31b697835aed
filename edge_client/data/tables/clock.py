"""Times of samples, from numbers or dates to seconds; pure.

Numbers are seconds, milliseconds, microseconds or nanoseconds, since 1970 or since any moment. The
name of the column says which (``time_ms``, ``Time (s)``), or the usual interval between samples.
"""

import contextlib
import re
from collections.abc import Mapping
from datetime import date
from functools import lru_cache, partial

import numpy as np

from edge_client.data.array_store import release
from edge_client.data.tables.parts import read_numbers
from edge_client.data.tables.roles import MISSING, is_time, plain, unit_of
from edge_client.data.tables.text_form import NUMERAL, SINCE_1970
from wire.arrays.tensors import Array

UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
LONG_UNITS = {"min": 60.0, "h": 3600.0, "d": 86_400.0}
"""Seconds of units that no values say, only a name or a user."""
_NAMES = {
    **{"s": "s", "sec": "s", "secs": "s", "second": "s", "seconds": "s"},
    **{"ms": "ms", "msec": "ms", "millis": "ms", "millisecond": "ms", "milliseconds": "ms"},
    **{"us": "us", "usec": "us", "micros": "us", "microsecond": "us", "microseconds": "us"},
    **{"µs": "us", "ns": "ns", "nanos": "ns", "nanosecond": "ns", "nanoseconds": "ns"},
}
_LONG_NAMES = {
    **{"min": "min", "mins": "min", "minute": "min", "minutes": "min", "minuten": "min"},
    **{"h": "h", "hr": "h", "hrs": "h", "hour": "h", "hours": "h", "std": "h", "stunden": "h"},
    **{"d": "d", "day": "d", "days": "d", "tage": "d"},
}
"""Names of units behind a time's, as in ``Time (min)`` and ``time_h``."""
DAY_S = 86_400.0
FIRST = 2**20
"""Number of samples from the beginning of a recording that say the unit and rate of its time."""
_CLOCK = re.compile(r"(\d{1,2}):(\d{2}):(\d{2}(?:[.,:]\d+)?)\s*([AaPp][Mm]?)?$")
_ISO = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d")
_MINUTES = re.compile(r"(\d{1,2}:\d{2})(\s*[AaPp][Mm]?)?$")
_PAIR = re.compile(r"(\d{1,3}):(\d{2}(?:[.,]\d+)?)$")
"""Minutes and seconds, or hours and minutes."""
_DAY = re.compile(r"(\d{1,4})([-./])(\d{1,2})\2(\d{1,4})")
_DATE = re.compile(rf"{_DAY.pattern}[T ,]+(\d.*)")
_FRACTION = re.compile(r"(?<=:\d\d)[.,](\d+)")
_FIRST_CELLS = 2000
"""Number of cells that say if fractions of seconds lack zeros."""
_ZONE = re.compile(r"(Z|[+-]\d{2}:?\d{2})$")


def unit_of_time(name: str, times: Array, unit: str = "") -> str:
    """Return the unit of times: of `unit`, of the column's name, or by its usual interval.

    It is "" if the times count samples, so that nothing is known of the rate.

    Args:
        name: name of the column.
        times: finite numbers (n,) in the order of the samples.
        unit: unit that a user says, or "".
    """
    if unit:
        return unit
    if unit_by_name := named_unit(name):
        return unit_by_name
    steps = np.diff(times)
    steps = steps[steps > 0]
    if not len(steps):
        return ""
    usual, largest = float(np.median(steps)), float(np.abs(times).max())
    if usual == 1 and largest < 1e9 and (np.diff(times) == 1).all():
        return ""
    for name_of_unit, seconds in UNITS.items():
        if name_of_unit == "us" and usual >= 2e6 and (usual % 60e6 or (times % 1e6).any()):
            continue  # nanoseconds since a start look like a date in microseconds
        if SINCE_1970[0] <= largest * seconds < SINCE_1970[1] and usual * seconds < 3600:
            return name_of_unit
    if usual < 2:
        return "s"
    return "ms" if usual < 1e3 else "us" if usual < 1e6 else "ns"


def named_unit(name: str) -> str:
    """Return the unit that the name of a column of times says, or ""."""
    in_brackets, words = unit_of(name).lower(), plain(name).split("_")
    unit = next((_NAMES[word] for word in (in_brackets, *reversed(words)) if word in _NAMES), "")
    is_first = not words[1:] or (is_time(name) and words[0] in _LONG_NAMES)
    is_last = words[0] in ("t", "time", "timestamp", "elapsed", "relative")
    long = words[0] if is_first else words[-1] if is_last else ""
    return unit or _LONG_NAMES.get(in_brackets or long, "")


def days_first(column: Array) -> dict[str, bool]:
    """Return True or False by the mark between the numbers of dates if a day comes before a month.

    The number that is above 12 is the day, or else the one that alone changes. It is empty if the
    dates (n,) leave that open.
    """
    cells = [] if column.dtype.kind != "U" else column.tolist()
    first = next((cell for cell in cells if cell.strip().lower() not in MISSING), "")
    if not _DAY.match(first.strip()):
        return {}
    numbers = {
        (match[2], int(match[1]), int(match[3]))
        for match in (_DAY.match(cell.strip()) for cell in cells)
        if match and len(match[1]) < 4
    }
    for mark, one, two in numbers:
        if one > 12 or two > 12:
            return {mark: one > 12}
    ones, twos = {one for _, one, _ in numbers}, {two for _, _, two in numbers}
    if (len(ones) > 1) != (len(twos) > 1):
        return {numbers.pop()[0]: len(ones) > 1}
    return {}


def read_times(
    column: Array, order: Mapping[str, bool] | None = None, unit: str = ""
) -> tuple[Array, bool, int | None]:
    """Return times (n,), True if they are seconds already, and the first row that is no time.

    Dates become seconds since 1970, times of day seconds since midnight. A missing time is NaN.

    Args:
        column: numbers, texts or moments (n,).
        order: `days_first` of dates that are written alike; None for that of the column. Dates
            of which it says nothing have days first, unless slashes are between.
        unit: unit of the first number of cells such as 03:25, min or h; "" if fractions of seconds
            have to say that it is minutes.
    """
    if column.dtype.kind == "M":
        missing = np.isnat(column)
        seconds: Array = column.astype("datetime64[ns]").astype(np.int64) / 1e9
        seconds[missing] = np.nan
        return seconds, True, None
    numbers, wrong = read_numbers(column)
    if wrong is None:
        return numbers, False, None
    cells = [cell.strip() for cell in column.tolist()]
    first = next((cell for cell in cells if cell.lower() not in MISSING), "")
    if NUMERAL.fullmatch(first):
        return numbers, False, wrong
    if _ISO.match(first) and not any(map(_ZONE.search, (cell[10:] for cell in cells))):
        with contextlib.suppress(ValueError):  # a cell is empty, or no date
            return read_times(np.array(cells, "datetime64[ns]"))
    wrong = None
    seconds = np.full(len(cells), np.nan)
    read = _date if _ISO.match(first) else _time_of_day
    if _PAIR.match(first):
        is_clear = unit in LONG_UNITS or any("." in cell or "," in cell for cell in cells)
        read = partial(_pair, unit_s=LONG_UNITS.get(unit, 60.0)) if is_clear else _time_of_day
    if not _ISO.match(first) and _DATE.match(first):
        read = partial(_date_in_order, order=days_first(column) if order is None else order)
    for i, cell in enumerate(cells):
        if cell.lower() in MISSING:
            continue
        value = read(cell)
        if value is None:
            wrong = i if wrong is None else wrong
        else:
            seconds[i] = value
    return seconds, True, wrong


def fraction_without_zeros(column: Array) -> int | None:
    """Return the first row of a time whose fraction lacks zeros at its beginning, None without any.

    They are lacking if fractions of other lengths grow as whole numbers and fall as fractions, as
    of .80 and .100 for 80 and 100 ms.
    """
    if column.dtype.kind != "U":
        return None
    previous = ("", "")
    for row, cell in enumerate(column[:_FIRST_CELLS].tolist()):
        match = _FRACTION.search(cell)
        here = (cell[: match.start()], match[1]) if match else ("", "")
        is_longer = here[0] and here[0] == previous[0] and len(here[1]) > len(previous[1])
        if is_longer and int(here[1]) > int(previous[1]) and here[1] < previous[1]:
            return row
        previous = here
    return None


def with_dates(times: Array, dates: Array) -> Array:
    """Return texts (n,) of dates with times of day, or `times` if the columns are not of these.

    Either column may have the dates.
    """
    if dates.dtype.kind == "M" and times.dtype.kind == "U":
        dates = dates.astype("datetime64[D]").astype(str)
    if {times.dtype.kind, dates.dtype.kind} != {"U"}:
        return times
    cells = [[cell.strip() for cell in column.tolist()] for column in (dates, times)]
    has_both = [
        all(cell.lower() not in MISSING for cell in row) for row in zip(*cells, strict=True)
    ]
    if True not in has_both:
        return times
    first = has_both.index(True)
    for days, clocks in (cells, cells[::-1]):
        midnight = re.sub(r"[T ]0?0:00(:00)?$", "", days[first])
        if _DAY.fullmatch(midnight) and (
            _CLOCK.match(clocks[first]) or _MINUTES.match(clocks[first])
        ):
            rows = zip(days, clocks, has_both, strict=True)
            return np.array(
                [f"{re.split('[T ]', day)[0]} {at}" if both else "" for day, at, both in rows]
            )
    return times


def in_seconds(times: Array, factor: float, are_dates: bool, are_sampled: bool = True) -> None:
    """Convert times (n,) to seconds in place, continued after midnight, and spread if sampled."""
    begin, end, shift_s = 0, 0, 0.0
    while begin < len(times):
        end = min(begin + FIRST, len(times))
        part = times[begin:end] * factor
        if end < len(times) and len(changes := np.flatnonzero(np.diff(part) != 0)):
            part = part[: changes[-1] + 1]  # samples of one time stay together
        end = begin + len(part)
        following = times[end] * factor if end < len(times) else part[-1]
        if are_dates:
            whole = continued(np.append(part, following))
            part = whole[:-1] + shift_s
            shift_s += float(whole[-1] - following)
        times[begin:end] = spread(part) if are_sampled else part
        release(times)
        begin = end


def changes_of_label(times: Array) -> Array:
    """Return the rows (n,) at which a label begins or ends, in order of time.

    An end is none at which, or before which, another label has begun.

    Args:
        times: beginning and end of each interval in turn (2 n,), the end NaN if it has none.
    """
    order = np.argsort(times[::2], kind="stable")
    begins, ends = times[::2][order], times[1::2][order]
    rows = np.stack([2 * order, 2 * order + 1], axis=1).reshape(-1)
    is_change = np.full(len(rows), True)
    is_change[1::2] = ends < np.append(begins[1:], np.inf)
    return np.asarray(rows[is_change])


def spread(times: Array) -> Array:
    """Return times (n,) in which samples of the same time are spread up to the next time.

    Programs round times to a second, or read sensors in batches.
    """
    changes = np.flatnonzero(np.diff(times) != 0) + 1
    if len(changes) == len(times) - 1 or not len(changes):
        return times
    begins = np.concatenate([[0], changes])
    sizes = np.diff(np.append(begins, len(times)))
    if np.median(sizes) < 2:  # a few repeated times
        return times
    ends = np.append(times[changes], times[-1] + np.median(np.diff(times[begins])))
    steps = (ends - times[begins]) / sizes
    usual = np.median(steps)
    steps = np.where((steps > 0) & (steps < 3 * usual), steps, usual)
    place = np.arange(len(times)) - np.repeat(begins, sizes)
    return np.asarray(times + place * np.repeat(steps, sizes))


def continued(times: Array) -> Array:
    """Return times of day that go on after midnight or a full hour; leave others unchanged."""
    if not len(times) or (largest := np.nanmax(times)) >= DAY_S:
        return times
    period_s = DAY_S if largest >= 3600 else 3600.0
    falls = np.diff(times) < -period_s / 2
    return times + period_s * np.concatenate([[0], np.cumsum(falls)])


def rate_of(times: Array) -> float:
    """Return the samples per second (three digits) of times in seconds, 0 if they do not say."""
    steps = np.diff(times)
    steps = steps[steps > 0]
    if not len(steps):
        return 0.0
    usual = np.median(steps)
    near = steps[np.abs(steps - usual) <= usual / 2]  # their mean evens rounded times out
    return float(f"{1 / near.mean():.3g}")


def _date(text: str) -> float | None:
    zone = _ZONE.search(text[10:])
    shift_s = 0.0
    if zone:
        text = text[: -len(zone[0])]
        if zone[0] != "Z":
            digits = zone[0][1:].replace(":", "")
            shift_s = (int(digits[:2]) * 3600.0 + int(digits[2:]) * 60.0) * (
                -1 if zone[0][0] == "-" else 1
            )
    try:
        moment = np.datetime64(text.strip().replace(",", "."), "ns")
    except ValueError:
        return None
    return int(moment.astype(np.int64)) / 1e9 - shift_s


@lru_cache(maxsize=64)
def _days(year: int, month: int, day: int) -> int | None:
    """Return the days since 1970 of a date, None if there is no such day."""
    try:
        return (
            date(year + 2000 * (year < 100), month, day).toordinal() - date(1970, 1, 1).toordinal()
        )
    except ValueError:
        return None


def _date_in_order(text: str, order: Mapping[str, bool]) -> float | None:
    """Return seconds since 1970 of a date, None if it is none. `order`: see `days_first`."""
    match = _DATE.fullmatch(text)
    if match is None:
        return None
    year, month, day = (int(match[i]) for i in (1, 3, 4))
    if len(match[1]) < 4:
        day, month, year = year, month, day
        if not order.get(match[2], match[2] != "/"):
            day, month = month, day
    days = _days(year, month, day)
    at_s = _time_of_day(_MINUTES.sub(r"\1:00\2", match[5]))
    return None if days is None or at_s is None else days * DAY_S + at_s


def _pair(text: str, unit_s: float) -> float | None:
    match = _PAIR.fullmatch(text)
    return unit_s * (int(match[1]) + float(match[2].replace(",", ".")) / 60) if match else None


def _time_of_day(text: str) -> float | None:
    match = _CLOCK.search(text)
    if match is None:
        return None
    hour = int(match[1])
    if match[4]:
        hour = hour % 12 + 12 * match[4].lower().startswith("p")
    second = re.sub("[,:]", ".", match[3])
    return hour * 3600.0 + int(match[2]) * 60.0 + float(second)
