"""Lines of a log that nobody can forge."""

import json
import logging
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from types import TracebackType

from wire.errors import printable

ExceptionInfo = (
    tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
)
FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
FORMS = ("text", "json")
_PLACE = re.compile(r"(?:(?P<name>[a-z_]+)=)?%[-+ #0]*[0-9]*(?:\.[0-9]+)?(?P<kind>[a-zA-Z%])")


class OneLine(logging.Formatter):
    """Every record is one line, whatever is in its message: what is not printable is escaped. The
    lines of a traceback follow it, each behind a bar, so that none of them looks like a record."""

    def format(self, record: logging.LogRecord) -> str:
        record.exc_text = None  # what another formatter made of it is not escaped
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  the name is logging's
        return printable(super().formatMessage(record))

    def formatException(self, ei: ExceptionInfo) -> str:  # noqa: N802
        return _barred(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802
        return _barred(super().formatStack(stack_info))


class JsonLine(logging.Formatter):
    """Every record is one JSON object on a line: ``time`` (UTC), ``level``, ``logger``,
    ``message``, ``traceback`` where there is one, the fields that it is made with, and the
    ``name=%s`` of the message's own text. What stands in an argument makes no field."""

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
        return json.dumps({**_named(record), **self._fields, **written})


def log_to_stderr(level: str, form: str = "text", **fields: str) -> None:
    """Log records of this level and above go to standard error, one line each: as text, or as JSON
    with these fields besides."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLine(fields) if form == "json" else OneLine(FORMAT))
    logging.basicConfig(level=level, handlers=[handler])


def _named(record: logging.LogRecord) -> dict[str, str | int | float]:
    """The arguments of a record that its text names, as in ``device=%s``."""
    if not isinstance(record.args, tuple) or not isinstance(record.msg, str):
        return {}
    places = [found for found in _PLACE.finditer(record.msg) if found["kind"] != "%"]
    named = (
        (found["name"], value)
        for found, value in zip(places, record.args, strict=False)
        if found["name"]
    )
    return {name: value if isinstance(value, int) else str(value) for name, value in named}


def _barred(text: str) -> str:
    return "\n".join(f"  | {printable(line)}" for line in text.split("\n"))
