"""How report pages are made: the dashboard's parts and style sheet, in one file that loads nothing
from anywhere."""

import base64
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import PackageLoader
from markupsafe import Markup

from aggregator.http.dashboard.charts import LineChart, xy_chart
from aggregator.http.dashboard.rendering import FOLDER, environment
from shoal.asked import Setting
from wire.arrays.tensors import Array

STATIC = Path(__file__).parent / "static"
STYLE = Markup(
    (FOLDER / "static" / "dashboard.css").read_text() + (STATIC / "reports.css").read_text()
)
"""Of all pages: the dashboard's sheet, and what reports need besides."""
LOGO = (
    "data:image/svg+xml;base64,"
    + base64.b64encode((FOLDER / "static" / "shoal.svg").read_bytes()).decode()
)
SHADES = 10
"""Levels of a cell's colour."""

Line = Sequence[tuple[float, float, float | None]]
"""After each round its number, the bytes so far, and an accuracy."""


class Shade(NamedTuple):
    """A cell of a table that is coloured by its number."""

    text: str
    level: int
    """From 0 to `SHADES`."""


def render(template: str, **shown: Any) -> str:
    """The HTML of a page. Whatever is shown is escaped."""
    return _ENVIRONMENT.get_template(template).render(shown)


def chart_pair(lines: Mapping[tuple[str, str], Line]) -> tuple[LineChart | None, LineChart | None]:
    """The same accuracies over rounds, and over the bytes that had been sent by then. Lines without
    bytes are left out of the second."""
    rounds = {key: [(n, a) for n, _, a in line] for key, line in lines.items()}
    sent = {
        key: [(b, a) for _, b, a in line]
        for key, line in lines.items()
        if line and all(b > 0 for _, b, _ in line)
    }
    return xy_chart(rounds, lambda x: f"{x:.0f}" if x == int(x) else ""), xy_chart(sent, bytes_text)


def bytes_text(count: float) -> str:
    """Bytes at a mark of an axis, in powers of a thousand."""
    power = min(4, int(math.log10(max(1.0, count * 1.001)) / 3))
    return f"{count / 1000**power:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"


def kind_of(number: int) -> str:
    """What tells the lines of a chart apart: a colour, and past eight of them dashes."""
    return f"g{number % 8}" + (" dashed" if number // 8 % 2 else "")


def shades(counts: Array, by_row: bool) -> list[list[Shade]]:
    """A table (rows, columns) of counts; a cell's colour is its share of its row or of the largest
    count."""
    most = counts.sum(1, keepdims=True) if by_row else counts.max(initial=1)
    levels = (
        (SHADES * counts / most.clip(1) if by_row else SHADES * counts / max(1, most))
        .round()
        .astype(int)
    )
    return [
        [Shade(f"{c:,}", int(level)) for c, level in zip(*row, strict=True)]
        for row in zip(counts.tolist(), levels, strict=True)
    ]


def changed_first(settings: Sequence[Setting]) -> list[Setting]:
    """Settings that somebody chose, then those at their defaults; such as are empty are left
    out."""
    return [
        *(s for s in settings if not s.is_default),
        *(s for s in settings if s.is_default and s.value),
    ]


_ENVIRONMENT = environment(PackageLoader("shoal.reports", "templates"))
_ENVIRONMENT.globals |= {"style": STYLE, "logo": LOGO}
