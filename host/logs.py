"""Log lines that cannot be forged, and signs of life for the supervisor that restarts this process.

Signs of life go to systemd (sd_notify(3), without a library), and into the time of a file, which a
container's health check reads.
"""

import contextlib
import json
import logging
import os
import re
import socket
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Literal, get_args

from wire.errors import printable

ExceptionInfo = (
    tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
)
FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
Form = Literal["text", "json"]
FORMS = get_args(Form)
STARTS_S = 120
"""Seconds by which a start in progress may exceed the limit in the systemd unit."""
ALIVE_FILE = "SHOAL_ALIVE_FILE"
"""Environment variable with the path of a file whose time is the process's last sign of life."""
_PLACE = re.compile(r"(?:(?P<name>[a-z_]+)=)?%[-+ #0]*[0-9]*(?:\.[0-9]+)?(?P<kind>[a-zA-Z%])")


class OneLine(logging.Formatter):
    """Formatter that writes each record on one line and escapes characters that are not printable.

    The lines of a traceback follow, each behind a bar, so that none of them looks like a record.
    """

    def format(self, record: logging.LogRecord) -> str:
        record.exc_text = None  # text cached by another formatter is not escaped
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  the name is logging's
        return printable(super().formatMessage(record))

    def formatException(self, ei: ExceptionInfo) -> str:  # noqa: N802
        return _barred(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802
        return _barred(super().formatStack(stack_info))


class JsonLine(logging.Formatter):
    """Formatter that writes each record as one JSON object on a line.

    Its keys are ``time`` (UTC), ``level``, ``logger``, ``message``, ``traceback`` if there is one,
    the formatter's `fields`, and the ``name=%s`` of the message's format. The content of an
    argument never makes a key.
    """

    def __init__(self, fields: Mapping[str, str]) -> None:
        super().__init__()
        self._fields = dict(fields)

    def format(self, record: logging.LogRecord) -> str:
        written = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            written["traceback"] = self.formatException(record.exc_info)
        named: dict[str, str | int | float] = {}
        if isinstance(record.args, tuple) and isinstance(record.msg, str):
            places = [place for place in _PLACE.finditer(record.msg) if place["kind"] != "%"]
            for place, value in zip(places, record.args, strict=False):
                if place["name"]:
                    named[place["name"]] = value if isinstance(value, int) else str(value)
        return json.dumps({**named, **self._fields, **written})


def log_to_stderr(level: str, form: str = "text", **fields: str) -> None:
    """Send log records of this level and above to standard error, one line each.

    `form` is "text" or "json"; JSON records have `fields` as additional keys.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLine(fields) if form == "json" else OneLine(FORMAT))
    logging.basicConfig(level=level, handlers=[handler])


def _barred(text: str) -> str:
    return "\n".join(f"  | {printable(line)}" for line in text.split("\n"))


def alive() -> None:
    """Tell the supervisor, if there is one, that the process is ready and at work."""
    _notify("READY=1\nWATCHDOG=1")


def at_work() -> None:
    """Tell the supervisor that the process is at work, ready or still starting."""
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
