"""Workers in this process: one after the other, or in threads where graphs do their work without the interpreter's lock."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from simulation.engine.site import Done, Models, Site
from wire.messages import Plan


class Inline:
    """One device after the other."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def run(self, plans: Sequence[Plan], models: Models) -> Iterator[Done]:
        for plan in plans:
            yield self._site.carry_out(plan, models)

    def close(self) -> None:
        pass


class Threads:
    """So many devices at a time."""

    def __init__(self, site: Site, count: int) -> None:
        self._site, self._pool = site, ThreadPoolExecutor(count, "shoal-worker")

    def run(self, plans: Sequence[Plan], models: Models) -> Iterator[Done]:
        futures = [self._pool.submit(self._site.carry_out, plan, models) for plan in plans]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            for future in futures:
                future.cancel()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
