"""Retries of requests without an answer, and the aggregator's clock. Pure, but for a clock."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from wire.messages import AggregatorStatus

RESEND_S = (10.0, 300.0)
"""First and longest pause before a retry (seconds); every retry doubles the pause."""
LEAST_RETRY_S = 1.0


@dataclass
class Backoff:
    """Time of the next retry of a request that waits for an answer.

    `at_s` is that time by the clock, infinity if nothing waits for an answer.
    """

    clock: Callable[[], float]
    at_s: float = math.inf
    pause_s: float = RESEND_S[0]

    def begin(self) -> None:
        """Start the retries of a new request with the shortest pause."""
        self.pause_s = RESEND_S[0]
        self.at_s = self.clock() + self.pause_s

    def tried(self) -> None:
        """Double the pause after a retry."""
        self.pause_s = min(self.pause_s * 2, RESEND_S[1])
        self.at_s = self.clock() + self.pause_s

    def after(self, pause_s: float) -> None:
        """Put the next retry off by the pause that the other side demands (seconds)."""
        self.at_s = self.clock() + max(LEAST_RETRY_S, pause_s)

    def end(self) -> None:
        """Stop the retries: nothing waits for an answer."""
        self.at_s, self.pause_s = math.inf, RESEND_S[0]


class AggregatorTime:
    """Aggregator's time, estimated from its statuses; never later than its own clock.

    The estimate is the latest `at_s` of the latest epoch, plus the time since that status came.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start without a status.

        Args:
            clock: seconds since any fixed moment.
        """
        self._clock = clock
        self._epoch = -1
        self._at_s = self._came_s = -math.inf

    def hear(self, status: AggregatorStatus) -> bool:
        """Set the clock by a status, and return False if its epoch is over.

        A status of an epoch that is over is to be ignored. A later epoch may set the clock back.
        """
        if status.epoch < self._epoch:
            return False
        if math.isfinite(status.at_s) and (status.epoch > self._epoch or status.at_s > self.now_s):
            self._epoch, self._at_s, self._came_s = status.epoch, status.at_s, self._clock()
        return True

    @property
    def now_s(self) -> float:
        """Unix time in seconds; minus infinity before the first status."""
        return (
            self._at_s + (self._clock() - self._came_s) if math.isfinite(self._at_s) else -math.inf
        )

    def for_epoch(self, epoch: int) -> float:
        """Return the time by which a plan of this epoch is judged.

        It is minus infinity before a status of this epoch or a later one: the aggregator's clock
        may have been set since the last status.
        """
        return self.now_s if epoch <= self._epoch else -math.inf
