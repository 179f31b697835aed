"""Answers of the dashboard: its security headers, and the outcome of an order for the next page.

By the headers, a browser loads nothing from elsewhere and runs only the dashboard's own scripts.
"""

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
"""Name of the cookie with the outcome of an order, for the next page."""
TOLD_S = 60
LONGEST = 600
"""Maximum number of characters of that outcome."""
LOOKS = "x-shoal-look"
"""Header of a request that checks if a page has changed."""


def answer(request: Request, html: str, status: int = 200) -> Response:
    """Return a page, or 304 if the browser has this very page."""
    body = html.encode("utf-8", "replace")
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = HEADERS | {"ETag": tag, "Cache-Control": "no-store"}
    if status == 200 and request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, status, headers, "text/html; charset=utf-8")


def tell(response: Response, request: Request, tone: str, text: str) -> Response:
    """Show the outcome of an order on the next page."""
    cookie = base64.urlsafe_b64encode(msgspec.json.encode((tone, text[:LONGEST]))).decode()
    keep_cookie(response, request.scope, TOLD, cookie, TOLD_S)
    return response


def told(request: Request) -> tuple[str, str] | None:
    """Return tone and text of the outcome that this page is to show, or None if there is none."""
    if LOOKS in request.headers or not (cookie := kept_cookie(request.scope, TOLD)):
        return None
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(cookie), type=tuple[str, str])
    except ValueError:  # raised by msgspec and by base64
        return None
