"""Pages as HTML: templates, style sheet and logo of the dashboard and of reports."""

import base64
import hashlib
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from aggregator.http.pages.words import amount, number, percent, seconds
from aggregator.http.session import PAGES, STATIC

FOLDER = Path(__file__).parent
FILES = {path.name: path.read_bytes() for path in (FOLDER / "static").iterdir()}
"""Contents of the files that pages load, by name."""


def render(template: str, **shown: Any) -> str:
    """Return the HTML of a page. Every value is escaped."""
    return _ENVIRONMENT.get_template(template).render(shown)


def when(at_s: float, kind: str = "ago") -> Markup:
    """Return a Unix time (s) as HTML, which a script turns into words.

    These are such as "2 min ago" (`ago`) or "in 40 s" (`until`).
    """
    if at_s <= 0:
        return Markup("never")
    at = datetime.fromtimestamp(min(at_s, 2**37), UTC)
    return Markup('<time datetime="{}" data-{}>{} UTC</time>').format(
        at.isoformat(timespec="seconds"), kind, f"{at:%Y-%m-%d %H:%M:%S}"
    )


def order(what: str) -> str:
    """Return the request in an audit line as words.

    An order becomes its name and fields; other text stays.
    """
    try:
        fields: dict[str, Any] = msgspec.json.decode(what, type=dict[str, Any])
    except msgspec.DecodeError:
        return what
    values = (
        "-" if value in ("", None) else str(value)
        for name, value in fields.items()
        if name != "type"
    )
    return f"{fields.get('type', '')}: {', '.join(values)}"


def code(text: str) -> Markup:
    """Return text as HTML in which words between back ticks are code."""
    parts = text.split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if number % 2 else escape(part)
        for number, part in enumerate(parts)
    )


_ENVIRONMENT = Environment(
    loader=FileSystemLoader(FOLDER / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters |= {
    "when": when,
    "percent": partial(percent, unknown="\N{EN DASH}"),
    "number": partial(number, unknown="\N{EN DASH}"),
    "amount": amount,
    "seconds": seconds,
    "order": order,
    "code": code,
}
_ENVIRONMENT.globals |= {
    "pages": PAGES,
    # addresses change with the files, so that browsers may cache them
    "static": {
        name: f"{STATIC}{name}?{hashlib.sha256(content).hexdigest()[:12]}"
        for name, content in FILES.items()
    },
    # inlined in pages that load no files
    "style": Markup(FILES["shoal.css"].decode()),
    "logo": f"data:image/svg+xml;base64,{base64.b64encode(FILES['shoal.svg']).decode()}",
}
