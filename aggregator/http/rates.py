"""How often somebody may ask: a token bucket for each caller, and one for all."""

import math
import threading
from collections import OrderedDict
from collections.abc import Callable

MOST_CALLERS = 4096


class Bucket:
    """`burst` at once, and `per_s` a second after that."""

    def __init__(self, burst: float, per_s: float, now_s: float) -> None:
        self._burst, self._per_s, self._left, self._at_s = burst, per_s, burst, now_s

    def take(self, now_s: float) -> bool:
        """Take one; whether there was one."""
        self._left = min(self._burst, self._left + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        if self._left < 1:
            return False
        self._left -= 1
        return True

    @property
    def wait_s(self) -> int:
        """Whole seconds after the last look until there is one to take."""
        return max(0, math.ceil((1 - self._left) / self._per_s))


class Rates:
    """Limits by caller: by address, where many boards may be behind one, or by the name of a
    token."""

    def __init__(
        self,
        clock: Callable[[], float],
        burst: float = 40.0,
        per_s: float = 1.0,
        burst_all: float = 400.0,
        per_s_all: float = 50.0,
    ):
        """`clock`: seconds, from a clock that cannot be set."""
        self._clock, self._burst, self._per_s = clock, burst, per_s
        self._all, self._lock = Bucket(burst_all, per_s_all, clock()), threading.Lock()
        self._by_caller: OrderedDict[str, Bucket] = OrderedDict()

    def permits(self, caller: str) -> bool:
        """Whether this caller may ask now."""
        return self.wait_s(caller) == 0

    def wait_s(self, caller: str) -> int:
        """Take one of what this caller has; 0 if there was one, else the whole seconds until there
        is one."""
        now_s = self._clock()
        with self._lock:
            bucket = self._by_caller.pop(caller, None) or Bucket(self._burst, self._per_s, now_s)
            self._by_caller[caller] = bucket
            if len(self._by_caller) > MOST_CALLERS:
                self._by_caller.popitem(last=False)
            if not bucket.take(now_s):
                return max(1, bucket.wait_s)
            return 0 if self._all.take(now_s) else max(1, self._all.wait_s)
