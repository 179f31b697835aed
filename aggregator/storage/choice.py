"""Where a service keeps the blobs of its runs, by its settings."""

import secrets
from collections.abc import Callable
from pathlib import Path

from aggregator.core.ports import Blobs
from aggregator.storage.blob_bucket import BlobBucket
from aggregator.storage.blob_folder import BlobFolder


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


def check_blobs(blobs: Blobs) -> None:
    """Write something that means nothing, and delete it.

    Raises:
        StorageFailed: it cannot be written.
    """
    blobs.drop({*blobs.put(secrets.token_bytes(2**16))})
