"""How pages are made of templates, and what every answer of the dashboard has: headers by which a
browser loads nothing from elsewhere and runs no script but the dashboard's own."""

import base64
import hashlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import BaseLoader, ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import Response

from aggregator.http.session import PAGES, STATIC, drop_cookie, keep_cookie, kept_cookie

FOLDER = Path(__file__).parent
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src "
    "'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
TOLD = "shoal-told"
"""The cookie with what became of an order, for the next page."""
TOLD_S = 60
LONGEST = 600
"""Characters of that, at most."""
LOOKS = "x-shoal-look"
"""The header of a request that looks whether a page has changed."""


def render(template: str, **shown: Any) -> str:
    """The HTML of a page. Whatever is shown is escaped."""
    return _ENVIRONMENT.get_template(template).render(shown)


def answer(request: Request, html: str, status: int = 200) -> Response:
    """A page, or 304 where the browser has this very page."""
    body = html.encode("utf-8", "replace")
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = HEADERS | {"ETag": tag, "Cache-Control": "no-store"}
    if status == 200 and request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, status, headers, "text/html; charset=utf-8")


def tell(response: Response, request: Request, tone: str, text: str) -> Response:
    """Have the next page say what became of an order."""
    said = base64.urlsafe_b64encode(msgspec.json.encode((tone, text[:LONGEST]))).decode()
    keep_cookie(response, request.scope, TOLD, said, TOLD_S)
    return response


def told(request: Request) -> tuple[str, str] | None:
    """What the page before wanted this one to say."""
    if LOOKS in request.headers or not (said := kept_cookie(request.scope, TOLD)):
        return None
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(said), type=tuple[str, str])
    except ValueError:  # of msgspec, and of base64
        return None


def forget_told(response: Response, request: Request) -> Response:
    """Have the browser forget it once it was said."""
    if LOOKS not in request.headers and kept_cookie(request.scope, TOLD):
        drop_cookie(response, request.scope, TOLD)
    return response


def when(at_s: float, kind: str = "ago") -> Markup:
    """A time in Unix seconds, which a script turns into words such as "2 min ago" (`ago`) or "in 40
    s" (`until`)."""
    if at_s <= 0:
        return Markup("never")
    at = datetime.fromtimestamp(min(at_s, 2**37), UTC)
    return Markup('<time datetime="{}" data-{}>{} UTC</time>').format(
        at.isoformat(timespec="seconds"), kind, f"{at:%Y-%m-%d %H:%M:%S}"
    )


def device_page(device_id: str) -> str:
    """The address of a device's page. An id may be ``..``, which no path can hold."""
    return f"{PAGES}device?id={device_id}"


def percent(share: float | None) -> str:
    """A share of one, as people read it."""
    return "\N{EN DASH}" if share is None else f"{100 * share:.1f} %"


def number(value: float | None) -> str:
    """A loss, as people read it."""
    return "\N{EN DASH}" if value is None else f"{value:.3g}"


def amount(count: float) -> str:
    """Bytes, as people read them."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def order(what: str) -> str:
    """What somebody asked for, as the audit log has it: an order with its fields in words, or the
    request."""
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


def seconds(span_s: float) -> str:
    """A span of time, as people read it."""
    if span_s < 120:
        return f"{span_s:.0f} s"
    return f"{span_s / 60:.0f} min" if span_s < 7200 else f"{span_s / 3600:.1f} h"


def code(text: str) -> Markup:
    """Words, of which those between back ticks are code."""
    parts = text.split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if number % 2 else escape(part)
        for number, part in enumerate(parts)
    )


def _static(name: str) -> str:
    """The address of a file of the dashboard; another one when its content is another."""
    return f"{STATIC}{name}?{_VERSIONS[name]}"


_VERSIONS = {
    path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    for path in (FOLDER / "static").iterdir()
}


def environment(*others: BaseLoader) -> Environment:
    """Jinja with the dashboard's templates and filters, after the templates of these loaders."""
    loader = ChoiceLoader([*others, PackageLoader(__package__ or "", "templates")])
    made = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "when": when,
        "percent": percent,
        "number": number,
        "amount": amount,
        "seconds": seconds,
        "order": order,
        "device_page": device_page,
        "code": code,
    }
    made.globals |= {"static": _static, "pages": PAGES}
    return made


_ENVIRONMENT = environment()
