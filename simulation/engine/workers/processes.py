"""Worker processes of one thread each, for graphs that hold the interpreter's lock.

The processes are started, not forked: with a GPU, autograd starts a thread for it at the first
gradient, and a process forked after that cannot compute any. Data and graphs are written to a
folder once, a round's models once a round; all processes map the same pages of them. Private
tensors lie in the memory-mapped store.
"""

import itertools
import mmap
import pickle
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, as_completed
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cloudpickle
from loky import ProcessPoolExecutor
from loky.process_executor import TerminatedWorkerError

from algorithms import outside
from simulation.engine.workers.device_host import (
    DeviceHost,
    DeviceResult,
    Models,
    Workers,
    in_one_thread,
)
from wire.errors import ShoalError
from wire.messages import Plan


@contextmanager
def processes(host: DeviceHost, count: int) -> Iterator[Workers]:
    """Yield `count` worker processes."""
    numbers = itertools.count(1)

    def run(plans: Sequence[Plan], models: Models, summed: bool = False) -> Iterator[DeviceResult]:
        models_file = folder / f"models-{next(numbers)}"
        try:
            _write(models_file, dict(models))
            futures = [executor.submit(_carry_out, host_file, models_file, plan) for plan in plans]
            for future in as_completed(futures):
                yield future.result()
        finally:
            for file in (models_file, models_file.with_suffix(".arrays")):
                file.unlink(missing_ok=True)

    with TemporaryDirectory(prefix="shoal-workers-") as name:
        folder = Path(name)
        host_file = folder / "host"
        _write(host_file, (host.spec, host.store))
        with process_pool(count) as executor:
            yield run


@contextmanager
def process_pool(count: int) -> Iterator[Executor]:
    """Yield an executor over `count` processes, which end with the context.

    Raises:
        ShoalError: one of the processes ended.
    """
    for module in outside.modules():
        cloudpickle.register_pickle_by_value(module)
    executor = ProcessPoolExecutor(count, initializer=_begin)
    try:
        yield executor
    except TerminatedWorkerError as error:
        raise ShoalError(
            f"A worker process of the simulation ended, perhaps for lack of memory: {error}"
        ) from None
    finally:
        executor.shutdown(kill_workers=True)


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    in_one_thread()


def _carry_out(host: Path, models: Path, plan: Plan) -> DeviceResult:
    return _host(host).carry_out(plan, _models(models))


@lru_cache(1)
def _host(path: Path) -> DeviceHost:
    spec, store = _read(path)
    return DeviceHost(spec, spec.make_graphs(), store)


@lru_cache(1)
def _models(path: Path) -> Models:
    models: Models = _read(path)
    return models


def _write(path: Path, value: Any) -> None:
    """Pickle a value; its arrays go into a file beside it."""
    arrays: list[pickle.PickleBuffer] = []
    payload = cloudpickle.dumps(value, 5, buffer_callback=arrays.append)
    sizes = [array.raw().nbytes for array in arrays]
    path.write_bytes(pickle.dumps((payload, sizes)))
    with path.with_suffix(".arrays").open("wb") as file:
        for array in arrays:
            file.write(array.raw())
        file.write(b"\0")  # an empty file cannot be mapped


def _read(path: Path) -> Any:
    payload, sizes = pickle.loads(path.read_bytes())
    with path.with_suffix(".arrays").open("rb") as file:
        pages = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    parts = [
        pages[end - size : end]
        for end, size in zip(itertools.accumulate(sizes), sizes, strict=True)
    ]
    return pickle.loads(payload, buffers=parts)
