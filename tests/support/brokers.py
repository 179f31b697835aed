"""Brokers for the tests."""

import socket
import time


def wait_for_port(port: int, patience_s: float = 10.0) -> None:
    """Return when something accepts connections on a loopback port."""
    end_s = time.monotonic() + patience_s
    while time.monotonic() < end_s:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=0.5).close()
            return
        except OSError:
            time.sleep(0.05)
    raise TimeoutError(f"nothing listens on port {port}")
