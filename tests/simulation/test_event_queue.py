"""The queue of events that policies are compared with: in order, and never backwards."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulation.event_queue import EventQueue, VirtualClock


class TestClock:
    @given(st.lists(st.integers(0, 5)))
    def test_events_come_in_order_and_first_come_first_served(self, times: list[int]) -> None:
        queue: EventQueue[int] = EventQueue()
        for number, at_s in enumerate(times):
            queue.add(at_s, number)
        came = []
        while queue:
            expected_s = queue.next_s
            came.append(queue.pop())
            assert queue.clock() == expected_s == times[came[-1]]
        assert came == sorted(range(len(times)), key=lambda number: times[number])
        assert queue.next_s == math.inf

    def test_time_does_not_run_backwards(self) -> None:
        clock = VirtualClock(5.0)
        for to_s in (4.9, math.nan):
            with pytest.raises(ValueError, match="backwards"):
                clock.advance(to_s)
        queue: EventQueue[str] = EventQueue()
        queue.add(3.0, "a")
        queue.pop()
        for at_s in (2.0, math.inf, math.nan):
            with pytest.raises(ValueError, match="it is 3"):
                queue.add(at_s, "b")
