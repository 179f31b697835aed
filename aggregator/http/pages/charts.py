"""Geometry of charts that templates draw as SVG. Pure; the style sheet has the colours."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from aggregator.view.summary import group_number

WIDTH, HEIGHT = 480, 220
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 12, 26
MOST_POINTS = 40
"""Number of points from which on a line is drawn without dots."""
MOST_COLUMNS = 40
"""Maximum number of columns; the latest rounds are shown."""

Line = Sequence[tuple[float, float | None]]
"""Points of a line; None if a value is unknown."""


class ChartLine(NamedTuple):
    """Line of a chart."""

    label: str
    kind: str
    """Classes of the style sheet."""
    path: str
    """The line as an SVG path."""
    points: list[tuple[float, float]]
    last: str
    """Last value as text."""


class Bar(NamedTuple):
    """Part of a column."""

    x: float
    y: float
    width: float
    height: float
    group: int
    text: str


class Chart(NamedTuple):
    """Lines, or columns of stacked parts, with the marks of both axes."""

    curves: list[ChartLine]
    bars: list[Bar]
    x: list[tuple[float, str]]
    """Coordinate and text of each mark."""
    y: list[tuple[float, str]]


def whole(value: float) -> str:
    """Return a whole number as text, and an empty text for any other number."""
    return f"{value:.0f}" if value == int(value) else ""


def per_cent(share: float) -> str:
    """Return a fraction as whole per cent."""
    return f"{100 * share:.0f} %"


def line_chart(
    curves: Mapping[tuple[str, str], Line],
    begin: float = 0.0,
    low: float | None = None,
    high: float = 1.0,
    x_text: Callable[[float], str] = whole,
    y_text: Callable[[float], str] = per_cent,
) -> Chart | None:
    """Return a chart of lines by label and kind; None if no value is known.

    The axes begin at `begin` and at `low`, which is by default a tenth or less below the least
    value.
    """
    lines = {key: [(x, y) for x, y in line if y is not None] for key, line in curves.items()}
    points = [point for line in lines.values() for point in line]
    if not points:
        return None
    if low is None:
        low = max(0.0, math.floor(10 * min(y for _, y in points) - 0.5) / 10)
    end = max(x for line in curves.values() for x, _ in line)
    end = end if end > begin else begin + 1

    def across(x: float) -> float:
        return round(LEFT + (x - begin) / (end - begin) * (WIDTH - LEFT - RIGHT), 1)

    drawn = []
    for (label, kind), line in lines.items():
        places = [(across(x), _up(y - low, high - low)) for x, y in line]
        path = "".join(f"{'L' if i else 'M'}{x} {y}" for i, (x, y) in enumerate(places))
        dots = places if len(places) < MOST_POINTS else []
        drawn.append(ChartLine(label, kind, path, dots, y_text(line[-1][1]) if line else "none"))
    return Chart(
        drawn,
        [],
        [(across(x), x_text(x)) for x in _steps(begin, end, 6) if x and x_text(x)],
        [(_up(y - low, high - low), y_text(y)) for y in _steps(low, high, 4)],
    )


def bar_chart(columns: Mapping[int, Mapping[int, int]]) -> Chart | None:
    """Return a chart with a column of group sizes for each round; None without rounds.

    `columns`: by round, the number of devices in each group.
    """
    latest = dict(list(columns.items())[-MOST_COLUMNS:])
    if not latest:
        return None
    most = max(sum(sizes.values()) for sizes in latest.values()) or 1
    slot = (WIDTH - LEFT - RIGHT) / len(latest)
    width, bars, middles = round(min(48.0, slot * 0.8), 1), [], []
    for i, (number, sizes) in enumerate(latest.items()):
        x, below = LEFT + i * slot + (slot - width) / 2, 0
        middles.append((round(x + width / 2, 1), str(number)))
        for group, count in sizes.items():
            top, bottom = _up(below + count, most), _up(below, most)
            text = f"round {number}, group {group}: {count} devices"
            bars.append(Bar(round(x, 1), top, width, round(bottom - top, 1), group, text))
            below += count
    steps = [y for y in _steps(0, most, 4) if y == int(y)]
    return Chart(
        [],
        bars,
        middles[:: -(-len(middles) // 12)],
        [(_up(y, most), f"{y:,.0f}") for y in steps],
    )


def sizes_of(groups: Mapping[str, str]) -> dict[int, int]:
    """Return the number of devices in each group, from the key of each device's model."""
    numbers = [g for g in map(group_number, groups.values()) if g is not None]
    return {g: numbers.count(g) for g in sorted(set(numbers))}


def _up(value: float, most: float) -> float:
    """Return the vertical coordinate of a value."""
    share = min(1.0, max(0.0, value / most))
    return round(TOP + (1 - share) * (HEIGHT - TOP - BOTTOM), 1)


def _steps(low: float, high: float, count: int) -> list[float]:
    """Return at most `count` + 1 round values from `low` to `high`."""
    raw = (high - low) / count
    scale = 10 ** math.floor(math.log10(raw))
    step = next(scale * nice for nice in (1, 2, 2.5, 5, 10) if scale * nice >= raw * 0.999)
    first, last = math.ceil(low / step * 0.999), int(high / step * 1.001)
    return [step * i for i in range(first, last + 1)]
