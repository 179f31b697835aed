"""A NATS server with MQTT, for the tests."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from simulation.local.broker import free_port
from simulation.local.fleet import stop_processes
from tests.support.brokers import wait_for_port


@contextmanager
def nats_server(folder: Path, added: str = "") -> Iterator[str]:
    """Start a NATS server and yield its host and port; skip where Debian's package is missing."""
    binary = shutil.which("nats-server", path="/usr/sbin:/usr/local/bin:/usr/bin")
    if binary is None:
        pytest.skip("NATS is not installed: apt-get install nats-server would run this")
    port = free_port()
    config = folder / "nats.conf"
    config.write_text(
        f"port: {free_port()}\nhost: 127.0.0.1\nserver_name: test\n"
        f'jetstream {{ store_dir: "{folder / "jetstream"}" }}\n'
        f'mqtt {{ host: 127.0.0.1, port: {port}, ack_wait: "1s" }}\n{added}'
    )
    log = (folder / "nats.log").open("w")
    process = subprocess.Popen([binary, "-c", str(config)], stdout=log, stderr=log)
    wait_for_port(port)
    yield f"127.0.0.1:{port}"
    stop_processes([process])
    log.close()
