"""The geometry of charts that templates draw as SVG. Pure; colours are the style sheet's."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

WIDTH, HEIGHT = 480, 220
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 12, 26


class Tick(NamedTuple):
    """A mark of an axis, at a coordinate."""

    at: float
    text: str


class Curve(NamedTuple):
    """A line of a chart."""

    label: str
    kind: str
    """For the style sheet."""
    path: str
    """As an SVG path has it."""
    points: list[tuple[float, float]]
    last: str
    """Its last value as text."""


class LineChart(NamedTuple):
    """Curves over rounds."""

    curves: list[Curve]
    x: list[Tick]
    y: list[Tick]


class Bar(NamedTuple):
    """A part of a column."""

    x: float
    y: float
    width: float
    height: float
    group: int
    text: str


class BarChart(NamedTuple):
    """Columns over rounds, each of parts on top of each other."""

    bars: list[Bar]
    x: list[Tick]
    y: list[Tick]


def line_chart(
    rounds: Sequence[int],
    curves: Mapping[tuple[str, str], Sequence[float | None]],
    most: float,
    percent: bool,
) -> LineChart:
    """Curves by label and kind, with a value or None for each round; values are from 0 to
    `most`."""
    first, last = rounds[0], max(rounds[-1], rounds[0] + 1)

    def place(number: int, value: float) -> tuple[float, float]:
        share = (number - first) / (last - first)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1), round(_y(value, most), 1)

    drawn = []
    for (label, kind), values in curves.items():
        known = [
            (number, value)
            for number, value in zip(rounds, values, strict=True)
            if value is not None
        ]
        points = [place(number, value) for number, value in known]
        path = "".join(f"{'L' if i else 'M'}{x} {y}" for i, (x, y) in enumerate(points))
        drawn.append(
            Curve(
                label,
                kind,
                path,
                points if len(points) < 40 else [],
                _text(known[-1][1], percent) if known else "none",
            )
        )
    ticks = [Tick(place(number, 0)[0], str(number)) for number in _some(rounds, 8)]
    return LineChart(
        drawn,
        ticks,
        [Tick(round(_y(value, most), 1), _text(value, percent)) for value in _steps(most)],
    )


def xy_chart(
    curves: Mapping[tuple[str, str], Sequence[tuple[float, float | None]]],
    x_text: Callable[[float], str],
) -> LineChart | None:
    """Shares of one over any numbers from 0 on, by label and kind; their axis begins below the
    least. `x_text`: what stands at a mark, empty where there is none. None: nothing is known."""
    known = {key: [(x, y) for x, y in points if y is not None] for key, points in curves.items()}
    values = [y for points in known.values() for _, y in points]
    if not values:
        return None
    least = max(0.0, math.floor(10 * min(values) - 0.5) / 10)
    end = max((x for points in known.values() for x, _ in points), default=0) or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        at = LEFT + x / end * (WIDTH - LEFT - RIGHT)
        return round(at, 1), round(_y(y - least, 1 - least), 1)

    drawn = []
    for (label, kind), points in known.items():
        places = [place(x, y) for x, y in points]
        path = "".join(f"{'L' if i else 'M'}{x} {y}" for i, (x, y) in enumerate(places))
        drawn.append(
            Curve(
                label,
                kind,
                path,
                places if len(places) < 40 else [],
                _text(points[-1][1], True) if points else "none",
            )
        )
    y = [
        Tick(round(_y(step, 1 - least), 1), _text(least + step, True)) for step in _steps(1 - least)
    ]
    return LineChart(
        drawn, [Tick(place(x, least)[0], x_text(x)) for x in _steps(end) if x and x_text(x)], y
    )


def bar_chart(columns: Mapping[int, Mapping[int, int]]) -> BarChart:
    """By round, how many devices each group has."""
    most = max((sum(sizes.values()) for sizes in columns.values()), default=1) or 1
    slot = (WIDTH - LEFT - RIGHT) / max(1, len(columns))
    width, bars, middles = min(48.0, slot * 0.8), [], {}
    for i, (number, sizes) in enumerate(columns.items()):
        x, below = LEFT + i * slot + (slot - width) / 2, 0
        middles[number] = round(x + width / 2, 1)
        for group, count in sizes.items():
            top = _y(below + count, most)
            text = f"round {number}, group {group}: {count} devices"
            bars.append(
                Bar(
                    round(x, 1),
                    round(top, 1),
                    round(width, 1),
                    round(_y(below, most) - top, 1),
                    group,
                    text,
                )
            )
            below += count
    steps = [
        Tick(round(_y(value, most), 1), f"{value:,.0f}")
        for value in _steps(most)
        if value == int(value)
    ]
    return BarChart(
        bars, [Tick(middles[number], str(number)) for number in _some(list(columns), 12)], steps
    )


def _y(value: float, most: float) -> float:
    return TOP + (1 - min(1.0, max(0.0, value / most))) * (HEIGHT - TOP - BOTTOM)


def _steps(most: float) -> list[float]:
    """Round values from 0 to at most `most`, three to six of them."""
    raw = most / 4
    scale = 10 ** math.floor(math.log10(raw))
    step = next(scale * nice for nice in (1, 2, 2.5, 5, 10) if scale * nice >= raw * 0.999)
    return [step * i for i in range(int(most / step * 1.001) + 1)]


def _some(numbers: Sequence[int], most: int) -> list[int]:
    return list(numbers[:: max(1, -(-len(numbers) // most))])


def _text(value: float, percent: bool) -> str:
    return f"{100 * value:.0f} %" if percent else f"{value:.3g}"
