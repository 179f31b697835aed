"""What a device knows of the aggregator's clock (SPEC.md, 'Time'); pure, but for a clock that
cannot be set."""

import math
from collections.abc import Callable

from wire.messages import AggregatorStatus


class AggregatorTime:
    """The `at_s` of the latest epoch that says most, plus the time since it came: never later than
    the aggregator's own clock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: seconds since any moment."""
        self._clock = clock
        self._epoch = -1
        self._at_s = self._came_s = -math.inf

    def hear(self, status: AggregatorStatus) -> bool:
        """Set the clock by a status; False if it is of an epoch that is over, and so to be ignored.
        A later epoch may set it back."""
        if status.epoch < self._epoch:
            return False
        if math.isfinite(status.at_s) and (status.epoch > self._epoch or status.at_s > self.now_s):
            self._epoch, self._at_s, self._came_s = status.epoch, status.at_s, self._clock()
        return True

    @property
    def now_s(self) -> float:
        """Unix time; minus infinity before the first status."""
        return (
            self._at_s + (self._clock() - self._came_s) if math.isfinite(self._at_s) else -math.inf
        )
