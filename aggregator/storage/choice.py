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
    """Return the digests of a run's blobs that are kept, and their place. No folder is made.

    Raises:
        ConfigError: they cannot be opened.
        StorageFailed: they cannot be listed.
    """
    names = (
        BlobBucket(where, run).names()
        if "://" in where
        else blob_names((Path(where) if where else folder / "blobs") / run)
    )
    return names, blobs_name(where, folder, run)
