"""A queue of events on a virtual clock: the plain way to play what policies compute column by
column."""

import heapq
import math
from typing import Generic, TypeVar

Event = TypeVar("Event")


class VirtualClock:
    """Seconds since the start of a simulation; moves only when it is told to, and never back."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def advance(self, to_s: float) -> None:
        """Go to `to_s`.

        Raises:
            ValueError: that is in the past, or no number.
        """
        if not to_s >= self.now_s:
            raise ValueError(
                f"virtual time {to_s} s after {self.now_s} s: time does not run backwards"
            )
        self.now_s = to_s


class EventQueue(Generic[Event]):
    """Events by their virtual time; those of the same second in the order in which they were
    added."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self._heap: list[tuple[float, int, Event]] = []
        self._added = 0

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_s(self) -> float:
        """When the next event happens; infinity where there is none."""
        return self._heap[0][0] if self._heap else math.inf

    def add(self, at_s: float, event: Event) -> None:
        """Let `event` happen at `at_s`.

        Raises:
            ValueError: that is in the past, or not a time.
        """
        if not self.clock.now_s <= at_s < math.inf:
            raise ValueError(f"an event at {at_s} s, but it is {self.clock.now_s} s")
        heapq.heappush(self._heap, (at_s, self._added, event))
        self._added += 1

    def pop(self) -> Event:
        """The next event; the clock moves to its time.

        Raises:
            IndexError: there is none.
        """
        at_s, _, event = heapq.heappop(self._heap)
        self.clock.advance(at_s)
        return event
