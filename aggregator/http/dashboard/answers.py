"""Answers of the dashboard: headers by which a browser loads nothing from elsewhere and runs no
script but the dashboard's own, and what became of an order, for the next page."""

import base64
import hashlib

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from aggregator.http.session import keep_cookie, kept_cookie

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
