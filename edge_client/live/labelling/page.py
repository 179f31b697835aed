"""The board's own page: a button for each class, from now on or for the last minutes.

It speaks to a browser on this machine: it listens on localhost unless somebody says otherwise.
Other web pages that the browser shows cannot say labels: a request must name this page's host (else
a name of theirs could lead here), must come from this page (``Origin`` and ``Sec-Fetch-Site``), and
must carry a token that only this page's own text has.
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

from edge_client.live.labelling.labels import MOST_S, Labels
from edge_client.live.sources.tally import Tally
from host.loopback import asked_host, is_loopback
from wire.errors import ConfigError, DataError, printable

log = logging.getLogger("shoal.edge")

MOST_BYTES = 4096
LONGEST_MINUTES = 24 * 60.0
SHOWN_S, SHOWN = 3600.0, 100
"""The page shows the newest intervals of this time, and so many."""
MOST_CONNECTIONS = 32
"""At once; one more is closed."""
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>Labels</title>
<style>body{{font:1.1em sans-serif;max-width:40em;margin:1em auto;padding:0 1em}}
button{{font:inherit;padding:.8em 1.2em;margin:.2em}}
.now{{background:#8d8}}input{{font:inherit;width:4em}}</style>
<h1>What is happening?</h1><p>Now: <b>{now}</b></p>
<form method="post" action="/label"><input type="hidden" name="token" value="{token}">
<p>{buttons}<button name="label" value="">nothing</button></p>
<p><label><input name="minutes" type="number" min="0" max="1440" step="any" value="0"> minutes,
up to now (0: from now on)</label></p></form><h2>The last hour</h2><ul>{past}</ul></html>"""


class LabelPage:
    """Serves the page in a thread of its own."""

    def __init__(
        self,
        address: str,
        labels: Labels,
        *,
        is_open: bool = False,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`is_open`: whether other machines may reach it.

        Raises:
            ConfigError: the address cannot be used.
        """
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        if not host or not port.isdigit():
            raise ConfigError(f"page {address!r}: expected HOST:PORT")
        if not is_open and not is_loopback(host):
            raise ConfigError(
                f"page {address!r}: other machines could label this device's data; say open_page "
                "= true if they are to"
            )
        self._labels, self._wall, self._is_open = labels, wall, is_open
        self._token = secrets.token_urlsafe(24)
        page = self

        class Handler(BaseHTTPRequestHandler):
            """Hands requests to the page."""

            server_version, sys_version = "shoal", ""
            timeout = 10.0

            def do_GET(self) -> None:
                page.get(self)

            def do_POST(self) -> None:
                page.post(self)

            def log_message(self, format: str, *args: object) -> None:
                log.debug("page: %s", printable(format % args))

        try:
            self._server = _Server((host, int(port)), Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(f"page {address}: {error}") from None
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, name="page", daemon=True).start()
        log.info("labels can be said at http://%s:%d/", host, self.port)

    def close(self) -> None:
        """Serve no longer."""
        self._server.shutdown()
        self._server.server_close()

    def get(self, request: BaseHTTPRequestHandler) -> None:
        """Show the page."""
        if not self._is_ours(request):
            return
        if request.path.partition("?")[0] != "/":
            _answer(request, 404, "there is only /")
            return
        now_s = self._wall()
        now = self._labels.at(now_s)
        buttons = "".join(
            (
                f'<button name="label" value="{html.escape(name)}"'
                f"{' class=now' if name == now else ''}>{html.escape(name)}</button>"
            )
            for name in self._labels.classes
        )
        past = "".join(
            (
                f"<li>{_clock(max(i.begin_s, now_s - MOST_S))}-{_clock(min(i.end_s, now_s))} "
                f"{html.escape(i.label or '')}</li>"
            )
            for i in self._labels.intervals(now_s - SHOWN_S)[-SHOWN:]
            if i.begin_s < now_s
        )
        text = _PAGE.format(
            now=html.escape(now or "nothing"),
            token=self._token,
            buttons=buttons,
            past=past or "<li>nothing</li>",
        )
        _answer(request, 200, text, "text/html; charset=utf-8")

    def post(self, request: BaseHTTPRequestHandler) -> None:
        """Label an interval, and show the page again."""
        length = request.headers.get("Content-Length", "")
        if not re.fullmatch("[0-9]{1,4}", length) or int(length) > MOST_BYTES:
            _answer(request, 413, f"expected at most {MOST_BYTES} bytes")
            return
        fields = {
            k: v[-1]
            for k, v in parse_qs(
                request.rfile.read(int(length)).decode(errors="replace"), keep_blank_values=True
            ).items()
        }
        if not self._is_ours(request) or not self._comes_from_here(request):
            return
        if not hmac.compare_digest(fields.get("token", "").encode(), self._token.encode()):
            _answer(request, 403, "the page is out of date: load it again")
            return
        if request.path.partition("?")[0] != "/label":
            _answer(request, 404, "there is only /label")
            return
        try:
            minutes = float(fields.get("minutes") or 0)
            if not 0 <= minutes <= LONGEST_MINUTES:
                raise DataError(f"{minutes:g} minutes: expected 0 to {LONGEST_MINUTES:g}")
            now_s = self._wall()
            past = (now_s - 60 * minutes, now_s) if minutes else (now_s, None)
            self._labels.say(fields.get("label") or None, *past)
        except (DataError, ValueError) as error:
            _answer(request, 400, str(error))
            return
        except OSError as error:
            _answer(request, 507, f"the label cannot be stored: {error.strerror}")
            return
        request.send_response(303)
        request.send_header("Location", "/")
        request.send_header("Content-Length", "0")
        request.end_headers()

    def _is_ours(self, request: BaseHTTPRequestHandler) -> bool:
        """Whether the request names this machine, and not a name that leads to it."""
        host = asked_host(request.headers.get("Host", ""))
        if is_loopback(host) or (self._is_open and _is_address(host)):
            return True
        _answer(request, 403, "this page answers under the address of this machine alone")
        return False

    def _comes_from_here(self, request: BaseHTTPRequestHandler) -> bool:
        origin, host = request.headers.get("Origin"), request.headers.get("Host", "")
        site = request.headers.get("Sec-Fetch-Site", "same-origin")
        if site in ("same-origin", "none") and origin in (None, f"http://{host}"):
            return True
        _answer(request, 403, "labels are said on this page alone")
        return False


class _Server(ThreadingHTTPServer):
    """A thread for each connection, of at most `MOST_CONNECTIONS`. What a request raises ends its
    connection alone."""

    daemon_threads = True
    request_queue_size = MOST_CONNECTIONS

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self._free, self._failed = (
            threading.BoundedSemaphore(MOST_CONNECTIONS),
            Tally("a request to the page"),
        )

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own, if there are not too many."""
        if not self._free.acquire(blocking=False):
            self._failed.add(f"{MOST_CONNECTIONS} connections are open")
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, in that thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say what a request raised; that somebody has left is nothing to say."""
        error = sys.exception()
        if isinstance(error, Exception) and not isinstance(error, OSError):
            self._failed.add_unforeseen(error)


def _answer(
    request: BaseHTTPRequestHandler, status: int, text: str, kind: str = "text/plain; charset=utf-8"
) -> None:
    payload = text.encode()
    request.send_response(status)
    request.send_header("Content-Type", kind)
    request.send_header("Content-Length", str(len(payload)))
    request.send_header("Cache-Control", "no-store")
    request.send_header("X-Frame-Options", "DENY")
    request.send_header(
        "Content-Security-Policy",
        "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'",
    )
    request.end_headers()
    request.wfile.write(payload)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _clock(at_s: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at_s))
