"""Tokens in a browser's cookie, for the dashboard's pages only; the HTTP API ignores the cookie.

Over HTTPS the cookie's name begins with ``__Host-``: a browser accepts it only over HTTPS and from
this very host, so that a page on another port or subdomain without TLS cannot replace the token
(RFC 6265bis, section 4.1.3.2). It is sent with every path; over HTTP only with those below `PAGES`.
"""

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import Response
from starlette.types import Scope

PAGES = "/dashboard/"
"""Path below which the dashboard's pages are."""
SIGN_IN, SIGN_OUT, STATIC = f"{PAGES}sign-in", f"{PAGES}sign-out", f"{PAGES}static/"
OPEN = ("/", PAGES.rstrip("/"), "/docs", SIGN_IN, SIGN_OUT)
"""Paths that need no token, as they show nothing of a fleet; also those below `STATIC`."""
COOKIE = "shoal-token"
LONGEST = 4096
"""Maximum number of characters of a token in a cookie."""


def kept_cookie(scope: Scope, name: str) -> str:
    """Return the value of a cookie that `keep_cookie` set; empty if there is none."""
    return cookie_parser(Headers(scope=scope).get("cookie", "")).get(_place(scope, name)[0], "")


def is_from_own_page(headers: Headers) -> bool:
    """Return True if the browser says that a page of this address makes the request.

    ``Sec-Fetch-Site`` says so (W3C, Fetch Metadata Request Headers). Over plain HTTP to another
    machine a browser does not send it; ``Origin`` is used then (RFC 6454). ``SameSite`` does not
    distinguish the ports of a machine.
    """
    if (site := headers.get("sec-fetch-site")) is not None:
        return site == "same-origin"
    try:
        return (
            bool(host := headers.get("host")) and urlsplit(headers.get("origin", "")).netloc == host
        )
    except ValueError:  # `Origin` is not an address
        return False


def keep_cookie(
    response: Response, scope: Scope, name: str, value: str, most_s: int | None = None
) -> None:
    """Set a cookie for the dashboard's pages.

    The browser keeps it for `most_s` seconds, or until it is closed (None).
    """
    named, path, secure = _place(scope, name)
    response.set_cookie(
        named, value, max_age=most_s, path=path, httponly=True, samesite="strict", secure=secure
    )


def drop_cookie(response: Response, scope: Scope, name: str) -> None:
    """Delete a cookie."""
    named, path, secure = _place(scope, name)
    response.delete_cookie(named, path=path, httponly=True, samesite="strict", secure=secure)


def _place(scope: Scope, name: str) -> tuple[str, str, bool]:
    """Return a cookie's full name, its path, and True if it is sent over HTTPS only."""
    return (f"__Host-{name}", "/", True) if scope["scheme"] == "https" else (name, PAGES, False)
