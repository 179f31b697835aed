"""Labels from a file that another program writes: its last line is the present label.

Lines have the format of `edge_client.live.labelling.labels.read_statement`. Lines that are appended
are separate statements. Links are not followed, and only regular files are read.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path

from edge_client.live.labelling.labels import Labels, read_statement
from edge_client.live.sources.tally import Tally
from host.files import open_regular
from wire.errors import DataError

LOOK_S = 0.5
MOST_BYTES = 2**16
"""Maximum number of bytes that are read, from the end of the file."""
MOST_LINES = 1000
"""Maximum number of new lines that are read at once, the newest."""


class LabelFile:
    """Watcher of a file. Lines from before the start of the process are not read again."""

    def __init__(self, path: Path, labels: Labels, wall: Callable[[], float] = time.time) -> None:
        self._path, self._labels, self._wall = path, labels, wall
        self._ignored = Tally(f"a label in {path}")
        self._seen = self._stamp()
        self._size = self._seen[1] if self._seen else 0

    def start(self, stop: Callable[[], bool]) -> threading.Thread:
        """Watch in a separate thread."""

        def watch() -> None:
            while not stop():
                try:
                    self.look()
                except Exception as error:
                    self._ignored.add(error)
                time.sleep(LOOK_S)

        thread = threading.Thread(target=watch, name="label-file", daemon=True)
        thread.start()
        return thread

    def look(self) -> None:
        """Read what was written since the last look."""
        stamp = self._stamp()
        if stamp is None or stamp == self._seen:
            return
        grown = self._seen is not None and stamp[0] == self._seen[0] and stamp[1] > self._size
        try:
            with open_regular(self._path) as file:
                file.seek(max(self._size if grown else 0, stamp[1] - MOST_BYTES))
                lines = file.read(MOST_BYTES).splitlines()
        except OSError as error:
            self._ignored.add(error.strerror or str(error))
            return
        self._seen, self._size = stamp, stamp[1]
        added = (
            [line for line in lines[-MOST_LINES:] if line.strip()] if grown else lines[-1:] or [b""]
        )
        for line in added:
            try:
                read_statement(line, self._wall(), self._labels)
            except (DataError, OSError) as error:
                self._ignored.add(str(error))
            except Exception as error:
                self._ignored.add(error)

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            status = self._path.lstat()
        except OSError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns
