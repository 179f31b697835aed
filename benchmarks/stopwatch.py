"""Durations of calls."""

import time
from collections.abc import Callable


def seconds_of(call: Callable[[], object], turns: int) -> list[float]:
    """Seconds that each of so many calls takes, by the wall clock."""
    seconds = []
    for _ in range(turns):
        began_s = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began_s)
    return seconds
