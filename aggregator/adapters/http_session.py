"""How a browser shows a token: in a cookie of the dashboard's pages, which scripts cannot read and other sites cannot have sent.

The cookie goes with requests below `PAGES` alone; the HTTP API knows the header `Authorization` only. To sign in is to have the browser
keep a token; whether it is of use is found out where every token is (`aggregator.adapters.http_guard`).

``Sec-Fetch-Site`` says whether a request comes from a page of this very address (W3C, Fetch Metadata Request Headers). A browser does not
send it over plain HTTP to another machine; there ``Origin`` says it (RFC 6454). ``SameSite`` does not tell two ports of a machine apart.
"""

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import Response
from starlette.types import Scope

PAGES = "/dashboard/"
"""Below this path are the dashboard's pages."""
SIGN_IN, SIGN_OUT, STATIC = f"{PAGES}sign-in", f"{PAGES}sign-out", f"{PAGES}static/"
OPEN = ("/", PAGES.rstrip("/"), "/docs", SIGN_IN, SIGN_OUT)
"""Paths, beside those below `STATIC`, that say nothing of a fleet and so need no token."""
COOKIE = "shoal-token"
LONGEST = 4096
"""Characters of a token that a browser is asked to keep, at most."""


def is_page(path: str) -> bool:
    """Whether a path is one of the dashboard's."""
    return path.startswith(PAGES)


def is_open(path: str) -> bool:
    """Whether a path of the dashboard needs no token."""
    return path in OPEN or path.startswith(STATIC)


def kept_token(headers: Headers) -> str:
    """The token that the browser keeps; empty without one."""
    return cookie_parser(headers.get("cookie", "")).get(COOKIE, "")


def is_from_own_page(headers: Headers) -> bool:
    """Whether a browser says that a page of this address makes the request."""
    if (site := headers.get("sec-fetch-site")) is not None:
        return site == "same-origin"
    try:
        return bool(host := headers.get("host")) and urlsplit(headers.get("origin", "")).netloc == host
    except ValueError:  # that is no address at all
        return False


def keep_cookie(response: Response, scope: Scope, name: str, value: str, most_s: int | None = None) -> None:
    """Have the browser keep a value for the dashboard's pages: until it is closed, or for so many seconds."""
    response.set_cookie(name, value, max_age=most_s, path=PAGES, httponly=True, samesite="strict", secure=scope["scheme"] == "https")


def drop_cookie(response: Response, name: str) -> None:
    """Have the browser forget a value."""
    response.delete_cookie(name, path=PAGES, httponly=True, samesite="strict")
