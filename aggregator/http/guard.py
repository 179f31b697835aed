"""Guard before the HTTP API: authentication, roles and limits of requests. It also answers HEAD."""

import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import Response
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aggregator.http.problem import RETRY_S, problem
from aggregator.http.session import COOKIE, OPEN, PAGES, STATIC, is_from_own_page, kept_cookie
from aggregator.http.tokens import Access, Caller
from host.loopback import asked_host, is_loopback
from wire.errors import ShoalError, printable

log = logging.getLogger("shoal.aggregator")

FREE = "/health"
"""Only path of the API that never needs a token."""
READING = ("GET", "HEAD")
"""Methods for which a viewer's token suffices."""
BODY_BYTES = 2**16
"""Maximum number of bytes in the body of an order."""
MOST_CALLERS = 4096
"""Maximum number of entries in `Rates`: one for each caller, and one for all of them together."""

Refuse = Callable[[Scope, int, str, Mapping[str, str]], Response]
"""Makes the response of a refusal from the request, the status, the reason and the headers."""


class Rates:
    """Limits of requests, at once and per second after that, per caller and for all callers.

    A caller is an address, behind which there may be many boards, or the name of a token.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        burst: float = 40.0,
        per_s: float = 1.0,
        burst_all: float = 400.0,
        per_s_all: float = 50.0,
    ):
        """Set the limits.

        `clock`: returns monotonic time (s).
        """
        self._clock, self._one, self._all = clock, (burst, per_s), (burst_all, per_s_all)
        self._lock = threading.Lock()
        self._left: OrderedDict[str | None, tuple[float, float]] = OrderedDict()
        """Rest of each caller's burst with the time of its computation; the least recent caller is
        first.

        The key None stands for all callers together.
        """

    def wait_s(self, caller: str) -> int:
        """Count a request of this caller, and return 0 if it is allowed.

        Otherwise return the whole seconds until the next one is.
        """
        now_s = self._clock()
        with self._lock:
            for key, (burst, per_s) in ((caller, self._one), (None, self._all)):
                before, at_s = self._left.pop(key, (burst, now_s))
                allowance = min(burst, before + (now_s - at_s) * per_s)
                self._left[key] = allowance - (allowance >= 1), now_s
                if len(self._left) > MOST_CALLERS:
                    del self._left[next(name for name in self._left if name is not None)]
                if allowance < 1:
                    return max(1, math.ceil((1 - allowance) / per_s))
            return 0


@dataclass(eq=False)
class _Refused(Exception):
    reason: str
    status: int
    detail: str
    headers: Mapping[str, str] = field(default_factory=dict)


class Guard:
    """Middleware that lets a request through with its `Caller` in the scope's state, or refuses it.

    A valid token is never refused because others have shown wrong ones: only failed attempts are
    limited by address.
    """

    def __init__(self, app: ASGIApp, access: Access, page: Refuse) -> None:
        """Wrap an application.

        `page`: makes the refusal for people who requested a page.
        """
        self._app, self._access, self._page = app, access, page
        self._by_token = Rates(
            access.clock, access.burst, access.per_s, 10 * access.burst, 10 * access.per_s
        )
        self._failures = Rates(
            access.clock,
            access.failed_burst,
            access.failed_per_s,
            10 * access.failed_burst,
            10 * access.failed_per_s,
        )
        self._noted = Rates(access.clock, burst=1, per_s=1 / 60, burst_all=60, per_s_all=1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answering: ASGIApp = self._app
        try:
            free = scope["path"] in (FREE, *OPEN) or scope["path"].startswith(STATIC)
            caller = None if free else await run_in_threadpool(self._admit, scope)
        except _Refused as refused:
            self._access.refused[refused.reason] += 1
            refusal = (refused.status, refused.detail, refused.headers)
            page = scope["path"].startswith(PAGES)
            answering = self._page(scope, *refusal) if page else problem(*refusal)
        else:
            scope = {**scope, "state": {**scope.get("state", {}), "caller": caller}}
        if scope["method"] != "HEAD":
            await answering(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            body: dict[str, Any] = {"body": b""} if message["type"] == "http.response.body" else {}
            await send({**message, **body})

        await answering({**scope, "method": "GET"}, receive, send_head)

    def _admit(self, scope: Scope) -> Caller | None:
        """Return the caller, or None if the request needs no token.

        Raises:
            _Refused: the request is not allowed.
        """
        access, reads, headers = self._access, scope["method"] in READING, Headers(scope=scope)
        if reads and not access.required():
            host = asked_host(headers.get("host", ""))
            if not is_loopback(
                host
                # A page in a browser on this machine may use a name that its owner gave this
                # address.
            ):
                detail = (
                    f"The header Host names {printable(host)[:100]!r}. Without a token, ask by "
                    "localhost or 127.0.0.1."
                )
                raise _Refused("host", 403, detail)
            return None
        caller = self._caller(scope, headers)
        if wait_s := self._by_token.wait_s(caller.name):
            raise self._too_many(scope, caller.name, wait_s)
        if reads:
            return caller
        if caller.role != "operator":
            detail = f"Token {caller.name!r} has the role viewer. Orders need the role operator."
            if not self._noted.wait_s(f"{caller.name} as operator"):
                access.note(caller.name, _asked(scope), "refused", detail)
            raise _Refused(
                "role",
                403,
                detail,
                {"WWW-Authenticate": 'Bearer realm="shoal", error="insufficient_scope"'},
            )
        if "transfer-encoding" in headers:
            raise _Refused("too-large", 411, "The header Content-Length is missing.")
        if int(headers.get("content-length", 0)) > BODY_BYTES:
            raise _Refused(
                "too-large",
                413,
                f"The body has {headers['content-length']} bytes. At most {BODY_BYTES} are "
                "accepted.",
            )
        return caller

    def _caller(self, scope: Scope, headers: Headers) -> Caller:
        """Return the caller whose token is in the header, or, for a page, in the browser's cookie.

        Raises:
            _Refused: there is no valid token, or it cannot be verified now.
        """
        page = scope["path"].startswith(PAGES)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            token = kept_cookie(scope, COOKIE) if page else ""
            if token and scope["method"] not in READING and not is_from_own_page(headers):
                raise _Refused(
                    "cross-site",
                    403,
                    "The order was not sent by a page of this dashboard.",
                )
        if not token.strip():
            if (
                page and scope["method"] in READING
            ):  # opening a page before the sign-in is no failed attempt
                raise _Refused("signed-out", 401, "", {"WWW-Authenticate": 'Bearer realm="shoal"'})
            raise self._failed(
                scope,
                "no-token",
                "The header 'Authorization: Bearer TOKEN' is missing. `shoal token new` makes a "
                "token.",
                "",
            )
        try:
            caller = self._access.verify(token.strip())
        except ShoalError as error:
            log.error("Tokens cannot be verified, so HTTP requests are refused: %s", error)
            retry = {"Retry-After": str(RETRY_S)}
            raise _Refused("not-verified", 503, "Tokens cannot be verified now.", retry) from None
        if caller is None:
            raise self._failed(
                scope,
                "wrong-token",
                "The token is unknown, revoked or expired.",
                ', error="invalid_token"',
            )
        return caller

    def _failed(self, scope: Scope, reason: str, detail: str, more: str) -> _Refused:
        address = scope["client"][0] if scope.get("client") else ""
        by = f"nobody at {address}"
        if wait_s := self._failures.wait_s(address):
            return self._too_many(scope, by, wait_s)
        self._access.note(by, _asked(scope), "refused", detail)
        return _Refused(reason, 401, detail, {"WWW-Authenticate": f'Bearer realm="shoal"{more}'})

    def _too_many(self, scope: Scope, by: str, wait_s: int) -> _Refused:
        if not self._noted.wait_s(by):  # log a flood with one line a minute
            self._access.note(by, _asked(scope), "refused", "Too many requests.")
        return _Refused(
            "too-many",
            429,
            f"Too many requests. Ask again in {wait_s} s.",
            {"Retry-After": str(wait_s)},
        )


def _asked(scope: Scope) -> str:
    return printable(f"{scope['method']} {scope['path']}")[:200]
