"""Number of cores for this process, and number of threads for torch."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def num_cores() -> int:
    """Return the number of cores that this process may use.

    It is the machine's number if the system does not report the process's.
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Make torch compute with one thread within this context.

    For small models that is faster, most of all on a busy machine, because threads wait for each
    other by spinning. It also gives the same bits every time: a float sum depends on the order in
    which threads add.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
