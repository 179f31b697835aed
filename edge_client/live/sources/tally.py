"""Counter of skipped input, which logs often enough to be seen and too rarely to fill a disk."""

import logging
import traceback
from dataclasses import dataclass
from pathlib import Path

from wire.errors import printable

log = logging.getLogger("shoal.edge")

LONGEST = 300
"""Maximum number of characters of a reason in the log."""


@dataclass
class Tally:
    """Counter that logs the 1st, 10th, 100th, 1000th and every 10,000th time.

    `what`: name of the skipped thing, such as ``a line``.
    """

    what: str
    count: int = 0

    def add(self, why: str | Exception) -> None:
        """Count a skipped input. `why`: the reason, or the unforeseen exception that lost it.

        The log entry of an exception has the place where it was raised.
        """
        self.count += 1
        if self.count not in (1, 10, 100, 1000) and self.count % 10_000:
            return
        text = str(why)
        text = printable(text if len(text) <= LONGEST else f"{text[:LONGEST]}...")
        if isinstance(why, str):
            log.warning("Input skipped: input=%s times=%d: %s", self.what, self.count, text)
            return
        frames = traceback.extract_tb(why.__traceback__)
        where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "nowhere"
        kind = type(why).__name__
        message = "Input lost: input=%s times=%d: %s at %s: %s"
        log.error(message, self.what, self.count, kind, where, text)
