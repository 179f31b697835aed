"""Where a service keeps the blobs of its runs, by its settings."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from aggregator.core.ports import Blobs
from aggregator.storage.blob_bucket import BlobBucket
from aggregator.storage.blob_folder import BlobFolder, blob_names


class NamedBlobs(Blobs, Protocol):
    """Blobs of which a list can be had, and which can be looked at."""

    def names(self) -> set[str]:
        """The digests of those that are kept.

        Raises:
            StorageFailed: they cannot be listed.
        """

    def problem(self, digest: str) -> str:
        """What is wrong with a blob, which is only read; empty if nothing is.

        Raises:
            StorageFailed: the store cannot be asked.
        """


def open_blobs(
    where: str, folder: Path, run: str, may_delete: Callable[[], bool] = lambda: True
) -> NamedBlobs:
    """A run's blobs: in the service's folder, or, as `serve --blobs` names it, below
    ``s3://BUCKET/PREFIX`` or in another folder.

    Raises:
        ConfigError: they cannot be opened.
    """
    if "://" in where:
        return BlobBucket(where, run, may_delete)
    return BlobFolder((Path(where) if where else folder / "blobs") / run, may_delete)


def blobs_name(where: str, folder: Path, run: str) -> str:
    """Where a run's blobs are, for people."""
    return f"{where.rstrip('/') or folder / 'blobs'}/{run}"


def kept_blobs(where: str, folder: Path, run: str) -> tuple[set[str], str]:
    """The digests of a run's blobs that are kept, and where.

    Raises:
        ConfigError: they cannot be opened.
        StorageFailed: they cannot be listed.
    """
    if not where:
        return blob_names(folder / "blobs" / run), blobs_name(
            where, folder, run
        )  # no folder is made by looking
    return open_blobs(where, folder, run).names(), blobs_name(where, folder, run)
