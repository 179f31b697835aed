"""Failures that a device survived, counted by cause.

The log thins out frequent causes, so that a rare defect stays visible.
"""

import logging
import traceback
from collections import Counter
from dataclasses import dataclass, field

from wire.errors import ShoalError

log = logging.getLogger("shoal.edge")

LOGGED = 10
"""Number of failures of a cause that are all logged. Later only the 100th, 1000th, ... are."""


@dataclass(frozen=True)
class Incidents:
    """Failures of one device. `counts` is the number of failures by cause."""

    device_id: str
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, what: str, error: Exception) -> None:
        """Count and log a failure after which the client continues.

        Errors of Shoal and of the operating system are warnings. Any other error is a defect: it is
        logged as an error, the first one of its cause with a traceback.
        """
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
                f"{what}: device={self.device_id} times={number} reason={type(error).__name__}: "
                f"{str(error)[:1000]}"
            )
            log.log(
                logging.WARNING if foreseen else logging.ERROR,
                "%s",
                text,
                exc_info=error if not foreseen and number == 1 else None,
            )
