"""How often an address may ask: a token bucket for each, and one for all."""

import threading
from collections import OrderedDict
from collections.abc import Callable

MOST_ADDRESSES = 4096


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


class Rates:
    """Limits by address. A board asks a few times in its life, but many may be behind one address."""

    def __init__(
        self, clock: Callable[[], float], burst: float = 40.0, per_s: float = 1.0, burst_all: float = 400.0, per_s_all: float = 50.0
    ):
        """`clock`: seconds, from a clock that cannot be set."""
        self._clock, self._burst, self._per_s = clock, burst, per_s
        self._all, self._lock = Bucket(burst_all, per_s_all, clock()), threading.Lock()
        self._by_address: OrderedDict[str, Bucket] = OrderedDict()

    def permits(self, address: str) -> bool:
        """Whether somebody at this address may ask now."""
        now_s = self._clock()
        with self._lock:
            bucket = self._by_address.pop(address, None) or Bucket(self._burst, self._per_s, now_s)
            self._by_address[address] = bucket
            if len(self._by_address) > MOST_ADDRESSES:
                self._by_address.popitem(last=False)
            return bucket.take(now_s) and self._all.take(now_s)
