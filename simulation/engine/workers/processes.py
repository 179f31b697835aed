"""Worker processes of one thread each, for graphs that hold the interpreter's lock.

They are forked, so that data, model and compiled code are the parent's own pages. Private tensors
lie in the memory-mapped arena; the tensors of an update are written into rows of shared memory; a
round's models are sent once to each process.
"""

import mmap
import multiprocessing as mp
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from math import prod
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
import torch

from simulation.engine.workers.device_host import DeviceHost, DeviceResult, Models, Workers
from wire.arrays.tensors import Array, Tensors
from wire.errors import ShoalError
from wire.messages import Plan

IN_FLIGHT = 4
"""Plans that a process has at a time: the next one must not wait for the parent."""

RowLayout = tuple[tuple[str, tuple[int, ...]], ...]


@contextmanager
def processes(host: DeviceHost, count: int, width: int) -> Iterator[Workers]:
    """Yield `count` worker processes; an update may have up to `width` float32 values."""
    context = mp.get_context("fork")
    memory = mmap.mmap(-1, max(1, count * IN_FLIGHT * width * 4))
    values: Array = np.frombuffer(memory, np.float32)[: count * IN_FLIGHT * width]
    rows = values.reshape(count * IN_FLIGHT, width)
    links: list[Connection] = []
    started = []
    for worker in range(count):
        ours, theirs = context.Pipe()
        own_rows = rows[worker * IN_FLIGHT : (worker + 1) * IN_FLIGHT]
        process = context.Process(
            target=_work, args=(host, theirs, own_rows, [*links, ours]), daemon=True
        )
        process.start()
        theirs.close()
        links.append(ours)
        started.append(process)

    def run(plans: Sequence[Plan], models: Models, summed: bool = False) -> Iterator[DeviceResult]:
        for link in links:
            link.send(models)
        waiting = iter(plans)
        running = 0
        for number, link in enumerate(links * IN_FLIGHT):
            plan = next(waiting, None)
            if plan is not None:
                link.send((number // len(links), plan))
                running += 1
        while running:
            for ready in wait(links):
                worker = links.index(ready)  # type: ignore[arg-type]
                try:
                    row, layout, result = links[worker].recv()
                except EOFError:
                    code = started[worker].exitcode
                    raise ShoalError(
                        f"a worker process of the simulation ended (exit code {code}): out of "
                        "memory?"
                    ) from None
                if layout is not None:
                    tensors = _read(rows[worker * IN_FLIGHT + row], layout)
                    result = replace(result, tensors=tensors)
                running -= 1
                plan = next(waiting, None)
                if plan is not None:
                    links[worker].send((row, plan))
                    running += 1
                yield result

    try:
        yield run
    finally:
        for link in links:
            with suppress(OSError):
                link.send(None)
        for process in started:
            process.join(5.0)
            if process.is_alive():
                process.terminate()


def _work(host: DeviceHost, link: Connection, rows: Array, others: Sequence[Connection]) -> None:
    """A worker: models of a round, then plans, until None."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in others:
        other.close()
    torch.set_num_threads(1)
    models: Models = {}
    with suppress(EOFError, OSError):
        while (message := link.recv()) is not None:
            if not isinstance(message, tuple):
                models = message
                continue
            row, plan = message
            result = host.carry_out(plan, models)
            layout = _write(rows[row], result.tensors)
            link.send((row, layout, result if layout is None else replace(result, tensors={})))


def _write(row: Array, tensors: Tensors) -> RowLayout | None:
    """Put an update's tensors into a row; None where they do not fit, which then go through the
    pipe."""
    if sum(v.size for v in tensors.values()) > row.size or any(
        v.dtype != np.float32 for v in tensors.values()
    ):
        return None
    at = 0
    for value in tensors.values():
        row[at : at + value.size] = value.ravel()
        at += value.size
    return tuple((name, value.shape) for name, value in tensors.items())


def _read(row: Array, layout: RowLayout) -> dict[str, Any]:
    flat, tensors, at = row[: sum(prod(shape) for _, shape in layout)].copy(), {}, 0
    for name, shape in layout:
        size = prod(shape)
        tensors[name] = flat[at : at + size].reshape(shape)
        at += size
    return tensors
