"""A file received in pieces, which survive a crash because each piece has a known hash."""

import hashlib
import io
import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO

from host.files import sync_folder
from wire.codec import digest
from wire.messages import Pieces
from wire.pieces import place


class PartFile:
    """Pieces of a file at their places, in a file or in memory.

    `missing` are the indexes of absent pieces, in order.
    """

    def __init__(self, path: Path, pieces: Pieces, memory: io.BytesIO | None = None) -> None:
        """Begin or continue a file, and hash each piece that is present.

        With `memory`, no file is used.

        Raises:
            OSError: the file cannot be written or read.
        """
        self.path, self.pieces, self.memory = path, pieces, memory
        self.missing: dict[int, None] = {}
        if memory is None:
            path.touch()
        with self._open() as file:
            num_bytes = min(file.seek(0, os.SEEK_END), pieces.num_bytes)
            file.truncate(num_bytes)
            file.seek(0)
            for index, name in enumerate(pieces.pieces):
                offset, size = place(pieces, index)
                if offset + size > num_bytes or digest(file.read(size)) != name:
                    self.missing[index] = None
                    file.seek(offset + size)

    def put(self, index: int, payload: bytes) -> bool:
        """Write a missing piece, and return True if it is present now.

        False means that `payload` is not this piece.

        Raises:
            OSError: the file cannot be written.
        """
        if index not in self.missing:
            return 0 <= index < len(self.pieces.pieces)
        offset, size = place(self.pieces, index)
        if len(payload) != size or digest(payload) != self.pieces.pieces[index]:
            return False
        with self._open() as file:
            file.seek(offset)
            file.write(payload)
        del self.missing[index]
        return True

    def is_whole(self) -> bool:
        """Return True if the whole file has the expected hash; call it only if nothing is missing.

        The file is read in small parts.

        Raises:
            OSError: the file cannot be read.
        """
        if self.memory is not None:
            return digest(self.memory.getvalue()) == self.pieces.digest
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == self.pieces.digest

    def move(self, target: Path) -> None:
        """Rename the file to `target`; it is on the disk when this returns.

        Raises:
            OSError: it cannot be synchronised or renamed.
        """
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
        self.path.replace(target)
        sync_folder(target.parent)

    def _open(self) -> AbstractContextManager[IO[bytes]]:
        if self.memory is not None:
            return nullcontext(self.memory)
        return self.path.open("r+b")
