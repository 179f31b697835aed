"""Blobs as files named by their SHA-256."""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from aggregator.ports import BlobLost, StorageFailed
from host.files import file_error, make_folder, sync_folder, write_aside
from wire.codec import digest as digest_of
from wire.errors import ConfigError

WRITERS = 16
"""Number of files that are written in parallel, so that they share the waits for the disk."""
DAMAGED = ".damaged"
DIGEST = re.compile(r"[0-9a-f]{64}")
"""Pattern of the names of blobs."""


def blob_names(folder: Path) -> set[str]:
    """Return the names of the blobs in a folder; other files are never read or deleted as blobs."""
    return (
        {path.name for path in folder.iterdir() if DIGEST.fullmatch(path.name)}
        if folder.is_dir()
        else set()
    )


class BlobFolder:
    """Store of blobs (`aggregator.ports.Blobs`) in a folder, one file per blob.

    A file is written aside, synchronised and renamed, so it is whole or absent. The hash is checked
    before bytes are returned. A damaged file is renamed to ``SHA256.damaged``.
    """

    def __init__(self, folder: Path, may_delete: Callable[[], bool] = lambda: True) -> None:
        """Open the folder, which is made if absent.

        `may_delete`: True if this service may delete blobs; called between the listing and the
        deletion.

        Raises:
            ConfigError: the folder cannot be made.
        """
        try:
            make_folder(folder)
        except OSError as error:
            raise ConfigError(file_error(f"blob folder {folder}", error)) from None
        self._folder, self._may_delete = folder, may_delete
        self._pool = ThreadPoolExecutor(WRITERS, "blobs")

    def put(self, *payloads: bytes) -> list[str]:
        names = [digest_of(payload) for payload in payloads]
        try:
            written = [*self._pool.map(self._write, names, payloads)]
            if any(written):
                sync_folder(self._folder)
        except OSError as error:
            raise StorageFailed(file_error(f"blob folder {self._folder}", error)) from None
        return names

    def get(self, digest: str, offset: int = 0, size: int | None = None) -> bytes:
        path = self._folder / digest
        try:
            with path.open("rb") as file:
                file.seek(offset)
                payload = file.read(-1 if size is None else size)
        except FileNotFoundError:
            raise BlobLost(digest, f"missing in {self._folder}; restore it from a backup") from None
        except OSError as error:
            raise StorageFailed(file_error(f"blob {path}", error)) from None
        if size is None and digest_of(payload) != digest:
            path.replace(path.with_name(digest + DAMAGED))
            detail = (
                f"damaged in {self._folder}, and set aside as {digest}{DAMAGED}; restore it from a "
                "backup"
            )
            raise BlobLost(digest, detail)
        return payload

    def keep(self, digests: set[str]) -> None:
        unneeded = blob_names(self._folder) - digests
        if unneeded and self._may_delete():
            for name in unneeded:
                (self._folder / name).unlink(missing_ok=True)

    def problem(self, digest: str) -> str:
        """Return the fault of a blob, or an empty text; a damaged file is not renamed."""
        try:
            return (
                ""
                if digest_of((self._folder / digest).read_bytes()) == digest
                else "damaged: its bytes do not match its hash"
            )
        except OSError as error:
            return f"not readable: {error.strerror}"

    def drop(self, digests: set[str], own: bool = False) -> None:
        try:
            for name in digests:
                (self._folder / name).unlink(missing_ok=True)
                (self._folder / (name + DAMAGED)).unlink(missing_ok=True)
            sync_folder(self._folder)
        except OSError as error:
            raise StorageFailed(file_error(f"blob folder {self._folder}", error)) from None

    def _write(self, name: str, payload: bytes) -> bool:
        """Write a blob unless a whole file of it is there; return True if it was written."""
        path = self._folder / name
        try:
            if path.stat().st_size == len(payload) and path.read_bytes() == payload:
                return False
        except FileNotFoundError:
            pass
        write_aside(path, payload).replace(path)
        return True
