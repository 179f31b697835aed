"""The pages of `shoal ui`: the runs and comparisons of a folder, and their reports.

Several runs can be shown side by side. The pages change nothing.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from aggregator.http.pages.rendering import render
from aggregator.view.summary import Summary
from host.files import file_error
from host.loopback import asked_host, is_loopback
from shoal.reports.pages import chart_pair, kind_of, line_of
from shoal.reports.run_page import worst_first

MOST_ENTRIES = 2000
"""Maximum number of runs in the list: the latest."""
DEEPEST = 4
"""Maximum depth of folders below the one that is searched."""
LARGEST = 64 * 2**20
"""Maximum size of a file that is read, in bytes."""
LEFT_OUT = {"models", "bundle", "devices", "aggregator", "node_modules"}
"""Names of folders within a run's folder that hold no other run."""


@dataclass(frozen=True)
class RunFolder:
    """A folder with results."""

    name: str
    """Path below the folder that is searched; a dot for that folder itself."""
    folder: Path
    at_s: float
    """Time at which the results were written, in Unix seconds."""
    summary: Summary | None = None
    """Summary of a run; None for a comparison, and if it cannot be read."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    """Rows of a comparison, one for each algorithm; of a grid, those over all cells."""
    problem: str = ""
    """Reason why the results cannot be read; empty if they can be."""

    @property
    def has_report(self) -> bool:
        """True if the folder has a report."""
        return (self.folder / "report.html").is_file()


class Library:
    """A search of a folder for results, which reads again only files that changed."""

    def __init__(self, root: Path) -> None:
        self.root, self._read = root, dict[Path, tuple[tuple[int, int], RunFolder]]()

    def entries(self) -> dict[str, RunFolder]:
        """Return the results in the folder by name, the latest first.

        Links to other folders are not followed.
        """
        files_at: list[tuple[int, Path]] = []
        for folder, folders, files in os.walk(self.root):
            here = Path(folder)
            depth = len(here.relative_to(self.root).parts)
            searched = [
                name
                for name in sorted(folders)
                if not name.startswith(".") and name not in LEFT_OUT
            ]
            folders[:] = searched if depth < DEEPEST else []
            for name in ("summary.json", "compare.json"):
                if name in files and (file := here / name).is_file() and not file.is_symlink():
                    files_at.append((file.stat().st_mtime_ns, file))
        latest = sorted(files_at, key=lambda one: (-one[0], one[1]))[:MOST_ENTRIES]
        entries = [self._entry(file) for _, file in latest]
        self._read = {file: self._read[file] for _, file in latest if file in self._read}
        return {entry.name: entry for entry in entries}

    def _entry(self, file: Path) -> RunFolder:
        stat = file.stat()
        stamp = stat.st_mtime_ns, stat.st_size
        if (cache_item := self._read.get(file)) is not None and cache_item[0] == stamp:
            return cache_item[1]
        entry = _read_entry(self.root, file, stat.st_mtime, stat.st_size)
        self._read[file] = stamp, entry
        return entry


def _read_entry(root: Path, file: Path, at_s: float, size: int) -> RunFolder:
    """Return the entry of a file: a run, a comparison, or the problem with it."""
    name, folder = str(file.parent.relative_to(root)), file.parent
    if size > LARGEST:
        return RunFolder(
            name,
            folder,
            at_s,
            problem=f"{file.name}: {size:,} bytes; at most {LARGEST:,} are read",
        )
    try:
        if file.name == "summary.json":
            return RunFolder(
                name, folder, at_s, msgspec.json.decode(file.read_bytes(), type=Summary)
            )
        content = json.loads(file.read_text())
        rows = content["overall"] if isinstance(content, dict) else content
        return RunFolder(
            name,
            folder,
            at_s,
            rows=[{"algorithm": str(r["algorithm"]), "mean": r["accuracy"]["mean"]} for r in rows],
        )
    except OSError as error:
        return RunFolder(name, folder, at_s, problem=file_error(file.name, error))
    except (ValueError, TypeError, KeyError) as error:
        what = (
            "a summary that `shoal simulate` wrote"
            if file.name == "summary.json"
            else "a table that `shoal compare` wrote"
        )
        return RunFolder(
            name,
            folder,
            at_s,
            problem=f"{file.name}: expected {what}: {type(error).__name__} {error}",
        )


HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
"""Headers of every answer: no script of a page runs, and the page loads nothing.

A report is a file that anybody may have written.
"""
MOST = 12
"""Maximum number of runs side by side."""
MOST_DEVICES = 100


class Site:
    """The web application over one folder."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._app = Starlette(
            routes=[
                Route("/", self._list),
                Route("/compare", self._compare),
                Route("/report/{name:path}", self._report),
            ],
            exception_handlers={HTTPException: _problem},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer only requests whose host name is that of this machine.

        A page of another site could otherwise read the runs under a name of its own.
        """
        answer: ASGIApp = self._app
        if scope["type"] == "http" and not is_loopback(
            asked_host(Request(scope).headers.get("host", ""))
        ):
            text = "this address is for this machine alone"
            answer = _page(render("trouble.html", text=text), 403)
        await answer(scope, receive, send)

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
            name = request.path_params["name"]
            raise HTTPException(404, f"No report of run {name[:100]!r}.")
        try:
            return _page((entry.folder / "report.html").read_bytes())
        except OSError as error:
            raise HTTPException(404, file_error("report.html", error)) from None

    def _compare(self, request: Request) -> Response:
        names = list(dict.fromkeys(request.query_params.getlist("run")))
        if len(names) < 2:
            return RedirectResponse("/?few=1", 303)
        if len(names) > MOST:
            raise HTTPException(
                422, f"At most {MOST} runs can be compared, got {len(names)} (run)."
            )
        entries = self._library.entries()
        runs = []
        for name in names:
            entry = entries.get(name)
            if entry is None or entry.summary is None:
                raise HTTPException(
                    404, f"No run {name[:100]!r} (run). A comparison has a report of its own."
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
    """Return the accuracy of each device in each run.

    The worst device of the first run comes first; devices of other runs alone come last.
    """
    order = list(dict.fromkeys(d for _, summary in runs for d, _ in worst_first(summary)))[
        :MOST_DEVICES
    ]
    return [
        (d, [s.devices[d].accuracy if d in s.devices else None for _, s in runs]) for d in order
    ]


def _about(entry: RunFolder) -> str:
    """Return the text that a search looks in."""
    summary = entry.summary
    words = (
        [summary.algorithm, summary.data, summary.command]
        if summary
        else [row["algorithm"] for row in entry.rows]
    )
    return " ".join([entry.name, *words]).casefold()


def _page(html: str | bytes, status: int = 200) -> Response:
    return Response(html, status, HEADERS, "text/html; charset=utf-8")


def _problem(_request: Request, error: Any) -> Response:
    return _page(render("trouble.html", text=str(error.detail)), error.status_code)
