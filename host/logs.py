"""Lines of a log that nobody can forge."""

import logging
import sys
from types import TracebackType

from wire.errors import printable

ExceptionInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"


class OneLine(logging.Formatter):
    """Every record is one line, whatever is in its message: what is not printable is escaped. The lines of a traceback follow it, each
    behind a bar, so that none of them looks like a record."""

    def format(self, record: logging.LogRecord) -> str:
        record.exc_text = None  # what another formatter made of it is not escaped
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  the name is logging's
        return printable(super().formatMessage(record))

    def formatException(self, ei: ExceptionInfo) -> str:  # noqa: N802
        return _barred(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802
        return _barred(super().formatStack(stack_info))


def log_to_stderr(level: str) -> None:
    """Log records of this level and above go to standard error, one line each."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine(FORMAT))
    logging.basicConfig(level=level, handlers=[handler])


def _barred(text: str) -> str:
    return "\n".join(f"  | {printable(line)}" for line in text.split("\n"))
