"""Workers in this process: one after the other; in threads where graphs do their work without the
interpreter's lock; or many at a time whose graphs are run together."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from math import ceil

from simulation.engine.graphs.batched import BatchedGraphs
from simulation.engine.workers.device_host import DeviceHost, DeviceResult, Models
from wire.messages import Plan


class Inline:
    """One device after the other."""

    def __init__(self, host: DeviceHost) -> None:
        self._host = host

    def run(
        self, plans: Sequence[Plan], models: Models, summed: bool = False
    ) -> Iterator[DeviceResult]:
        for plan in plans:
            yield self._host.carry_out(plan, models)

    def close(self) -> None:
        pass


class Threads:
    """So many devices at a time."""

    def __init__(self, host: DeviceHost, count: int) -> None:
        self._host, self._pool = host, ThreadPoolExecutor(count, "shoal-worker")

    def run(
        self, plans: Sequence[Plan], models: Models, summed: bool = False
    ) -> Iterator[DeviceResult]:
        futures = [self._pool.submit(self._host.carry_out, plan, models) for plan in plans]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            for future in futures:
                future.cancel()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


class Batched:
    """Up to `count` devices at a time, each in a thread of its own; the thread that asks for
    results runs their graphs together."""

    def __init__(self, host: DeviceHost, graphs: BatchedGraphs, count: int) -> None:
        """`graphs`: those of the host."""
        self._host, self._graphs, self._count = host, graphs, count
        self._pool = ThreadPoolExecutor(count, "shoal-device")

    def run(
        self, plans: Sequence[Plan], models: Models, summed: bool = False
    ) -> Iterator[DeviceResult]:
        rendezvous = self._graphs.rendezvous
        size = ceil(len(plans) / ceil(len(plans) / self._count))
        for first in range(0, len(plans), size):
            wave = plans[first : first + size]
            rendezvous.expect(len(wave))
            futures = [self._pool.submit(self._carry_out, plan, models) for plan in wave]
            try:
                while rendezvous.answer(self._graphs.together):
                    pass
            except BaseException:
                rendezvous.close()
                raise
            for future in futures:
                yield future.result()

    def close(self) -> None:
        self._graphs.rendezvous.close()
        self._pool.shutdown(cancel_futures=True)

    def _carry_out(self, plan: Plan, models: Models) -> DeviceResult:
        with self._graphs.rendezvous.taking_part():
            return self._host.carry_out(plan, models)
