"""Counts what is passed over, and says so in the log: often enough to be seen, too rarely to fill a
disk."""

import logging
import traceback
from pathlib import Path

from wire.errors import printable

log = logging.getLogger("shoal.edge")

LONGEST = 300
"""Characters of a reason in the log."""


class Tally:
    """Counts; the log gets the 1st, 10th, 100th, 1000th and each 10,000th."""

    def __init__(self, what: str) -> None:
        """`what`: that is passed over, such as ``a line``."""
        self._what = what
        self.count = 0

    def add(self, why: str) -> None:
        """Count one."""
        if self._is_said():
            log.warning("%s is passed over times=%d: %s", self._what, self.count, _short(why))

    def add_unforeseen(self, error: Exception) -> None:
        """Count one that nobody has thought of; the log gets where it was raised."""
        if self._is_said():
            frames = traceback.extract_tb(error.__traceback__)
            where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "nowhere"
            log.error(
                "%s was lost times=%d: %s at %s: %s",
                self._what,
                self.count,
                type(error).__name__,
                where,
                _short(str(error)),
            )

    def _is_said(self) -> bool:
        self.count += 1
        return self.count in (1, 10, 100, 1000) or self.count % 10_000 == 0


def _short(text: str) -> str:
    return printable(text if len(text) <= LONGEST else f"{text[:LONGEST]}...")
