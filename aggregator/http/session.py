"""How a browser shows a token: in a cookie of the dashboard's pages, which scripts cannot read and
other sites cannot have sent.

The HTTP API knows the header `Authorization` only, not the cookie. To sign in is to have the
browser keep a token; whether it is of use is found out where every token is
(`aggregator.http.guard`).

Cookies do not know ports. Over HTTPS their names begin with ``__Host-``: a browser takes such a
cookie only over HTTPS and from this very host, so that a page of another port or of a subdomain,
which somebody else serves without TLS, cannot put a token of its own in its place (RFC 6265bis,
section 4.1.3.2). It then goes with every path; over HTTP it goes with requests below `PAGES` alone.

``Sec-Fetch-Site`` says whether a request comes from a page of this very address (W3C, Fetch
Metadata Request Headers). A browser does not send it over plain HTTP to another machine; there
``Origin`` says it (RFC 6454). ``SameSite`` does not tell two ports of a machine apart.
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


def kept_cookie(scope: Scope, name: str) -> str:
    """What the browser keeps under a name of `keep_cookie`; empty where it keeps nothing."""
    return cookie_parser(Headers(scope=scope).get("cookie", "")).get(_place(scope, name)[0], "")


def is_from_own_page(headers: Headers) -> bool:
    """Whether a browser says that a page of this address makes the request."""
    if (site := headers.get("sec-fetch-site")) is not None:
        return site == "same-origin"
    try:
        return (
            bool(host := headers.get("host")) and urlsplit(headers.get("origin", "")).netloc == host
        )
    except ValueError:  # that is no address at all
        return False


def keep_cookie(
    response: Response, scope: Scope, name: str, value: str, most_s: int | None = None
) -> None:
    """Have the browser keep a value for the dashboard's pages: until it is closed, or for so many
    seconds."""
    named, path, secure = _place(scope, name)
    response.set_cookie(
        named, value, max_age=most_s, path=path, httponly=True, samesite="strict", secure=secure
    )


def drop_cookie(response: Response, scope: Scope, name: str) -> None:
    """Have the browser forget a value."""
    named, path, secure = _place(scope, name)
    response.delete_cookie(named, path=path, httponly=True, samesite="strict", secure=secure)


def _place(scope: Scope, name: str) -> tuple[str, str, bool]:
    """A cookie's whole name, its path, and whether it goes over HTTPS alone."""
    return (f"__Host-{name}", "/", True) if scope["scheme"] == "https" else (name, PAGES, False)
