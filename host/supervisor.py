"""What a process says to whatever started it, and restarts it when it says nothing more: to systemd
(sd_notify(3), without a library), and by the time of a file, which a container's health check looks
at."""

import contextlib
import os
import socket
from pathlib import Path

STARTS_S = 120
"""By so many seconds a start that is at work may take longer than the unit permits."""


ALIVE_FILE = "SHOAL_ALIVE_FILE"
"""The variable that names a file. Its time is when the process last said that it is at work."""


def alive() -> None:
    """Say that the process is ready and at work. Nothing is said where nobody listens."""
    _notify("READY=1\nWATCHDOG=1")


def at_work() -> None:
    """Say that the process is at work, whether it is ready or still starts."""
    _notify(f"WATCHDOG=1\nEXTEND_TIMEOUT_USEC={STARTS_S * 1_000_000}")


def _notify(text: str) -> None:
    if file := os.environ.get(ALIVE_FILE, ""):
        with contextlib.suppress(OSError):
            Path(file).touch(mode=0o644)
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as link,
    ):
        link.sendto(text.encode(), "\0" + address[1:] if address.startswith("@") else address)
