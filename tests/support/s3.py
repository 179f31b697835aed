"""A real S3-compatible server for tests: moto's, in a process of its own."""

import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulation.local.broker import free_port
from simulation.local.fleet import start_process, stop_processes
from tests.support.brokers import wait_for_port

BUCKET = "fleet"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "shoal",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "us-east-1",
}


class S3Server:
    """A server with one bucket; what it has is lost when it stops."""

    def __init__(self, folder: Path, port: int) -> None:
        self._folder, self.port = folder, port
        self.start()

    @property
    def environment(self) -> dict[str, str]:
        """Return the configuration of a client of this server."""
        return {**CREDENTIALS, "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{self.port}"}

    def start(self) -> None:
        """Start the server, and make the bucket."""
        self.process = start_process(
            ["-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)], self._folder / "s3.log"
        )
        wait_for_port(self.port, 60)
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/{BUCKET}", method="PUT")
        urllib.request.urlopen(request, timeout=10).close()

    def stop(self) -> None:
        """Stop the server."""
        stop_processes([self.process])


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    pytest.importorskip(
        "moto", reason="moto is not installed: pip install 'shoal[dev]' would run this"
    )
    server = S3Server(tmp_path_factory.mktemp("s3"), free_port())
    yield server
    server.stop()


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, for clients of this process."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(os.environ, "AWS_EC2_METADATA_DISABLED", "true")
    return s3_server
