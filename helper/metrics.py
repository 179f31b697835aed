"""Metrics of a helper for Prometheus: numbers, and no name of a device or a question."""

import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer
from typing import Any
from urllib.parse import urlsplit

from helper.core.ledger import Ledger
from wire.errors import ConfigError
from wire.secret.messages import Answer, SumRefusal


@dataclass
class HelperMetrics:
    """Counts since the start of a helper, and its ledger at the time of a scrape."""

    ledger: Callable[[], Ledger]
    is_connected: bool = False
    requests: Counter[str] = field(
        default_factory=lambda: Counter({"agreement": 0, "mask-sums": 0, "none": 0})
    )
    """Number of requests by their answer."""
    sum_s: float | None = None
    """Seconds that the last sum of masks took; None before the first one."""

    def count(self, answer: Answer | None) -> None:
        """Count a request by its answer; None for a request that was ignored."""
        match answer:
            case None:
                self.requests["none"] += 1
            case SumRefusal():
                self.requests[answer.problem.partition(":")[0]] += 1
            case _:
                self.requests[str(answer.__struct_config__.tag)] += 1

    def text(self) -> str:
        """Return the metrics as they are now, in Prometheus' format."""
        ledger = self.ledger()
        sizes = [len(part) for part in ledger.parts]
        lines = []
        for name, kind, about, values in (
            (
                "connected",
                "gauge",
                "Connection to the broker (1: connected).",
                {"": int(self.is_connected)},
            ),
            (
                "requests_total",
                "counter",
                "Number of requests since the helper was started, by the answer: agreement, "
                "mask-sums, the reason of a refusal, or none to what is no request of a service "
                "that a root key vouches for.",
                {
                    f'{{answer="{answer}"}}': number
                    for answer, number in sorted(self.requests.items())
                },
            ),
            ("sums", "gauge", "Number of sums in the ledger.", {"": len(ledger.sets)}),
            ("devices", "gauge", "Number of devices of the ledger's sums.", {"": sum(sizes)}),
            (
                "smallest_part",
                "gauge",
                "Smallest number of devices that no combination of the ledger's sums tells apart; "
                "absent before the first sum.",
                {"": min(sizes)} if sizes else {},
            ),
            (
                "sum_seconds",
                "gauge",
                "Time that the last sum of masks took (seconds); absent before the first one since "
                "the helper was started.",
                {} if self.sum_s is None else {"": self.sum_s},
            ),
        ):
            metric = f"shoal_helper_{name}"
            lines += [f"# HELP {metric} {about}", f"# TYPE {metric} {kind}"]
            lines += [f"{metric}{label} {value}" for label, value in values.items()]
        return "\n".join([*lines, ""])


class _Handler(BaseHTTPRequestHandler):
    """Handler of one connection."""

    server_version, sys_version = "shoal", ""
    timeout = 5.0
    server: "_Server"

    def do_GET(self) -> None:
        """Send the metrics."""
        if self.path != "/metrics":
            self.send_error(404)
            return
        payload = self.server.text().encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing of a scrape."""


class _Server(TCPServer):
    """Server of the metrics, which answers one connection at a time."""

    allow_reuse_address = True

    def __init__(self, host: str, port: int, text: Callable[[], str]) -> None:
        self.text = text
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a connection that broke."""


@contextlib.contextmanager
def serve_metrics(address: str, text: Callable[[], str]) -> Iterator[None]:
    """Serve metrics at an address, HOST:PORT, in a separate thread.

    Raises:
        ConfigError: the address is none, or cannot be used.
    """
    try:
        parts = urlsplit(f"//{address}")
        host, port = parts.hostname or "", parts.port or 0
        is_address = bool(host.encode("idna") and port) and parts.netloc == address
    except ValueError:
        is_address = False
    if not is_address:
        raise ConfigError(
            f"--metrics must be HOST:PORT with a port of 1 to 65535, for example 127.0.0.1:9110, "
            f"got {address!r}"
        )
    try:
        server = _Server(host, port, text)
    except OSError as error:
        raise ConfigError(
            f"--metrics {address}: {error.strerror}; choose an address of this machine and a port "
            "that is free"
        ) from None
    with server:
        threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()
