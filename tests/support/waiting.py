"""Waiting for a condition."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(
    condition: Callable[[], T],
    patience_s: float = 60.0,
    explain: Callable[[], str] = lambda: "the condition did not come true",
) -> T:
    """Return the first true value of a condition, which is looked at 20 times a second.

    Raises:
        TimeoutError: there was none within the patience, with the explanation.
    """
    end_s = time.monotonic() + patience_s
    while not (value := condition()):
        if time.monotonic() > end_s:
            raise TimeoutError(explain())
        time.sleep(0.05)
    return value
