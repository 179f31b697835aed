"""Failures that a device survived: counted by cause, and logged so that a rare defect shows in a
flood of others."""

import logging
import traceback
from collections import Counter
from dataclasses import dataclass, field

from wire.errors import ShoalError

log = logging.getLogger("shoal.edge")

LOGGED = 10
"""Number of failures of a cause that are logged one by one; then one in ten, in a hundred, and
so on."""


@dataclass(frozen=True)
class Incidents:
    """The counts of one device; `counts` is by cause."""

    device_id: str
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, what: str, error: Exception) -> None:
        """Count that something failed, or was ignored, and the client goes on. An error that Shoal
        raises, and one of the operating system, explain themselves; of any other the first has its
        traceback."""
        foreseen = isinstance(error, ShoalError | OSError)
        cause = f"{what}: {type(error).__name__}"
        if not foreseen:
            frames = traceback.extract_tb(error.__traceback__)
            place = f"{frames[-1].name}:{frames[-1].lineno}" if frames else "nowhere"
            cause += f" at {place}"
        self.counts[cause] += 1
        number = self.counts[cause]
        if number <= LOGGED or number == 10 ** (len(str(number)) - 1):
            text = (
                f"{what} device={self.device_id} times={number} {type(error).__name__}: "
                f"{str(error)[:1000]}"
            )
            log.log(
                logging.WARNING if foreseen else logging.ERROR,
                "%s",
                text,
                exc_info=error if not foreseen and number == 1 else None,
            )
