"""Run the jobs of a comparison in processes, and store each result as a file.

An interrupted comparison resumes where it stopped. A comparison that is extended runs only the
missing jobs.
"""

import json
import multiprocessing as mp
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import partial
from multiprocessing.managers import SyncManager
from pathlib import Path
from threading import Thread
from typing import Any

from msgspec.structs import asdict

from algorithms.composition import AlgorithmSpec
from algorithms.outside import blaming
from host.files import write_atomically
from host.threads import num_cores
from simulation.comparison.runs import Job, data_of, fleet_of, run_job
from simulation.datasets.windows import FleetData
from simulation.simulate import SimulationResult, check_settings


def check_jobs(
    jobs: Sequence[Job], folder: Path, data: Callable[[Job], FleetData] = data_of
) -> list[FleetData]:
    """Check each algorithm once on each data set without training, and return the fleets' data.

    The check uses the first job of each pair whose result is not yet in `folder`. `data` returns
    the fleet data of a job.

    Raises:
        ShoalError: a job cannot run: its data, partition, model or hyperparameters are invalid, or
        its settings do not fit each other.
    """
    fleets: dict[tuple[AlgorithmSpec, str], FleetData] = {}
    for job in sorted(jobs, key=lambda job: job.data):  # the cache holds two data sets
        key = job.settings.algorithm, job.data
        if key not in fleets and _kept(folder, job) is None:
            fleets[key] = data(job)
            check_settings(fleets[key], job.settings)
    return list(fleets.values())


def run_all(
    jobs: Sequence[Job],
    folder: Path,
    workers: int | None = None,
    on_round: Callable[[Job, int], None] = lambda _job, _round: None,
    run: Callable[[Job, Callable[[int], None]], dict[str, Any]] = run_job,
    keep: Callable[[Job, SimulationResult], None] | None = None,
) -> list[dict[str, Any]]:
    """Run the jobs whose result is not yet in `folder`, and return all results in order.

    Each job runs in a process with one thread. With one worker, `run` runs every job in this
    process. `keep` is what the other processes pass to `run_job`. `on_round` is called with a job
    and its number of finished rounds; for a finished job this is the number of all its rounds.

    Raises:
        ShoalError: a job cannot run; the error is that of the first such job. Finished results
        remain in `folder`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    missing = [job for job in jobs if _kept(folder, job) is None]
    for job in jobs:
        if job not in missing:
            on_round(job, job.settings.rounds)
    count = min(workers or num_cores(), len(missing))
    if count == 1:
        for job in missing:
            _keep(folder, job, run(job, partial(on_round, job)))
    elif missing:
        _run_in_processes(missing, folder, count, on_round, keep)
    return [json.loads(_path(folder, job).read_bytes()) for job in jobs]


def _run_in_processes(
    jobs: Sequence[Job],
    folder: Path,
    count: int,
    on_round: Callable[[Job, int], None],
    keep: Callable[[Job, SimulationResult], None] | None,
) -> None:
    fleet_of.cache_clear()  # frees memory: each process loads its own data
    context = mp.get_context("spawn")
    manager = SyncManager(ctx=context)
    manager.start(_end_with_the_parent)
    with manager, ProcessPoolExecutor(count, context, _end_with_the_parent) as pool:
        heard = manager.Queue()
        # Ctrl-C is blocked until all processes have started. They inherit the block, so that only
        # this process receives Ctrl-C; it then ends the others.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            running: dict[Future[dict[str, Any]], int] = {
                pool.submit(_work, job, i, heard, keep): i for i, job in enumerate(jobs)
            }
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        # the pool has no public way to stop a running job
        processes = list(pool._processes.values())
        try:
            while running:
                futures, _ = wait(running, timeout=0.5, return_when=FIRST_COMPLETED)
                while not heard.empty():
                    i, number = heard.get()
                    on_round(jobs[i], number)
                for future in futures:
                    job = jobs[running.pop(future)]
                    _keep(folder, job, future.result())
                    on_round(job, job.settings.rounds)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.terminate()
            raise


def _work(
    job: Job, number: int, heard: Any, keep: Callable[[Job, SimulationResult], None] | None
) -> dict[str, Any]:
    with blaming():  # names the place: a traceback stays in its process
        return run_job(job, lambda done: heard.put((number, done)), workers=1, keep=keep)


def _path(folder: Path, job: Job) -> Path:
    return folder / f"{job.key}.json"


def _kept(folder: Path, job: Job) -> dict[str, Any] | None:
    """Return the stored result of a job, or None if the file is missing or damaged.

    A job without a usable result runs again.
    """
    try:
        result = json.loads(_path(folder, job).read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return result if isinstance(result, dict) and "accuracy" in result else None


def _keep(folder: Path, job: Job, result: Mapping[str, Any]) -> None:
    about = {"data": job.data, "settings": asdict(job.settings)}
    text = json.dumps({"job": about, **result}, indent=1, default=str) + "\n"
    write_atomically(_path(folder, job), text.encode())


def _end_with_the_parent() -> None:
    """End this process as soon as the process that started it ends in any way."""
    parent = mp.parent_process()
    assert parent is not None, "this process was not started by another one"

    def wait() -> None:
        parent.join()
        os._exit(1)

    Thread(target=wait, daemon=True, name="parent").start()
