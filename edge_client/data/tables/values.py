"""Values of a recording's columns, from which their roles follow if no name says these; pure.

By its values a column is no channel if it tells when or by whom a sample was taken, or
which class it has, in place of what a sensor measured:

- it only grows or only falls, but for a few steps (counters, clocks);
- it is constant in each recording, and differs between recordings, or is alike on several devices;
- each of its few values occurs with one class alone;
- its few values last for long, as a person's number does in a table of several persons.

Fewer than `FEWEST` samples say nothing of this.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from edge_client.data.tables.roles import MISSING
from wire.arrays.tensors import Array

FEWEST = 256
"""Minimum number of samples from which the values of a column say its role."""
ONE_WAY = 0.98
"""Share of a column's steps in one direction from which it counts as a counter."""
SHORTEST = 128
"""Usual number of samples for which each value of a column lasts, from which it may be a person's
or a class's."""
MOST_CELLS = 4096
"""Maximum number of persons, or classes, whom a column may name."""
ONE_VALUE = "it has one value in all recordings"
"""Reason of a column that says nothing."""
CYCLES = frozenset(2.0**bits for bits in range(4, 33))
"""Numbers of steps after which a counter may begin anew."""
_CODE = re.compile(r"9{3,}(\.9+)?|1e\+?\d\d|32768|32767|65535|2147483648|2147483647")
"""Digits of numbers that often mean a missing value."""
MOST_VALUES = 64
"""Maximum number of values of a column that may each stand for a class."""


class Edge(NamedTuple):
    """Smallest value of a column, its number of samples, and the next value."""

    value: float = np.inf
    samples: int = 0
    following: float = np.inf

    def merge(self, other: "Edge") -> "Edge":
        """Return the edge of the values of both edges."""
        low, high = sorted((self, other))
        if low.value == high.value:
            return Edge(low.value, low.samples + high.samples, min(low.following, high.following))
        return low._replace(following=min(low.following, high.value))

    @staticmethod
    def of(values: Array) -> "Edge":
        """Return the edge of values (n,)."""
        low = float(values.min())
        others = values[values != low]
        following = float(others.min()) if len(others) else np.inf
        return Edge(low, len(values) - len(others), following)


NO_EDGE = Edge()


@dataclass
class ColumnFacts:
    """Counts of a column's values in the recordings of one device."""

    count: int = 0
    """Number of samples."""
    values: int = 0
    """Number of samples with a number."""
    up: int = 0
    down: int = 0
    wrong: tuple[str, str] | None = None
    """Place and text of the first cell that is no number."""
    constants: set[float] = field(default_factory=set)
    """Value of each recording in which the column is constant."""
    varies: bool = False
    """True if the column is not constant in some recording."""
    classes: dict[float, int] | None = field(default_factory=dict)
    """Class of each value; None if a value has several classes, or there are too many values."""
    labelled: int = 0
    """Number of samples with a number and a class."""
    ranges: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Smallest and largest value of each class."""
    cells: set[str] | None = field(default_factory=set)
    """Values as text; None if they change too often to name a person or a class."""
    cells_here: set[str] = field(default_factory=set)
    """Values of the recording that is read."""
    by_recording: int = 0
    """Sum of the numbers of values of each recording."""
    levels: set[float] | None = field(default_factory=set)
    """Different values; None if there are more than `MOST_VALUES`."""
    jumps: set[float] | None = field(default_factory=set)
    """Different steps between neighbouring values, without 0; None if there are more than two."""
    same_time: int = 0
    """Number of rows with the time of the row before."""
    same_cell: int = 0
    """Number of rows with the time and the value of the row before."""
    edges: tuple[Edge, Edge] = (NO_EDGE, NO_EDGE)
    """Edges of the values and of the negated values."""
    stretches: int = 0
    """Number of stretches of one value, and the samples in them."""
    in_stretches: int = 0

    def add(self, numbers: Array, classes: Array | None, previous: float) -> None:
        """Count values (n,), NaN if missing, and the classes (n,) of their samples, -1 if none."""
        self.count += len(numbers)
        has_value = np.isfinite(numbers)
        whole = numbers[has_value]
        self.values += len(whole)
        steps = np.diff(whole if np.isnan(previous) else np.concatenate([[previous], whole]))
        changes = steps[steps != 0]
        self.levels, self.jumps = (
            _union(self.levels, whole, MOST_VALUES),
            _union(self.jumps, changes, 2),
        )
        if len(whole):
            smallest, largest = self.edges
            self.edges = smallest.merge(Edge.of(whole)), largest.merge(Edge.of(-whole))
        self.up, self.down = self.up + int((steps > 0).sum()), self.down + int((steps < 0).sum())
        if classes is None:
            return
        here = classes[has_value]
        self.labelled += int((here >= 0).sum())
        for number in np.unique(here[here >= 0]).tolist():
            of_class = whole[here == number]
            low, high = self.ranges.get(number, (np.inf, -np.inf))
            self.ranges[number] = (
                min(low, float(of_class.min())),
                max(high, float(of_class.max())),
            )
            if self.classes is None:
                continue
            for value in np.unique(of_class)[: MOST_VALUES + 1].tolist():
                if self.classes.setdefault(value, number) != number:
                    self.classes = None
                    break
            if self.classes is not None and len(self.classes) > MOST_VALUES:
                self.classes = None

    def add_stretches(self, column: Array) -> None:
        """Count the stretches of one value in consecutive numbers or texts (n,)."""
        if self.cells is None or not len(column):
            return
        begins = [0, *(np.flatnonzero(column[1:] != column[:-1]) + 1).tolist()]
        if len(begins) * SHORTEST > 8 * (len(column) + SHORTEST):
            self.cells = None
            return
        for begin, end in pairwise([*begins, len(column)]):
            cell = column[begin]
            text = f"{cell:.10g}" if column.dtype.kind == "f" else str(cell).strip()
            if text.lower() not in MISSING:
                self.cells_here.add(text)
                self.stretches += 1
                self.in_stretches += end - begin

    def end(self, low: float, high: float) -> None:
        """Note the smallest and largest value of a whole recording."""
        self.by_recording += len(self.cells_here)
        if self.cells is not None:
            self.cells |= self.cells_here
            self.cells = self.cells if len(self.cells) <= MOST_CELLS else None
        self.cells_here = set()
        if low == high:
            self.constants.add(low)
        elif low < high:
            self.varies = True


def _union(values: set[float] | None, more: Array, most: int) -> set[float] | None:
    """Return the union of values and an array (n,); None if it has more than `most`."""
    for part in (more[: 4 * MOST_VALUES], more):
        values = None if values is None else values | set(np.unique(part).tolist())
        values = None if values is None or len(values) > most else values
    return values


def is_cyclic_counter(devices: Sequence[ColumnFacts]) -> bool:
    """Return True if a column counts up to a power of two, and begins anew."""
    if any(facts.jumps is None for facts in devices):
        return False
    jumps = sorted(set[float]().union(*(facts.jumps or () for facts in devices)))
    return len(jumps) == 2 and jumps[1] > 0 and 1 - jumps[0] / jumps[1] in CYCLES


def tells_the_sensor(devices: Sequence[ColumnFacts]) -> bool:
    """Return True if a column seems to number the sensors whose rows alternate in a table.

    It has whole numbers. Many rows have the time of the row before, and none its number.
    """
    same_time = sum(facts.same_time for facts in devices)
    few = all(facts.levels is not None and len(facts.levels) != 1 for facts in devices)
    whole = all(not value % 1 for facts in devices for value in facts.levels or ())
    return (
        few
        and whole
        and same_time >= sum(facts.count for facts in devices) / 3
        and not any(facts.same_cell for facts in devices)
    )


def missing_codes(devices: Sequence[ColumnFacts]) -> list[float]:
    """Return values that may mean a missing value.

    Such a value is far below or far above all others. A usual code such as -999 may be nearer.
    """
    edges = [Edge(), Edge()]
    for facts in devices:
        edges = [a.merge(b) for a, b in zip(edges, facts.edges, strict=True)]
    if sum(facts.values for facts in devices) < FEWEST:
        return []
    low, high = edges
    codes = list[float]()
    for sign, edge, other in ((1, low, high), (-1, high, low)):
        top = -(other.following if _is_code(other.value) else other.value)
        width, gap = top - edge.following, edge.following - edge.value
        is_far = 2 * gap > width if _is_code(edge.value) else edge.samples > 2 and gap > 10 * width
        if width > 0 and is_far:
            codes.append(sign * edge.value)
    return codes


def _is_code(value: float) -> bool:
    """Return True if a number is a usual code for a missing value."""
    return _CODE.fullmatch(f"{abs(value):.15g}") is not None


def constant(devices: Sequence[ColumnFacts]) -> set[float]:
    """Return the values of a column that is constant in each recording, none if it varies."""
    constants = set[float]().union(*(facts.constants for facts in devices))
    return set() if any(facts.varies for facts in devices) else constants


def reason_by_values(devices: Sequence[ColumnFacts]) -> str:
    """Return the reason why a column is no channel by its values on all devices, or "".

    One value everywhere is a reason on several devices alone: a sensor of one may stand still.
    """
    values = sum(facts.values for facts in devices)
    if not values:
        return "no numbers" if any(facts.wrong for facts in devices) else "empty"
    if values < FEWEST:
        return ""
    up, down = sum(facts.up for facts in devices), sum(facts.down for facts in devices)
    if up + down >= FEWEST / 8 and max(up, down) >= ONE_WAY * (up + down):
        way = "grows" if up > down else "falls"
        what = f"it only {way}" if not min(up, down) else f"it {way} and then begins anew"
        return f"{what}, as a clock or a counter does"
    if is_cyclic_counter(devices):
        return "it grows and then begins anew, as a counter does"
    if one := constant(devices):
        return (
            "it is constant in each recording" if len(one) > 1 else ONE_VALUE * (len(devices) > 1)
        )
    if sum(facts.labelled for facts in devices) < FEWEST:
        return ""
    maps = [facts.classes for facts in devices if len(facts.ranges) > 1]
    if maps and all(classes is not None for classes in maps):
        return "each of its values occurs with one class alone"
    return ""


def lasting(devices: Sequence[ColumnFacts]) -> set[str]:
    """Return the values of a column, as text, if they last as a person's or a class's do.

    There are none if values change more often, if there is one alone, or one for each device.
    """
    each = [facts.cells for facts in devices if facts.stretches]
    if any(facts.cells is None for facts in devices) or not each:
        return set()
    values = set[str]().union(*(cells for cells in each if cells))
    count = sum(facts.in_stretches for facts in devices)
    if count < max(FEWEST, SHORTEST * sum(facts.stretches for facts in devices)):
        return set()
    one_each = sum(len(cells) for cells in each if cells) == len(each) == len(values)
    return set() if one_each or len(values) < 2 else values


def come_back(devices: Sequence[ColumnFacts]) -> bool:
    """Return True if values come back within recordings, as those of a slow sensor or classes."""
    return sum(f.stretches for f in devices) > 2 * sum(f.by_recording for f in devices)


def tells_the_class(devices: Sequence[ColumnFacts]) -> bool:
    """Return True if a single value of a column says the class on all devices with classes."""
    several = [sorted(facts.ranges.values()) for facts in devices if len(facts.ranges) > 1]
    labelled = sum(facts.labelled for facts in devices)
    return (
        bool(several)
        and labelled >= FEWEST
        and all(all(high < low for (_, high), (low, _) in pairwise(ranges)) for ranges in several)
    )
