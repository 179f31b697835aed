"""Named files of a device's state, in a folder or in memory (for simulations).

A name may have a folder in it, as in ``blobs/SHA256``.
"""

import io
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from host.files import make_folder, sync_folder, write_atomically
from host.part_file import PartFile
from wire.codec import digest
from wire.errors import Malformed
from wire.messages import Pieces

CURRENT, BEFORE, MODELS = "current", "before", "models"
_NUM_BYTES_OF_HASH = 32


def with_hash(content: bytes) -> bytes:
    """Return the payload of a file that is checked when it is read (`without_hash`)."""
    return bytes.fromhex(digest(content)) + content


def without_hash(payload: bytes) -> bytes:
    """Return the content of a payload that `with_hash` made.

    Raises:
        Malformed: its bytes have another hash.
    """
    content = payload[_NUM_BYTES_OF_HASH:]
    if payload != with_hash(content):
        raise Malformed("its bytes have another hash")
    return content


@dataclass(frozen=True)
class FolderFiles:
    """Files in a folder. `MemoryFiles` has the same methods; each may raise OSError.

    Each file is written completely or not at all.

    The model in use and the previous one are folders that other programs may read: ``current`` and
    ``before`` are symbolic links to folders in ``models``. Such a folder is complete before a link
    points to it and never changes afterwards. A program that resolves the link once therefore reads
    the files of a single model.
    """

    folder: Path

    def read(self, name: str, offset: int = 0, size: int = -1) -> bytes | None:
        """Return `size` bytes of a file from an offset on, or None if there is no such file.

        A negative size means all bytes up to the end.
        """
        try:
            with (self.folder / name).open("rb") as file:
                file.seek(offset)
                return file.read(size)
        except FileNotFoundError:
            return None

    def size(self, name: str) -> int:
        """Return the number of bytes of a file, 0 if there is no such file."""
        with suppress(FileNotFoundError):
            return (self.folder / name).stat().st_size
        return 0

    def write(self, name: str, payload: bytes) -> None:
        """Replace a file, completely or not at all."""
        write_atomically(self.folder / name, payload)

    def delete(self, *names: str) -> None:
        """Delete the files that exist, and their partial copies from an interrupted write."""
        for name in names:
            for path in (self.folder / name, self.folder / f"{name}.new"):
                path.unlink(missing_ok=True)

    def names(self, prefix: str) -> list[str]:
        """Return the names with a prefix, ordered by the time of their last write.

        Folders below the prefix's folder are not searched.
        """
        place, _, begin = prefix.rpartition("/")
        paths = [path for path in (self.folder / place).glob("*") if path.name.startswith(begin)]
        paths.sort(key=lambda path: path.stat().st_mtime_ns)
        return [str(path.relative_to(self.folder)) for path in paths]

    def set_aside(self, name: str) -> None:
        """Rename a damaged file to ``NAME.damaged``, or delete it if that fails."""
        path = self.folder / name
        try:
            path.replace(path.with_name(path.name + ".damaged"))
        except OSError:
            path.unlink(missing_ok=True)

    def part(self, name: str, pieces: Pieces) -> PartFile:
        """Return the partial file of a download in pieces: a new one, or the one that exists."""
        return PartFile(self.folder / name, pieces)

    def finish(self, part: PartFile, name: str) -> None:
        """Move a completed partial file to its final name."""
        part.move(self.folder / name)

    def switch(self, place: str, files: Mapping[str, bytes], keep: bool) -> None:
        """Make ``current`` a new folder with these files, in one step.

        Args:
            place: name of the new folder in ``models``.
            files: content of its files by name.
            keep: True if ``before`` becomes the folder that was ``current``.

        Raises:
            OSError: a file cannot be written. The links are unchanged.
        """
        new = self.folder / MODELS / place
        try:
            make_folder(new)
            for name, payload in files.items():
                write_atomically(new / name, payload)
            sync_folder(new.parent)
            used = self._target(CURRENT)
            before = [(BEFORE, used)] if keep and used is not None and used != new else []
            for link, target in (*before, (CURRENT, new)):
                temporary = self.folder / f"{link}.new"
                temporary.unlink(missing_ok=True)
                temporary.symlink_to(target.relative_to(self.folder))
                temporary.replace(self.folder / link)
                sync_folder(self.folder)
        finally:  # remove folders that no link points to
            linked = {self._target(CURRENT), self._target(BEFORE)}
            for path in [path for path in new.parent.glob("*") if path not in linked]:
                shutil.rmtree(path, ignore_errors=True)

    def _target(self, link: str) -> Path | None:
        with suppress(OSError):
            return self.folder / (self.folder / link).readlink()
        return None


@dataclass
class MemoryFiles:
    """Files in memory, with the methods of `FolderFiles`."""

    _files: dict[str, bytes] = field(default_factory=dict)

    def read(self, name: str, offset: int = 0, size: int = -1) -> bytes | None:
        payload = self._files.get(name)
        if payload is None or (offset, size) == (0, -1):
            return payload
        return payload[offset:] if size < 0 else payload[offset : offset + size]

    def size(self, name: str) -> int:
        return len(self._files.get(name, b""))

    def write(self, name: str, payload: bytes) -> None:
        self.delete(name)
        self._files[name] = payload

    def delete(self, *names: str) -> None:
        for name in names:
            self._files.pop(name, None)

    set_aside = delete

    def names(self, prefix: str) -> list[str]:
        return [name for name in self._files if name.startswith(prefix)]

    def part(self, name: str, pieces: Pieces) -> PartFile:
        return PartFile(Path(name), pieces, io.BytesIO())

    def finish(self, part: PartFile, name: str) -> None:
        assert part.memory is not None
        self.write(name, part.memory.getvalue())

    def switch(self, _place: str, files: Mapping[str, bytes], keep: bool) -> None:
        for name in self.names(f"{CURRENT}/"):
            payload = self._files.pop(name)
            if keep:
                self._files[name.replace(CURRENT, BEFORE, 1)] = payload
        self._files |= {f"{CURRENT}/{name}": payload for name, payload in files.items()}


Files = FolderFiles | MemoryFiles
