"""When to try again what had no answer; pure, but for a clock."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from wire.messages import AggregatorStatus

RESEND_S = (10.0, 300.0)
"""What had no answer is tried again after so many seconds, then after twice as many, up to the
second value."""
LEAST_RETRY_S = 1.0


@dataclass
class Backoff:
    """`at_s` is the time of the next attempt, by the clock; infinity if nothing waits for an
    answer."""

    clock: Callable[[], float]
    at_s: float = math.inf
    pause_s: float = RESEND_S[0]

    def begin(self) -> None:
        """Something new waits for an answer."""
        self.pause_s = RESEND_S[0]
        self.at_s = self.clock() + self.pause_s

    def tried(self) -> None:
        """It was tried again; the next pause is twice as long."""
        self.pause_s = min(self.pause_s * 2, RESEND_S[1])
        self.at_s = self.clock() + self.pause_s

    def after(self, pause_s: float) -> None:
        """The other side asked to be left alone for so long."""
        self.at_s = self.clock() + max(LEAST_RETRY_S, pause_s)

    def end(self) -> None:
        """Nothing waits any more."""
        self.at_s, self.pause_s = math.inf, RESEND_S[0]


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
