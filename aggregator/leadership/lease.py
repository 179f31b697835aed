"""The lease on a fleet, while the service's one thread has long work to do."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from host.supervisor import at_work
from wire.messages import LEASE_S

EVERY_S = LEASE_S / 3
"""Seconds between two statuses."""


@contextmanager
def held(announce: Callable[[], None]) -> Iterator[None]:
    """While the context is open, `announce` is called by another thread every `EVERY_S` seconds: a
    service that aggregates for longer than a lease is alive, and no other may take its fleet."""
    over = threading.Event()

    def say() -> None:
        while not over.wait(EVERY_S):
            announce()
            at_work()

    saying = threading.Thread(target=say, name="lease", daemon=True)
    saying.start()
    try:
        yield
    finally:
        over.set()
        saying.join()
