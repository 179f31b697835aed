"""How many cores there are for this process, and how many threads torch computes with."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def num_cores() -> int:
    """The number of cores that this process may use; all of the machine's where the system does not
    say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def one_thread() -> Iterator[None]:
    """While the context is open, torch computes with one thread.

    For small models that is faster, the more so beside other work, since threads wait for each
    other by spinning. It also gives the same bits every time: a float sum depends on the order in
    which threads add.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
