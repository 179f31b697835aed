"""Failures that a device survived, counted by cause.

The log thins out frequent causes, so that a rare defect stays visible.
"""

import logging
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from edge_client.core.report import Machine, report_of, text_of
from wire.errors import ShoalError, printable
from wire.messages import ErrorReport

log = logging.getLogger("shoal.edge")

LOGGED = 10
"""Number of failures of a cause that are all logged. Later only the 100th, 1000th, ... are."""


@dataclass
class Incidents:
    """Failures of one device. `counts` is the number of failures by cause.

    `now` returns Unix time, and `machine` the machine. `last` is the report of the last failure
    that is not stored yet.
    """

    device_id: str
    now: Callable[[], float] = time.time
    machine: Callable[[], Machine] = Machine
    counts: Counter[str] = field(default_factory=Counter)
    last: ErrorReport | None = None

    def note(self, what: str, error: Exception) -> None:
        """Make the report of a failure."""
        try:
            self.last = report_of(self.device_id, what, error, self.now(), self.machine())
        except Exception:  # for instance because memory is lacking
            self.last = ErrorReport(self.device_id, 0.0, what, type(error).__name__)

    def add(self, what: str, error: Exception, reported: bool = True) -> None:
        """Count and log a failure after which the client continues, and make its report.

        Errors of Shoal and of the operating system are warnings. Any other error is a defect: it is
        logged as an error, the first one of its cause with a traceback. `reported`: False if the
        failure is not the device's, so that no report is made of it.
        """
        if reported:
            self.note(what, error)
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
                f"{printable(text_of(error))[:1000]}"
            )
            log.log(
                logging.WARNING if foreseen else logging.ERROR,
                "%s",
                text,
                exc_info=error if not foreseen and number == 1 else None,
            )
