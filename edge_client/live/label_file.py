"""Labels from a file that another program writes: its last line is what is happening now, as `edge_client.live.labels.read_statement` reads
it. Lines that are added are statements of their own."""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from edge_client.live.labels import Labels, read_statement
from wire.errors import DataError

log = logging.getLogger("shoal.edge")

LOOK_S = 0.5
MOST_BYTES = 2**16
"""A file that is longer is read from there on."""


class LabelFile:
    """Watches a file. Lines that were there before the process are not read again."""

    def __init__(self, path: Path, labels: Labels, wall: Callable[[], float] = time.time) -> None:
        self._path, self._labels, self._wall = path, labels, wall
        self._seen = self._stamp()
        self._size = self._seen[1] if self._seen else 0

    def start(self, stop: Callable[[], bool]) -> threading.Thread:
        """Watch in a thread of its own."""

        def watch() -> None:
            while not stop():
                self.look()
                time.sleep(LOOK_S)

        thread = threading.Thread(target=watch, name="label-file", daemon=True)
        thread.start()
        return thread

    def look(self) -> None:
        """Take in what was written since the last look."""
        stamp = self._stamp()
        if stamp is None or stamp == self._seen:
            return
        try:
            with self._path.open("rb") as file:
                grown = self._seen is not None and stamp[0] == self._seen[0] and stamp[1] > self._size
                file.seek(self._size if grown else max(0, stamp[1] - MOST_BYTES))
                lines = file.read(MOST_BYTES).splitlines()
        except OSError as error:
            log.warning("labels %s: %s", self._path, error.strerror)
            return
        self._seen, self._size = stamp, stamp[1]
        for line in lines if grown else lines[-1:] or [b""]:
            try:
                read_statement(line, self._wall(), self._labels)
            except (DataError, OSError) as error:
                log.warning("labels %s: %s", self._path, error)

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns
