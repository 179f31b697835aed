"""The pages of `shoal ui`: the runs and comparisons of a folder, their reports, and several of them
side by side. Nothing is changed."""

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
from host.loopback import asked_host, is_loopback
from shoal.reports.pages import chart_pair, kind_of, line_of
from shoal.reports.run_page import worst_first

MOST_ENTRIES = 2000
"""Runs that are listed, at most: the latest."""
DEEPEST = 4
"""Folders below the one that is looked through."""
LARGEST = 64 * 2**20
"""Bytes of a file that is read, at most."""
LEFT_OUT = {"models", "bundle", "devices", "aggregator", "node_modules"}
"""Folders within a run's own that hold no other run."""


@dataclass(frozen=True)
class RunFolder:
    """A folder with results."""

    name: str
    """Its path below the folder that was looked through; a dot for that folder itself."""
    folder: Path
    at_s: float
    """When it was written, in Unix seconds."""
    summary: Summary | None = None
    """Of a run; None of a comparison, and where it cannot be read."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    """Of a comparison, a row for each algorithm; of a grid those over all cells."""
    problem: str = ""
    """Why it cannot be read; empty where it can be."""

    @property
    def has_report(self) -> bool:
        """Whether there is a page of it."""
        return (self.folder / "report.html").is_file()


class Library:
    """Looks through a folder, and reads again only what has changed."""

    def __init__(self, root: Path) -> None:
        self.root, self._read = root, dict[Path, tuple[tuple[int, int], RunFolder]]()

    def entries(self) -> dict[str, RunFolder]:
        """By name, what is there now, the latest first. Links to other folders are not followed."""
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
        if (held := self._read.get(file)) is not None and held[0] == stamp:
            return held[1]
        entry = _read_entry(self.root, file, stat.st_mtime, stat.st_size)
        self._read[file] = stamp, entry
        return entry


def _read_entry(root: Path, file: Path, at_s: float, size: int) -> RunFolder:
    """A run or a comparison by its file; one that cannot be read says why."""
    name, folder = str(file.parent.relative_to(root)), file.parent
    if size > LARGEST:
        return RunFolder(
            name,
            folder,
            at_s,
            problem=f"{file.name}: {size:,} bytes, more than the {LARGEST:,} that are read",
        )
    try:
        if file.name == "summary.json":
            return RunFolder(
                name, folder, at_s, msgspec.json.decode(file.read_bytes(), type=Summary)
            )
        held = json.loads(file.read_text())
        rows = held["overall"] if isinstance(held, dict) else held
        return RunFolder(
            name,
            folder,
            at_s,
            rows=[{"algorithm": str(r["algorithm"]), "mean": r["accuracy"]["mean"]} for r in rows],
        )
    except OSError as error:
        return RunFolder(name, folder, at_s, problem=f"{file.name}: {error.strerror}")
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
"""A report is a file that anybody may have written: no script in it runs, and it loads nothing."""
MOST = 12
"""Runs side by side, at most."""
MOST_DEVICES = 100


class Site:
    """The application over one folder."""

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
        """Answer requests that name this machine alone, so that a page of another site cannot read
        the runs under a name of its own."""
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


def _about(entry: RunFolder) -> str:
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
