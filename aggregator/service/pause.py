"""A pause of a run: why nothing goes on, and whether that is over."""

import logging
from collections.abc import Callable

from aggregator.core.ports import BlobLost, Clock, StorageFailed

log = logging.getLogger("shoal.aggregator")

BUSY_S = 30.0
"""Seconds after which a device sends its update again where it cannot be taken now."""
RETRY_S = 5.0
"""Seconds between two looks at whether the cause of a pause is gone."""


class Pause:
    """None at first. `reason` is empty while there is none."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._cause: Callable[[], object] | None = None
        self.reason = ""
        self.look_at_s = float("inf")
        """When to look again whether the cause is gone."""

    def begin(self, reason: str, cause: Callable[[], object] | None) -> None:
        """Pause. `cause` raises as long as what stands in the way does; without it, only the
        operator's word ends the pause."""
        log.error("paused: %s", reason)
        self.reason, self._cause = reason, cause
        self.look_at_s = self._clock() + RETRY_S

    def end(self) -> None:
        """End the pause, if there is one."""
        self.reason, self.look_at_s = "", float("inf")

    def ends(self, told: bool) -> bool:
        """End the pause if its cause is gone, or if the operator says so (`told`) and nothing can
        be looked at; whether it ended."""
        self.look_at_s = self._clock() + RETRY_S
        try:
            if self._cause is not None:
                self._cause()
            elif not told:
                return False
        except (StorageFailed, BlobLost) as error:
            log.info("still paused: %s", error)
            return False
        log.warning("going on after the pause: %s", self.reason)
        self.end()
        return True
