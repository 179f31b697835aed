"""Brokers for the tests."""

import socket

from tests.support.waiting import wait_until


def wait_for_port(port: int, patience_s: float = 10.0) -> None:
    """Return when something accepts connections on a loopback port."""
    with wait_until(
        lambda: socket.create_connection(("127.0.0.1", port), timeout=0.5),
        patience_s,
        lambda: f"nothing listens on port {port}",
    ):
        pass
