"""Web page of the board with a button for each class, for the present or the last minutes.

It shows a question that is due, and what is known of the model in use.

It serves a browser on this machine: it listens on localhost unless the settings permit more. Other
web pages in the browser cannot set labels. A request must name this page's host (otherwise another
name could lead here), must come from this page (``Origin`` and ``Sec-Fetch-Site``), and must carry
a token that only this page contains.
"""

import hmac
import html
import ipaddress
import logging
import re
import secrets
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from edge_client.core.questions import Question
from edge_client.live.labelling.labels import MOST_S, Labels
from edge_client.live.labelling.questions import Questions
from edge_client.live.sources.tally import Tally
from host.loopback import asked_host, is_loopback
from wire.errors import ConfigError, DataError, printable

log = logging.getLogger("shoal.edge")

MOST_BYTES = 4096
LONGEST_MINUTES = 24 * 60.0
SHOWN_S, SHOWN = 3600.0, 100
"""Age and number of the intervals that the page shows, the newest."""
MOST_CONNECTIONS = 32
"""Maximum number of open connections; further ones are closed."""
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>Labels</title>
<style>body{{font:1.1em sans-serif;max-width:40em;margin:1em auto;padding:0 1em}}
button{{font:inherit;padding:.8em 1.2em;margin:.2em}}
.now{{background:#8d8}}input{{font:inherit;width:4em}}</style>
<main>{question}<h1>What is happening?</h1><p>Now: <b>{now}</b></p>
<form method="post" action="/label"><input type="hidden" name="token" value="{token}">
<p>{buttons}<button name="label" value="">nothing</button></p>
<p><label><input name="minutes" type="number" min="0" max="1440" step="any" value="0"> minutes,
up to now (0: from now on)</label></p></form><h2>The last hour</h2><ul>{past}</ul>
{status}</main></html>"""
_QUESTION = """<h1>What was it?</h1>
<p>{reason}.</p>
<form method="post" action="/answer"><input type="hidden" name="token" value="{token}">
<input type="hidden" name="begin" value="{begin}">
<p>{buttons}<button name="label" value="">none of these</button></p></form>"""


class _Handler(BaseHTTPRequestHandler):
    """Handler of one connection to a page."""

    server_version, sys_version = "shoal", ""
    timeout = 10.0
    server: "LabelPage"

    def do_GET(self) -> None:
        """Show the page."""
        if not self._is_ours():
            return
        if self.path.partition("?")[0] != "/":
            self._answer(404, "there is only /")
            return
        page = self.server
        now_s = page.wall()
        now = page.labels.timeline.at(now_s)
        past = "".join(
            (
                f"<li>{_clock(max(i.begin_s, now_s - MOST_S))}-{_clock(min(i.end_s, now_s))} "
                f"{html.escape(i.label or '')}</li>"
            )
            for i in page.labels.timeline.intervals(now_s - SHOWN_S)[-SHOWN:]
            if i.begin_s < now_s
        )
        text = _PAGE.format(
            now=html.escape(now or "nothing"),
            token=page.token,
            buttons=self._buttons(now),
            past=past or "<li>nothing</li>",
            question=self._question(),
            status=self._status(),
        )
        self._answer(200, text, "text/html; charset=utf-8")

    def _question(self) -> str:
        questions = self.server.questions
        if questions is None or (question := questions.open()) is None:
            return ""
        return _QUESTION.format(
            reason=html.escape(_reason(question)),
            token=self.server.token,
            begin=repr(question.begin_s),
            buttons=self._buttons(question.label),
        )

    def _status(self) -> str:
        questions = self.server.questions
        if questions is None:
            return ""
        items = "".join(f"<li>{html.escape(line)}</li>" for line in questions.model.describe())
        return f"<h2>This device's model</h2><ul>{items}</ul>"

    def _buttons(self, marked: str | None) -> str:
        return "".join(
            f'<button name="label" value="{html.escape(name)}"'
            f"{' class=now' if name == marked else ''}>{html.escape(name)}</button>"
            for name in self.server.labels.classes
        )

    def do_POST(self) -> None:
        """Label an interval, or answer the question, and show the page again."""
        length = self.headers.get("Content-Length", "")
        if not re.fullmatch("[0-9]{1,4}", length) or int(length) > MOST_BYTES:
            self._answer(413, f"expected at most {MOST_BYTES} bytes")
            return
        fields = {
            k: v[-1]
            for k, v in parse_qs(
                self.rfile.read(int(length)).decode(errors="replace"), keep_blank_values=True
            ).items()
        }
        if not self._is_ours():
            return
        origin, host = self.headers.get("Origin"), self.headers.get("Host", "")
        site = self.headers.get("Sec-Fetch-Site", "same-origin")
        if site not in ("same-origin", "none") or origin not in (None, f"http://{host}"):
            self._answer(403, "labels are said on this page alone")
            return
        page = self.server
        if not hmac.compare_digest(fields.get("token", "").encode(), page.token.encode()):
            self._answer(403, "the page is out of date: load it again")
            return
        place = self.path.partition("?")[0]
        if place not in ("/label", "/answer"):
            self._answer(404, "there are only /label and /answer")
            return
        try:
            if place == "/answer":
                self._take_answer(fields)
            else:
                self._take_label(fields)
        except (DataError, ValueError) as error:
            self._answer(400, str(error))
            return
        except OSError as error:
            self._answer(507, f"the label cannot be stored: {error.strerror}")
            return
        self.send_response(303)
        self.send_header("Location", "/")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _take_answer(self, fields: dict[str, str]) -> None:
        """Take the answer to the question."""
        if self.server.questions is None:
            raise DataError("This page asks nothing")
        self.server.questions.answer(float(fields.get("begin", "nan")), fields.get("label") or None)

    def _take_label(self, fields: dict[str, str]) -> None:
        """Label the last minutes, or the time from now on."""
        minutes = float(fields.get("minutes") or 0)
        if not 0 <= minutes <= LONGEST_MINUTES:
            raise DataError(f"minutes must be between 0 and {LONGEST_MINUTES:g}, got {minutes:g}")
        now_s = self.server.wall()
        past = (now_s - 60 * minutes, now_s) if minutes else (now_s, None)
        self.server.labels.say(fields.get("label") or None, *past)

    def log_message(self, format: str, *args: object) -> None:
        """Log a request."""
        log.debug("Request to the page: %s", printable(format % args))

    def _is_ours(self) -> bool:
        """Return True if the request names this machine by its address; otherwise refuse it.

        A name that leads to this machine does not count.
        """
        host = asked_host(self.headers.get("Host", ""))
        if is_loopback(host) or (self.server.is_open and _is_address(host)):
            return True
        self._answer(403, "this page answers under the address of this machine alone")
        return False

    def _answer(self, status: int, text: str, kind: str = "text/plain; charset=utf-8") -> None:
        payload = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(payload)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header(
            "Content-Security-Policy",
            "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; "
            "frame-ancestors 'none'",
        )
        self.end_headers()
        self.wfile.write(payload)


class LabelPage(ThreadingHTTPServer):
    """Server of the page, with a thread for each of at most `MOST_CONNECTIONS` connections.

    An exception in a request ends its connection alone.
    """

    daemon_threads = True
    request_queue_size = MOST_CONNECTIONS

    def __init__(
        self,
        address: str,
        labels: Labels,
        *,
        is_open: bool = False,
        wall: Callable[[], float] = time.time,
        questions: Questions | None = None,
    ) -> None:
        """Serve the page in a separate thread.

        Args:
            address: HOST:PORT.
            labels: labels that the page shows and sets.
            is_open: True if other machines may reach it.
            wall: Unix time.
            questions: questions that the page asks, with the model in use; None for neither.

        Raises:
            ConfigError: the address cannot be used.
        """
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        if not host or not port.isdigit():
            raise ConfigError(f"page must be HOST:PORT, got {address!r}")
        if not is_open and not is_loopback(host):
            raise ConfigError(
                f"page {address!r} lets other machines label this device's data; set open_page = "
                "true to permit that"
            )
        self.labels, self.wall, self.is_open = labels, wall, is_open
        self.questions = questions
        self.token = secrets.token_urlsafe(24)
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._failed = Tally("a request to the page")
        try:
            super().__init__((host, int(port)), _Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(f"page {address} cannot be served: {error}") from None
        self.port: int = self.server_address[1]
        threading.Thread(target=self.serve_forever, name="page", daemon=True).start()
        log.info("Page for labels started: address=http://%s:%d/", host, self.port)

    def close(self) -> None:
        """Stop serving."""
        self.shutdown()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a separate thread, if there are not too many."""
        if not self._free.acquire(blocking=False):
            self._failed.add(f"{MOST_CONNECTIONS} connections are open")
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, inside the thread of the connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log the exception of a request, unless the client has only closed the connection."""
        error = sys.exception()
        if isinstance(error, Exception) and not isinstance(error, OSError):
            self._failed.add(error)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _clock(at_s: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at_s))


def _reason(question: Question) -> str:
    """Return the reason for a question, without a full stop."""
    minutes = max(1, round((question.end_s - question.begin_s) / 60))
    begin, end = (
        time.strftime("%H:%M", time.localtime(t)) for t in (question.begin_s, question.end_s)
    )
    spell = "1 minute that looks" if minutes == 1 else f"{minutes} minutes that look"
    return f"{begin} to {end}: {spell} alike, probably {question.label}"
