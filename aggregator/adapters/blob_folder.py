"""Blobs as files named by their SHA-256."""

from pathlib import Path

from host.files import write_atomically
from wire.codec import digest as digest_of
from wire.errors import ConfigError


class BlobFolder:
    """An `aggregator.core.ports.Blobs` in a folder. A file is written aside, synchronised and renamed, so it is whole or absent."""

    def __init__(self, folder: Path) -> None:
        """
        Raises:
            ConfigError: the folder cannot be made.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"blob folder {folder}: {error.strerror}") from None
        self._folder = folder

    def put(self, payload: bytes) -> str:
        name = digest_of(payload)
        path = self._folder / name
        if not path.exists():
            write_atomically(path, payload)
        return name

    def get(self, digest: str) -> bytes:
        try:
            return (self._folder / digest).read_bytes()
        except FileNotFoundError:
            raise KeyError(digest) from None

    def keep(self, digests: set[str]) -> None:
        for path in self._folder.iterdir():
            if path.name not in digests:
                path.unlink()
