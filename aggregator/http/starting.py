"""What HTTP answers while a service starts: what it is doing, and that nothing else is to be had
yet."""

from collections.abc import Callable

from fastapi import FastAPI, Request, Response
from starlette.applications import Starlette
from starlette.exceptions import HTTPException

from aggregator.http.dashboard.app import starting, static_files
from aggregator.http.guard import FREE
from aggregator.http.problem import RETRY_S, problem
from aggregator.http.session import PAGES, is_page
from aggregator.http.views import HealthView


def create_starting_api(doing: Callable[[], str]) -> FastAPI:
    """The application of a service that is not ready. `doing` says what it does at the moment."""
    api = FastAPI(openapi_url=None)

    @api.get(FREE)
    def health() -> HealthView:
        """That the process runs, and what it is doing."""
        return HealthView(status="starting", run="", phase="", round=0, doing=doing())

    def not_yet(request: Request, _error: Exception) -> Response:
        path = request.scope["path"]
        if path == "/" or is_page(path):
            return starting(request, doing())
        return problem(503, f"the service is starting: {doing()}", {"Retry-After": str(RETRY_S)})

    api.mount(
        PAGES.rstrip("/"),
        Starlette(routes=[static_files()], exception_handlers={HTTPException: not_yet}),
    )
    api.add_exception_handler(HTTPException, not_yet)
    return api
