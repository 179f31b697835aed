"""What somebody who asks nothing, or too much, costs those who ask: real sockets, and the real application of enrolment."""

import logging
import socket
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing

import pytest

from aggregator.adapters import http_server
from aggregator.adapters.http_server import OF_ONE, HttpServer
from aggregator.enrolment.api import create_enrolment_api
from simulation.local.broker import free_port
from tests.enrolment import EnrolmentBench, enrolment_bench
from wire.enrolment import AUTHORITY, RENEW

HALF = f"POST {RENEW} HTTP/1.1\r\nHost: x\r\nContent-Length: 20000\r\n\r\n{{"


@pytest.fixture
def port(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(http_server, "SILENT_S", 1.0)
    bench: EnrolmentBench
    with enrolment_bench(tmp_path_factory.mktemp("service")) as bench, HttpServer("127.0.0.1", port := free_port()) as server:
        server.serve(create_enrolment_api(bench.office))
        yield port


def answered(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{AUTHORITY}", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.mark.parametrize("text", ["", "GET / HTTP/1.1\r\nHost:", HALF], ids=["nothing", "half a header", "half a body"])
def test_connections_that_bring_no_whole_request_are_closed(port: int, text: str) -> None:
    held = [socket.create_connection(("127.0.0.1", port)) for _ in range(OF_ONE)]
    for connection in held:
        connection.sendall(text.encode())
    time.sleep(0.3)
    assert not answered(port), "one address has so many connections and no more"
    end_s = time.monotonic() + 10
    while not answered(port):
        assert time.monotonic() < end_s
    for connection in held:
        connection.close()


def test_one_that_asked_and_then_sends_half_a_header_is_closed_too(port: int) -> None:
    with closing(socket.create_connection(("127.0.0.1", port))) as connection:
        connection.sendall(f"GET {AUTHORITY} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        connection.settimeout(10)
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
        connection.sendall(b"GET / HTTP/1.1\r\n")
        began_s = time.monotonic()
        while connection.recv(10_000):
            pass
        assert time.monotonic() - began_s < 5


def test_connections_that_end_early_are_few_lines_of_the_log_and_no_traceback(port: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(30):
            with closing(socket.create_connection(("127.0.0.1", port))) as connection:
                connection.sendall(HALF.encode())
        time.sleep(0.5)
        assert answered(port)
    told = [record.getMessage() for record in caplog.records]
    assert 0 < len(told) <= 6, told
    assert not [record for record in caplog.records if record.exc_info]
    assert "the connection ended after 1 bytes" in told[0]
