"""Waiting for a condition."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(
    condition: Callable[[], T | None],
    patience_s: float = 60.0,
    explain: Callable[[], str] = lambda: "the condition did not come true",
) -> T:
    """Return the first true value of a condition, which is looked at 50 times a second.

    An OSError of the condition counts as false: a service or a file may not be there yet.

    Raises:
        TimeoutError: there was none within the patience, with the explanation.
    """
    end_s, failure = time.monotonic() + patience_s, None
    while time.monotonic() < end_s:
        try:
            if value := condition():
                return value
        except OSError as error:
            failure = error
        time.sleep(0.02)
    raise TimeoutError(explain()) from failure
