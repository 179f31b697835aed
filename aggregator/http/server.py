"""HTTP server in a thread of its own, with few connections: more would use up file descriptors.

Blobs need them.
"""

import asyncio
import ipaddress
import logging
import socket
import threading
import time
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from wire.errors import ConfigError

log = logging.getLogger("shoal.aggregator")

CONNECTIONS = 64
"""Maximum number of open connections.

A further one replaces the oldest idle connection of the address with the most, or is closed.
"""
OF_ONE = 16
"""Maximum number of open connections of one address.

A further one replaces the oldest idle connection of the address, or is closed.
"""
SILENT_S = 10.0
"""Seconds (up to twice as many) after which a connection without a whole request is closed."""


class _Bounded(H11Protocol):
    """HTTP/1.1 over one connection, which is closed if it is idle or there are too many."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.since_s = self.loop.time()
        self.address = self.client[0] if self.client else ""
        there = [
            other
            for other in self.connections
            if isinstance(other, _Bounded) and not other.transport.is_closing()
        ]
        counts = Counter(other.address for other in there)
        crowded = self.address if counts[self.address] > OF_ONE else None
        if crowded is None and len(there) > CONNECTIONS:
            crowded = counts.most_common(1)[0][0]
        quiet = [
            other
            for other in there
            if other.address == crowded and other is not self and not other.asks
        ]
        surplus = min(quiet, key=lambda other: other.since_s, default=self)
        if crowded is not None:
            surplus.transport.abort()
        if crowded is None or surplus is not self:
            self.loop.call_later(SILENT_S, self._close_if_silent, None)

    @property
    def asks(self) -> bool:
        """True if a whole request on the connection is not answered yet."""
        return (
            self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete
        )

    def _close_if_silent(self, before: Any) -> None:
        """Close the connection if it has been idle since the last look.

        `before`: the request of that look.
        """
        if self.transport.is_closing():
            return
        cycle = self.cycle
        if cycle is before and not self.asks:
            self.transport.abort()
        else:
            self.loop.call_later(SILENT_S, self._close_if_silent, cycle)


class _Impatient(asyncio.SelectorEventLoop):
    """Event loop whose TLS connections have `SILENT_S` for their handshake."""

    async def create_server(self, *arguments: Any, **options: Any) -> Any:
        if options.get("ssl") is not None:
            options["ssl_handshake_timeout"] = SILENT_S
        return await super().create_server(*arguments, **options)


class HttpServer(AbstractContextManager["HttpServer"]):
    """Server that takes an address, and serves an application there while the context is open.

    The address is taken from the beginning; connections are refused until there is an application.
    Another application may replace it meanwhile.
    """

    def __init__(self, host: str, port: int, pair: Path | None = None, proxies: str = "") -> None:
        """Take the address.

        `pair`: path of a file with a key and its certificate, for HTTPS. `proxies`: addresses and
        networks of reverse proxies, separated by commas; their ``X-Forwarded-For`` and
        ``X-Forwarded-Proto`` are believed, and no others.

        Raises:
            ConfigError: the address cannot be used, or a proxy is not an address or network.
        """
        self._where, self._pair = f"{host}:{port}", pair
        self._proxies = [part.strip() for part in proxies.split(",") if part.strip()]
        for proxy in self._proxies:
            try:
                ipaddress.ip_network(proxy)
            except ValueError:
                raise ConfigError(
                    "http_proxies must be addresses or networks, such as 127.0.0.1 or 10.0.0.0/8, "
                    f"got {proxy!r}"
                ) from None
        self._socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((host, port))
        except (OSError, OverflowError, UnicodeError) as error:
            self._socket.close()
            problem = getattr(error, "strerror", "") or error
            raise ConfigError(
                f"HTTP on {self._where}: the address cannot be used (is the port taken?): {problem}"
            ) from None
        name = self._socket.getsockname()
        self.address: tuple[str, int] = (str(name[0]), int(name[1]))
        """Address and port; the system has chosen the port if 0 was requested."""
        self._where = f"{host}:{self.address[1]}"
        self._api: Any = None
        self._server: uvicorn.Server | None = None
        self._thread = threading.Thread()

    def serve(self, api: Any) -> None:
        """Answer with this application from now on.

        Raises:
            ConfigError: another process has begun to listen on the address meanwhile.
        """
        self._api = api
        if self._server is not None:
            return

        async def answer(scope: Any, receive: Any, send: Any) -> None:
            await self._api(scope, receive, send)

        config = uvicorn.Config(
            answer,
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            http=_Bounded,
            timeout_keep_alive=5,
            ssl_certfile=self._pair,
            server_header=False,
            proxy_headers=bool(self._proxies),
            forwarded_allow_ips=self._proxies,
        )
        self._server = server = uvicorn.Server(config)

        def run() -> None:
            with asyncio.Runner(loop_factory=_Impatient) as runner:
                runner.run(server.serve([self._socket]))

        self._thread = threading.Thread(target=run, name="http", daemon=True)
        self._thread.start()
        while not server.started:
            if not self._thread.is_alive():
                raise ConfigError(
                    f"HTTP on {self._where}: the address cannot be used (is the port taken?)"
                )
            time.sleep(0.02)
        log.info("HTTP opened: address=%s://%s", "https" if self._pair else "http", self._where)

    def __exit__(self, *_error: object) -> None:
        if self._server is not None:
            self._server.should_exit = True
            self._thread.join(timeout=5.0)
        self._socket.close()
