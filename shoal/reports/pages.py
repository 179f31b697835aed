"""Charts and coloured tables that several reports share."""

from collections.abc import Mapping, Sequence

from aggregator.http.pages.charts import Chart, line_chart
from aggregator.http.pages.words import bytes_text
from aggregator.view.summary import MessageBytes, Spread
from shoal.asked import OptionValue
from wire.arrays.tensors import Array

SHADES = 10
"""Number of colour levels of a cell above the lowest."""

Line = Sequence[tuple[float, float, float | None]]
"""Points after each round: its number, the bytes sent so far, and an accuracy (None if unknown)."""
Shade = tuple[str, int]
"""Text of a coloured cell, and the level of its colour from 0 to `SHADES`."""


def line_of(spreads: Sequence[Spread], value: str, sent: Sequence[MessageBytes] = ()) -> Line:
    """Return a field of the accuracies after each round as a line.

    The bytes sent so far are 0 unless they are known for every round.
    """
    totals = [float(traffic.up + traffic.down) for traffic in sent]
    if len(totals) != len(spreads):
        totals = [0.0] * len(spreads)
    return [(i + 1, totals[i], getattr(spread, value)) for i, spread in enumerate(spreads)]


def chart_pair(lines: Mapping[tuple[str, str], Line]) -> tuple[Chart | None, Chart | None]:
    """Draw the same accuracies over rounds, and over the bytes sent so far.

    The second chart leaves out lines without bytes.
    """
    rounds = {key: [(n, a) for n, _, a in line] for key, line in lines.items()}
    sent = {
        key: [(b, a) for _, b, a in line]
        for key, line in lines.items()
        if line and all(b > 0 for _, b, _ in line)
    }
    return line_chart(rounds), line_chart(sent, x_text=bytes_text)


def kind_of(number: int) -> str:
    """Return the style of a chart's line: a colour, with dashes after the first eight lines."""
    return f"g{number % 8}" + (" dashed" if number // 8 % 2 else "")


def shades(counts: Array, by_row: bool) -> list[list[Shade]]:
    """Colour a table (rows, columns) of counts.

    A count's colour is its share of its row, or of the largest count of all.
    """
    most = counts.sum(1, keepdims=True).clip(1) if by_row else max(1, counts.max(initial=1))
    levels = (SHADES * counts / most).round().astype(int)
    return [
        [(f"{c:,}", int(level)) for c, level in zip(*row, strict=True)]
        for row in zip(counts.tolist(), levels, strict=True)
    ]


def changed_first(settings: Sequence[OptionValue]) -> list[OptionValue]:
    """Return the settings that differ from their defaults, then the others that have a value."""
    return [
        *(s for s in settings if not s.is_default),
        *(s for s in settings if s.is_default and s.value),
    ]
