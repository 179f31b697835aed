"""The pages of `shoal ui`: all runs of a folder, their reports, and several of them side by side.
It reads and changes nothing."""

from collections.abc import Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from aggregator.core.summary import Summary
from aggregator.http.pages.rendering import render
from host.loopback import asked_host, is_loopback
from shoal.reports.library import Entry, Library
from shoal.reports.pages import chart_pair, kind_of, line_of
from shoal.reports.run_page import worst_first

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
"""A report is a file that anybody may have written: no script in it runs, and it loads nothing."""
MOST = 12
"""Runs side by side, at most."""
MOST_DEVICES = 100


class Site:
    """The application over one folder."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self.app = _Local(
            Starlette(
                routes=[
                    Route("/", self._list),
                    Route("/compare", self._compare),
                    Route("/report/{name:path}", self._report),
                ],
                exception_handlers={HTTPException: _problem},
            )
        )

    def _list(self, request: Request) -> Response:
        words = request.query_params.get("q", "")[:400].casefold().split()
        entries = list(self._library.entries().values())
        shown = [entry for entry in entries if all(word in _about(entry) for word in words)]
        return _page(
            render(
                "runs.html",
                entries=shown,
                total=len(entries),
                words=" ".join(words),
                root=str(self._library.root),
                few="few" in request.query_params,
            )
        )

    def _report(self, request: Request) -> Response:
        entry = self._library.entries().get(request.path_params["name"])
        if entry is None or not entry.has_report:
            raise HTTPException(404, "there is no such report")
        try:
            return _page((entry.folder / "report.html").read_bytes())
        except OSError as error:
            raise HTTPException(404, f"report.html: {error.strerror}") from None

    def _compare(self, request: Request) -> Response:
        names = list(dict.fromkeys(request.query_params.getlist("run")))
        if len(names) < 2:
            return RedirectResponse("/?few=1", 303)
        if len(names) > MOST:
            raise HTTPException(422, f"{len(names)} runs: expected at most {MOST}")
        entries = self._library.entries()
        runs = []
        for name in names:
            entry = entries.get(name)
            if entry is None or entry.summary is None:
                raise HTTPException(
                    404, f"there is no run {name[:100]!r}; a comparison has a report of its own"
                )
            runs.append((name, entry.summary))
        over_rounds, over_bytes = chart_pair(
            {
                (name, kind_of(i)): line_of(s.accuracy_by_round, "mean", s.bytes_by_round)
                for i, (name, s) in enumerate(runs)
            }
        )
        return _page(
            render(
                "side_by_side.html",
                runs=runs,
                over_rounds=over_rounds,
                over_bytes=over_bytes,
                devices=_devices(runs),
                kind_of=kind_of,
            )
        )


def _devices(runs: Sequence[tuple[str, Summary]]) -> list[tuple[str, list[float | None]]]:
    """Accuracy by device in each run, those first that are worst in the first run; devices of the
    other runs alone are last."""
    order = list(dict.fromkeys(d for _, summary in runs for d, _ in worst_first(summary)))[
        :MOST_DEVICES
    ]
    return [
        (d, [s.devices[d].accuracy if d in s.devices else None for _, s in runs]) for d in order
    ]


def _about(entry: Entry) -> str:
    """What a search looks for words in."""
    summary = entry.summary
    told = (
        [summary.algorithm, summary.data, summary.command]
        if summary
        else [row["algorithm"] for row in entry.rows]
    )
    return " ".join([entry.name, *told]).casefold()


def _page(html: str | bytes, status: int = 200) -> Response:
    return Response(html, status, HEADERS, "text/html; charset=utf-8")


def _problem(_request: Request, error: Any) -> Response:
    return _page(render("trouble.html", text=str(error.detail)), error.status_code)


class _Local:
    """Answers requests that name this machine alone, so that a page of another site cannot read the
    runs under a name of its own."""

    def __init__(self, app: Starlette) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not is_loopback(
            asked_host(Request(scope).headers.get("host", ""))
        ):
            refused = _page(
                render("trouble.html", text="this address is for this machine alone"), 403
            )
            await refused(scope, receive, send)
        else:
            await self._app(scope, receive, send)
