"""Memory of a process and everything it started, and the end of all of them.

Linux's proportional set size (PSS, /proc/PID/smaps_rollup): a page that n processes share counts
1/n in each, so their sum counts it once. Resident sizes added up would count torch's libraries once
per process.
"""

import contextlib
import threading
import time
from pathlib import Path

import psutil

INTERVAL_S = 0.05
SHARE = 0.02
"""Reading takes at most this share of one core: where there are many processes it is done less
often."""


def parse_pss(text: str) -> int:
    """Bytes, from the text of a `smaps_rollup`.

    Raises:
        ValueError: it has no line `Pss:`.
    """
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == "Pss":
            return 1024 * int(value.removesuffix("kB"))
    raise ValueError(f"no line 'Pss:' in {text[:80]!r}")


def read_pss(pid: int) -> int:
    """Bytes of one process; 0 when it is gone."""
    try:
        return parse_pss(Path(f"/proc/{pid}/smaps_rollup").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return 0
    except ValueError:
        return 0  # a process that ended and was not waited for yet has an empty file


class Tree:
    """A process and its descendants: the largest sum of their memory while the context is open;
    when it closes, none is left.

    Descendants are remembered, for a daemon that changed its session or lost its parent is in no
    process group of ours.
    """

    def __init__(self, pid: int) -> None:
        self.peak_bytes = 0
        self._seen = {pid: psutil.Process(pid)}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Tree":
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join()
        self.end()

    def sample(self) -> int:
        """Bytes of all of them now."""
        listed = [(process, process.info["ppid"]) for process in psutil.process_iter(["ppid"])]
        alive = {pid for pid, process in self._seen.items() if process.is_running()}
        while found := {p.pid: p for p, parent in listed if parent in alive and p.pid not in alive}:
            self._seen |= found
            alive |= found.keys()
        total = sum(read_pss(pid) for pid in alive)
        self.peak_bytes = max(self.peak_bytes, total)
        return total

    def end(self, patience_s: float = 5.0) -> list[str]:
        """Terminate and then kill whatever still runs, the first process included. Returns their
        names."""
        self.sample()
        left = [p for p in self._seen.values() if _alive(p)]
        names = [_name(p) for p in left]
        for ask in (psutil.Process.terminate, psutil.Process.kill):
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    ask(process)
            _, left = psutil.wait_procs(left, patience_s)
        return names

    def _watch(self) -> None:
        while not self._stop.is_set():
            started_s = time.thread_time()
            self.sample()
            self._stop.wait(max(INTERVAL_S, (time.thread_time() - started_s) / SHARE))


def _alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def _name(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return str(process.name())
    return f"process {process.pid}"
