"""Workers in this process: one plan after the other, threads, or devices whose graphs run together.

Threads are for graphs that run without the interpreter's lock.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from math import ceil

from simulation.engine.graphs.batched import BatchedGraphs
from simulation.engine.workers.device_host import DeviceHost, DeviceResult, Models, Workers
from wire.messages import Plan


def inline(
    host: DeviceHost, plans: Sequence[Plan], models: Models, summed: bool = False
) -> Iterator[DeviceResult]:
    """Carry out plans one after the other."""
    del summed
    for plan in plans:
        yield host.carry_out(plan, models)


@contextmanager
def threads(host: DeviceHost, count: int) -> Iterator[Workers]:
    """Yield workers that carry out `count` plans at a time."""

    def run(plans: Sequence[Plan], models: Models, summed: bool = False) -> Iterator[DeviceResult]:
        futures = [pool.submit(host.carry_out, plan, models) for plan in plans]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            for future in futures:
                future.cancel()

    pool = ThreadPoolExecutor(count, "shoal-worker")
    try:
        yield run
    finally:
        pool.shutdown(cancel_futures=True)


def wave_size(num_plans: int, count: int) -> int:
    """Return the size of equal waves of at most `count` plans."""
    return ceil(num_plans / ceil(num_plans / count))


@contextmanager
def batched(host: DeviceHost, graphs: BatchedGraphs, count: int) -> Iterator[Workers]:
    """Yield workers that carry out up to `count` plans at a time, each in a thread of its own.

    The thread that asks for results runs their graphs together. `graphs` are those of the host.
    """
    rendezvous = graphs.rendezvous

    def carry_out(plan: Plan, models: Models) -> DeviceResult:
        with rendezvous.taking_part():
            return host.carry_out(plan, models)

    def run(plans: Sequence[Plan], models: Models, summed: bool = False) -> Iterator[DeviceResult]:
        size = wave_size(len(plans), count)
        for first in range(0, len(plans), size):
            wave = plans[first : first + size]
            rendezvous.expect(len(wave))
            futures = [pool.submit(carry_out, plan, models) for plan in wave]
            try:
                while rendezvous.answer(graphs.together):
                    pass
            except BaseException:
                rendezvous.close()
                raise
            for future in futures:
                yield future.result()

    pool = ThreadPoolExecutor(count, "shoal-device")
    try:
        yield run
    finally:
        rendezvous.close()
        pool.shutdown(cancel_futures=True)
