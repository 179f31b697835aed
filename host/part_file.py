"""A file that comes in pieces. What is written of it outlives a crash, since each piece is known by
its hash."""

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
    """Pieces in a file at their places, or in memory. `missing`: the indexes of those that are not
    there, in order."""

    def __init__(self, path: Path, pieces: Pieces, memory: io.BytesIO | None = None) -> None:
        """Begin a file, or go on with one: each piece that is there is hashed. With `memory`, that
        is in the place of the file.

        Raises:
            OSError: it cannot be written or read.
        """
        self.path, self.pieces, self.memory = path, pieces, memory
        self.missing: dict[int, None] = {}
        if memory is None:
            path.touch()
        with self._open() as file:
            held = min(file.seek(0, os.SEEK_END), pieces.num_bytes)
            file.truncate(held)
            file.seek(0)
            for index, name in enumerate(pieces.pieces):
                offset, size = place(pieces, index)
                if offset + size > held or digest(file.read(size)) != name:
                    self.missing[index] = None
                    file.seek(offset + size)

    def put(self, index: int, payload: bytes) -> bool:
        """Write a piece that is missing. Returns whether it is there now; if not, its bytes are not
        those of this piece.

        Raises:
            OSError: it cannot be written.
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
        """Whether the file has the hash that it is to have. Only asked when nothing is missing;
        reads it, little by little.

        Raises:
            OSError: it cannot be read.
        """
        if self.memory is not None:
            return digest(self.memory.getvalue()) == self.pieces.digest
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == self.pieces.digest

    def move(self, target: Path) -> None:
        """Give the file its name; it is on the disk when this returns.

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
