"""Where a service keeps the blobs of its runs, by its settings."""

from collections.abc import Callable
from pathlib import Path

from aggregator.storage.blob_bucket import BlobBucket
from aggregator.storage.blob_folder import BlobFolder, blob_names


def open_blobs(
    where: str, folder: Path, run: str, may_delete: Callable[[], bool] = lambda: True
) -> BlobBucket | BlobFolder:
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
