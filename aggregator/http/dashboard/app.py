"""The dashboard: pages for people on the HTTP API's port, with the API's data and rights."""

import queue
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from aggregator.http.dashboard.answers import HEADERS, answer, tell
from aggregator.http.dashboard.orders import read_form, read_order
from aggregator.http.dashboard.pages import Pages, Sources
from aggregator.http.orders import BUSY
from aggregator.http.pages.rendering import FOLDER, render
from aggregator.http.session import (
    COOKIE,
    LONGEST,
    PAGES,
    SIGN_IN,
    SIGN_OUT,
    drop_cookie,
    is_from_own_page,
    keep_cookie,
    kept_cookie,
)
from aggregator.ports import StorageFailed
from wire.errors import ConfigError

HOME, REFERENCE = f"{PAGES}fleet", f"{PAGES}api"
AGAIN_S = 2
"""Seconds after which a browser reloads the page of a service that starts."""
YEAR_S = 366 * 86_400
LONGEST_ADDRESS = 1000
"""Maximum number of characters of a page's address to which a form leads."""
HEADINGS = {
    401: "Sign in",
    403: "Not permitted",
    404: "Not found",
    429: "Too many requests",
    503: "Not available now",
}
"""Headings of pages with a refusal, by status."""
NO_PAGE = "There is no page at this address."


class Dashboard:
    """Application for everything below `PAGES`, and its pages for refused requests."""

    def __init__(self, sources: Sources) -> None:
        self._sources, pages = sources, Pages(sources)
        campaign = "/campaigns/{name}"
        shown: dict[str, Any] = {
            "/fleet": pages.fleet,
            "/device": pages.device,
            "/campaigns": pages.campaigns,
            campaign: pages.live,
            f"{campaign}/groups": pages.groups,
            f"{campaign}/similarity/{{number}}.png": pages.similarity,
            f"{campaign}/accuracy": pages.accuracy,
            f"{campaign}/privacy": pages.privacy,
            "/releases": pages.releases,
            "/alerts": pages.alerts,
            "/audit": pages.audit,
            "/api": pages.reference,
        }
        acts: dict[str, Any] = {
            SIGN_IN: self._sign_in,
            SIGN_OUT: self._sign_out,
            f"{PAGES}orders": self._order,
        }
        self.app = Starlette(
            routes=[
                static_files(),
                Route("/", lambda _request: RedirectResponse(HOME, 303)),
                Route("/sign-in", self._sign_in_page),
                *(Route(path, handler) for path, handler in shown.items()),
                *(
                    Route(f"/{path.removeprefix(PAGES)}", handler, methods=["POST"])
                    for path, handler in acts.items()
                ),
            ],
            exception_handlers=dict.fromkeys((HTTPException, StorageFailed, Exception), _failed),
        )

    def refuse(
        self, scope: Scope, status: int, problem: str, headers: Mapping[str, str]
    ) -> Response:
        """Return the page for a refused request; for status 401, the page to sign in."""
        request = Request(scope)
        if status != 401:
            refused = _problem(request, status, problem)
        else:
            refused = self._sign_in_page(request, problem, status)
            if kept_cookie(request.scope, COOKIE):  # a link from another site sends no cookie
                drop_cookie(refused, request.scope, COOKIE)
        refused.headers.update(headers)
        return refused

    def _sign_in_page(self, request: Request, problem: str = "", status: int = 200) -> Response:
        required = self._sources.access is not None and self._sources.access.required()
        url = f"{request.url.path}?{request.url.query}" if request.url.query else request.url.path
        after = request.query_params.get("next", url if request.method == "GET" else "")
        return answer(
            request,
            render("sign_in.html", told=problem, required=required, next=_own(after)),
            status,
        )

    async def _sign_in(self, request: Request) -> Response:
        """Set the cookie with a token, which the next request verifies."""
        fields = await _form(request)
        token = fields.get("token", "").strip()
        if not 0 < len(token) <= LONGEST or not token.isascii() or not token.isprintable():
            return self._sign_in_page(
                request, "This is not a token. `shoal token new` prints one.", 422
            )
        response = RedirectResponse(_own(fields.get("next", "")), 303, HEADERS)
        keep_cookie(response, request.scope, COOKIE, token)
        return response

    async def _sign_out(self, request: Request) -> Response:
        await _form(request)
        response = RedirectResponse(SIGN_IN, 303, HEADERS)
        drop_cookie(response, request.scope, COOKIE)
        return response

    async def _order(self, request: Request) -> Response:
        """Give an order, and redirect to the page of its form, which shows the outcome."""
        fields, orders, caller = (
            await _form(request),
            self._sources.orders,
            getattr(request.state, "caller", None),
        )
        if orders is None or caller is None:
            raise HTTPException(403, "This service takes no orders by HTTP.")
        back = RedirectResponse(_own(fields.pop("back", "")), 303, HEADERS)
        try:
            order, values = read_order(fields)
            outcome = await orders.ask(caller.name, order, **values)
        except queue.Full:
            return tell(back, request, "bad", "Too many orders wait already. Try again later.")
        except ConfigError as error:
            return tell(back, request, "bad", str(error))
        if outcome is None:
            return tell(back, request, "warn", BUSY)
        return tell(back, request, "ok" if outcome.is_done else "bad", outcome.text)


def starting(request: Request, doing: str) -> Response:
    """Return the page that says what a starting service does; the browser reloads it by itself."""
    page = answer(request, render("starting.html", doing=doing), 503)
    page.headers["Refresh"] = str(AGAIN_S)
    return page


def static_files() -> Mount:
    """Return the route of the files that pages load, below `PAGES` or any other path."""
    return Mount("/static", _Static(directory=FOLDER / "static"))


class _Static(StaticFiles):
    """Files whose addresses change with their contents, so that a browser may cache them."""

    def file_response(self, *arguments: Any, **named: Any) -> Response:
        response = super().file_response(*arguments, **named)
        response.headers.update(HEADERS)
        response.headers["Cache-Control"] = f"public, max-age={YEAR_S}, immutable"
        return response


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form that one of the dashboard's own pages sent.

    Raises:
        HTTPException: the form is another site's, is too large, or cannot be read.
    """
    if not is_from_own_page(request.headers):
        raise HTTPException(403, "The form was not sent by a page of this dashboard.")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > 4 * LONGEST:
            raise HTTPException(413, f"The form has more than {4 * LONGEST} bytes.")
    try:
        return read_form(body)
    except ConfigError as error:
        raise HTTPException(422, str(error)) from None


def _own(address: str) -> str:
    """Return an address of the dashboard to go to: this one, or else the first page."""
    try:
        parts = (
            urlsplit(address)
            if address.isprintable() and "\\" not in address and len(address) <= LONGEST_ADDRESS
            else urlsplit("")
        )
    except ValueError:
        return HOME
    is_own = (
        not parts.scheme
        and not parts.netloc
        and parts.path.startswith(PAGES)
        and parts.path not in (SIGN_IN, SIGN_OUT, f"{PAGES}orders")
    )
    return address if is_own else HOME


def _problem(request: Request, status: int, text: str) -> Response:
    message = NO_PAGE if text == HTTPStatus.NOT_FOUND.phrase else text
    return answer(
        request,
        render(
            "problem.html",
            status=status,
            heading=HEADINGS.get(status, "That did not work"),
            text=message,
        ),
        status,
    )


def _failed(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        page = _problem(request, error.status_code, str(error.detail))
        page.headers.update(error.headers or {})
        return page
    if isinstance(error, StorageFailed):
        return _problem(request, 503, str(error))
    defect = f"A defect of Shoal ({type(error).__name__}). The service's log has more."
    return _problem(request, 500, defect)
