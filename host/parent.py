"""A process that works for another one, and ends with it."""

import multiprocessing as mp
import os
from threading import Thread


def end_with_the_parent() -> None:
    """To be called first in a process that another one has started: it ends when that one does,
    however that one was ended."""
    parent = mp.parent_process()
    assert parent is not None, "this process was not started by another one"

    def wait() -> None:
        parent.join()
        os._exit(1)

    Thread(target=wait, daemon=True, name="parent").start()
