"""Cost of idle and greedy HTTP clients to others: real sockets, and the real application of
enrolment."""

import asyncio
import logging
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from aggregator.enrolment.api import create_enrolment_api
from aggregator.http import server as http_server
from aggregator.http.server import OF_ONE, HttpServer
from simulation.local.broker import free_port
from tests.support.enrolment import EnrolmentBench, enrolment_bench
from wire.identity.enrolment import AUTHORITY, RENEW

HALF = f"POST {RENEW} HTTP/1.1\r\nHost: x\r\nContent-Length: 20000\r\n\r\n{{"


@pytest.fixture
def port(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[int]:
    monkeypatch.setattr(http_server, "SILENT_S", 1.0)
    bench: EnrolmentBench
    with (
        enrolment_bench(tmp_path_factory.mktemp("service")) as bench,
        HttpServer("127.0.0.1", port := free_port()) as server,
    ):
        server.serve(create_enrolment_api(bench.office))
        yield port


def answered(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{AUTHORITY}", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.mark.parametrize("asked", [0, 1])
def test_the_port_that_is_used_is_logged(caplog: pytest.LogCaptureFixture, asked: int) -> None:
    caplog.set_level(logging.INFO)
    with HttpServer("127.0.0.1", free_port() if asked else 0) as server:
        server.serve(lambda *_: None)
        assert server.address[1] > 0
        assert f"HTTP opened: address=http://127.0.0.1:{server.address[1]}" in caplog.text


@pytest.mark.parametrize(
    "text", ["", "GET / HTTP/1.1\r\nHost:", HALF], ids=["nothing", "half a header", "half a body"]
)
def test_connections_that_bring_no_whole_request_are_closed(port: int, text: str) -> None:
    held = [socket.create_connection(("127.0.0.1", port)) for _ in range(OF_ONE)]
    for connection in held:
        connection.sendall(text.encode())
    assert answered(port), "who asks takes the place of one that asks nothing"
    for connection in held:
        connection.settimeout(60)
        assert ended(connection)
        connection.close()


def test_one_address_has_so_many_requests_at_a_time_and_no_more(port: int) -> None:
    """Connections that are being answered are not closed for a new one."""
    http, slow = threading.Event(), HttpServer("127.0.0.1", other := free_port())
    entered = threading.Semaphore(0)

    async def wait(scope: Any, receive: Any, send: Any) -> None:
        entered.release()
        while not http.is_set():
            await asyncio.sleep(0.02)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"here"})

    with slow:
        slow.serve(wait)
        held = [socket.create_connection(("127.0.0.1", other)) for _ in range(OF_ONE)]
        for connection in held:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert all(entered.acquire(timeout=60) for _ in held)
        with closing(socket.create_connection(("127.0.0.1", other))) as late:
            late.settimeout(60)
            assert ended(late)
        http.set()
        for connection in held:
            connection.settimeout(60)
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
            connection.close()


def ended(connection: socket.socket) -> bool:
    """Return True if the other end has closed the connection, with no answer but that the request
    is invalid."""
    try:
        while told := connection.recv(10_000):
            assert told.startswith(b"HTTP/1.1 400")
    except ConnectionError:
        return True
    return True


def test_one_that_asked_and_then_sends_half_a_header_is_closed_too(port: int) -> None:
    with closing(socket.create_connection(("127.0.0.1", port))) as connection:
        connection.sendall(f"GET {AUTHORITY} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        connection.settimeout(60)
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
        connection.sendall(b"GET / HTTP/1.1\r\n")
        while connection.recv(10_000):
            pass


def test_connections_that_end_early_are_few_lines_of_the_log_and_no_traceback(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(30):
            with closing(socket.create_connection(("127.0.0.1", port))) as connection:
                connection.sendall(HALF.encode())
        end_s = time.monotonic() + 60
        while not (answered(port) and caplog.records):
            assert time.monotonic() < end_s
    told = [record.getMessage() for record in caplog.records]
    assert 0 < len(told) <= 6, told
    assert not [record for record in caplog.records if record.exc_info]
    assert "the connection ended after 1 bytes" in told[0]
