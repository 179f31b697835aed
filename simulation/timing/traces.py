"""Recorded devices and their available hours, read from CSV files with a header line.

Devices, one a line: ``device,examples_per_s,down_bytes_per_s,up_bytes_per_s`` and optionally
``latency_s`` (default 0), ``dropout`` (0), ``battery_examples`` (empty: mains), ``charge_from_h``
(hour of the virtual day, 0) and ``charge_hours`` (24).

Hours, one interval a line: ``device,start_s,end_s``, the end excluded. They repeat after the number
of whole days that they span.
"""

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from simulation.timing.availability import DAY_S, HOUR_S, Always, Availability, Intervals
from wire.arrays.tensors import Array
from wire.errors import DataError


@dataclass(frozen=True)
class Column:
    """A column of numbers: the allowed range, and the default for an empty or missing value.

    None as the default makes the column required.
    """

    low: float
    high: float = math.inf
    default: float | None = None
    above: bool = False
    """True if `low` itself is too small."""

    def read(self, text: str) -> float:
        """Return the number that `text` states.

        Raises:
            ValueError: the text is not a number in the range; the message has the range.
        """
        if not text.strip() and self.default is not None:
            return self.default
        expected = f"a number {'above' if self.above else 'from'} {self.low:g}" + (
            f" to {self.high:g}" if self.high < math.inf else ""
        )
        try:
            value = float(text)
        except ValueError:
            raise ValueError(expected) from None
        if (
            not math.isfinite(value)
            or not self.low <= value <= self.high
            or (self.above and value == self.low)
        ):
            raise ValueError(expected)
        return value


DEVICE_COLUMNS = {
    "examples_per_s": Column(0, above=True),
    "down_bytes_per_s": Column(0, above=True),
    "up_bytes_per_s": Column(0, above=True),
    "latency_s": Column(0, default=0.0),
    "dropout": Column(0, 1, default=0.0),
    "battery_examples": Column(0, default=math.inf, above=True),
    "charge_from_h": Column(0, 24, default=0.0),
    "charge_hours": Column(0, 24, default=24.0),
}
INTERVAL_COLUMNS = {"start_s": Column(0), "end_s": Column(0, above=True)}


def read_trace(
    devices: Path, intervals: Path | None, count: int
) -> tuple[dict[str, Array], Availability]:
    """Return the columns of `timing.profiles.Profiles` and the availability from a trace.

    Both are for the first `count` devices. Without a file of intervals, devices are always
    available.

    Raises:
        DataError: a file cannot be read, a line is invalid, or there are fewer than `count`
        devices.
    """
    lines: dict[str, int] = {}
    rows: list[tuple[float, ...]] = []
    for line, name, numbers in _rows(devices, DEVICE_COLUMNS):
        if name in lines:
            raise DataError(
                f"{devices}, line {line}: device {name!r} is already in line {lines[name]}"
            )
        lines[name] = line
        rows.append(numbers)
    if len(rows) < count:
        raise DataError(
            f"{devices} must have at least the fleet's {count} devices, got {len(rows)}"
        )
    columns = dict(
        zip(DEVICE_COLUMNS, np.array(rows[:count]).reshape(count, -1).T.copy(), strict=True)
    )
    columns["charge_from_s"] = HOUR_S * columns.pop("charge_from_h")
    columns["charge_s"] = HOUR_S * columns.pop("charge_hours")
    names = {name: number for number, name in enumerate(lines)}
    return columns, Always() if intervals is None else _read_intervals(
        intervals, devices, names, count
    )


def _read_intervals(path: Path, devices: Path, names: Mapping[str, int], count: int) -> Intervals:
    intervals: list[tuple[int, float, float, int]] = []
    for line, name, (start_s, end_s) in _rows(path, INTERVAL_COLUMNS):
        if name not in names:
            raise DataError(f"{path}, line {line}: device {name!r} is not in {devices}")
        if not start_s < end_s:
            raise DataError(
                f"{path}, line {line}: end_s must be above start_s, got {end_s:g} and {start_s:g}"
            )
        if names[name] < count:
            intervals.append((names[name], start_s, end_s, line))
    intervals.sort()
    for before, after in pairwise(intervals):
        if before[0] == after[0] and after[1] < before[2]:
            first, second = sorted((before, after), key=lambda interval: interval[3])
            raise DataError(
                f"{path}, line {second[3]}: {second[1]:g} to {second[2]:g} s overlaps with line "
                f"{first[3]} of the same device, {first[1]:g} to {first[2]:g} s"
            )
    if not intervals:
        raise DataError(
            f"{path}: no device of the fleet is ever available. Add a line device,start_s,end_s."
        )
    device, starts_s, ends_s = (np.array([interval[i] for interval in intervals]) for i in range(3))
    places: Array = np.searchsorted(device, np.arange(count + 1))
    return Intervals(places, starts_s, ends_s, DAY_S * math.ceil(ends_s.max() / DAY_S))


def _rows(
    path: Path, columns: Mapping[str, Column]
) -> Iterator[tuple[int, str, tuple[float, ...]]]:
    """Yield line number, device and numbers of each line."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.reader(file)
            header = [name.strip() for name in next(reader, [])]
            _check_header(path, header, columns)
            for fields in reader:
                if not fields:
                    continue
                if len(fields) != len(header):
                    raise DataError(
                        f"{path}, line {reader.line_num} must have {len(header)} fields, "
                        f"{','.join(header)}, got {len(fields)}"
                    )
                row = dict(zip(header, fields, strict=True))
                if not row["device"].strip():
                    raise DataError(f"{path}, line {reader.line_num}: the device's name is missing")
                yield (
                    reader.line_num,
                    row["device"].strip(),
                    tuple(
                        _number(path, reader.line_num, row, key, columns[key]) for key in columns
                    ),
                )
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as CSV: {error}") from None


def _check_header(path: Path, header: list[str], columns: Mapping[str, Column]) -> None:
    required = ["device", *(name for name, column in columns.items() if column.default is None)]
    optional = [name for name in columns if name not in required]
    extra = [name for name in header if name not in required and name not in optional]
    if set(required) - set(header) or extra or len(set(header)) < len(header):
        also = f" and optionally {', '.join(optional)}" if optional else ""
        raise DataError(
            f"{path}, line 1: columns must be {', '.join(required)}{also}, got "
            f"{', '.join(header) or 'none'}"
        )


def _number(path: Path, line: int, row: Mapping[str, str], key: str, column: Column) -> float:
    try:
        return column.read(row.get(key, ""))
    except ValueError as error:
        text = row.get(key, "")
        raise DataError(f"{path}, line {line}: {key} must be {error}, got {text!r}") from None
