"""What went wrong and was survived: counted by its cause, and logged so that neither a flood nor a
rare defect is lost."""

import logging
import traceback
from collections import Counter

from wire.errors import ShoalError

log = logging.getLogger("shoal.edge")

LOGGED = 10
"""Of each cause, so many are logged one by one; then one in ten, in a hundred, and so on."""


class Incidents:
    """The counts of one device; `counts` is by cause."""

    def __init__(self, device_id: str) -> None:
        self._device_id = device_id
        self.counts: Counter[str] = Counter()

    def ignored(self, what: str, error: Exception) -> None:
        """Something that came was not usable, and is as if it had not come."""
        self._count(f"ignored {what}", error)

    def survived(self, where: str, error: Exception) -> None:
        """Something failed, and the client goes on."""
        self._count(f"failed {where}", error)

    def _count(self, what: str, error: Exception) -> None:
        """An error that Shoal raises, and one of the operating system, explain themselves; of any
        other the first has its traceback."""
        foreseen = isinstance(error, ShoalError | OSError)
        cause = f"{what}: {type(error).__name__}" + ("" if foreseen else f" at {_place(error)}")
        self.counts[cause] += 1
        number = self.counts[cause]
        if number <= LOGGED or number == 10 ** (len(str(number)) - 1):
            text = (
                f"{what} device={self._device_id} times={number} {type(error).__name__}: "
                f"{str(error)[:1000]}"
            )
            log.log(
                logging.WARNING if foreseen else logging.ERROR,
                "%s",
                text,
                exc_info=error if not foreseen and number == 1 else None,
            )


def _place(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].name}:{frames[-1].lineno}" if frames else "nowhere"
