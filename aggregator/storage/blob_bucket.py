"""Blobs in a bucket of an S3-compatible store, as objects named by their SHA-256.

Also here: the choice between bucket and folder by a service's settings.
"""

import base64
import hashlib
import logging
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aggregator.ports import BlobLost, Blobs, StorageFailed
from aggregator.storage.blob_folder import DAMAGED, DIGEST, BlobFolder, blob_names
from wire.codec import digest as digest_of
from wire.errors import ConfigError

log = logging.getLogger("shoal.aggregator")

REQUESTS = 16
"""Maximum number of simultaneous requests."""
CONNECT_S, READ_S, ATTEMPTS = 2, 5, 2
"""Timeouts of connecting and of reading (s), and number of attempts of a request.

They are short enough to notice an unreachable store within a lease, so that the service reports it.
"""


class BlobBucket:
    """Store of blobs (`aggregator.ports.Blobs`) below ``s3://BUCKET/PREFIX``.

    The store checks uploads by their MD5; the SHA-256 is checked before bytes are returned. A
    damaged object is renamed to ``SHA256.damaged``. Endpoint and credentials are boto3's:
    ``AWS_ENDPOINT_URL_S3``, ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, or the files
    ``~/.aws/config`` and ``~/.aws/credentials``.
    """

    def __init__(self, where: str, run: str, may_delete: Callable[[], bool] = lambda: True) -> None:
        """Open the bucket.

        `run`: name of a folder below the prefix. `may_delete`: True if this service may delete
        blobs; called between the listing and the deletion.

        Raises:
            ConfigError: `where` is not the address of a bucket, boto3 is not installed, or its
            configuration cannot be used.
        """
        parts = urlsplit(where)
        if parts.scheme != "s3" or not parts.netloc or parts.query or parts.fragment:
            raise ConfigError(f"--blobs {where}: expected s3://BUCKET or s3://BUCKET/PREFIX")
        try:
            import boto3
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError, ClientError
        except ImportError as error:
            raise ConfigError(
                f"--blobs {where} needs the package {error.name}: pip install 'shoal[s3]'"
            ) from None
        self._where, self._bucket = where.rstrip("/"), parts.netloc
        self._prefix = "/".join([*filter(None, [parts.path.strip("/")]), run, ""])
        self._may_delete, self._failures = may_delete, (BotoCoreError, ClientError)
        config = Config(
            connect_timeout=CONNECT_S,
            read_timeout=READ_S,
            retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
            max_pool_connections=REQUESTS,
            s3={"addressing_style": "path"},
            # Some compatible stores do not know the newer checksums.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        try:
            self._client: Any = boto3.session.Session().client("s3", config=config)
        except (BotoCoreError, ValueError) as error:
            raise ConfigError(f"--blobs {where}: wrong configuration of boto3: {error}") from None
        self._pool = ThreadPoolExecutor(REQUESTS, "blobs")

    def put(self, *payloads: bytes) -> list[str]:
        names = [digest_of(payload) for payload in payloads]
        with self._asking():
            for _ in self._pool.map(self._write, names, payloads):
                pass
        return names

    def get(self, digest: str, offset: int = 0, size: int | None = None) -> bytes:
        with self._asking():
            if size is not None:
                return self._read(digest, Range=f"bytes={offset}-{offset + size - 1}")
            payload = self._read(digest)
            if digest_of(payload) != digest:
                payload = self._read(digest)  # a second read repairs damage on the way
            if digest_of(payload) == digest:
                return payload
            self._write(digest + DAMAGED, payload)
            self._delete(digest)
        detail = (
            f"damaged in {self._where}, and set aside as {digest}{DAMAGED}; restore it from a "
            "backup"
        )
        raise BlobLost(digest, detail)

    def keep(self, digests: set[str]) -> None:
        """Delete every blob but these, except those that cannot be deleted now.

        They stay until the next call, and do no harm.
        """
        try:
            with self._asking():
                unneeded = self.names() - digests
                if unneeded and self._may_delete():
                    for _ in self._pool.map(self._delete, unneeded):
                        pass
        except StorageFailed as error:
            log.warning("Blobs not deleted, trying again later: %s", error)

    def drop(self, digests: set[str], own: bool = False) -> None:
        with self._asking():
            if not own and not self._may_delete():
                raise StorageFailed(
                    f"blobs in {self._where}: not deleted, since another service has the lease of "
                    "the fleet"
                )
            for _ in self._pool.map(self._delete, digests):
                pass

    def names(self) -> set[str]:
        """Return the names of the stored blobs.

        Raises:
            StorageFailed: the store cannot be read.
        """
        with self._asking():
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix
            )
            keys = (
                entry["Key"].removeprefix(self._prefix)
                for page in pages
                for entry in page.get("Contents", ())
            )
            return {key for key in keys if DIGEST.fullmatch(key)}

    def problem(self, digest: str) -> str:
        """Return the fault of a blob, or an empty text; a damaged object is not renamed.

        Raises:
            StorageFailed: the store cannot be read.
        """
        try:
            with self._asking():
                return (
                    ""
                    if digest_of(self._read(digest)) == digest
                    else "damaged: its bytes do not match its hash"
                )
        except BlobLost:
            return "missing"

    def _write(self, name: str, payload: bytes) -> None:
        md5 = base64.b64encode(hashlib.md5(payload, usedforsecurity=False).digest()).decode()
        self._client.put_object(
            Bucket=self._bucket, Key=self._prefix + name, Body=payload, ContentMD5=md5
        )

    def _read(self, name: str, **which: str) -> bytes:
        try:
            return bytes(
                self._client.get_object(Bucket=self._bucket, Key=self._prefix + name, **which)[
                    "Body"
                ].read()
            )
        except self._client.exceptions.NoSuchKey:
            raise BlobLost(name, f"missing in {self._where}; restore it from a backup") from None

    def _delete(self, name: str) -> None:
        self._client.delete_object(Bucket=self._bucket, Key=self._prefix + name)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except self._failures as error:
            raise StorageFailed(f"blobs in {self._where}: not read or written: {error}") from None


def open_blobs(
    where: str, folder: Path, run: str, may_delete: Callable[[], bool] = lambda: True
) -> BlobBucket | BlobFolder:
    """Return the blob store of a run.

    `where`: the value of `serve --blobs`: empty for a place in the service's folder, a path for
    another folder, or ``s3://BUCKET/PREFIX``. `may_delete`: True if this service may delete blobs.

    Raises:
        ConfigError: the store cannot be opened.
    """
    if "://" in where:
        return BlobBucket(where, run, may_delete)
    return BlobFolder(_folder(where, folder, run), may_delete)


def blob_digests(where: str, folder: Path, run: str) -> set[str]:
    """Return the digests of a run's blobs in the store of `open_blobs`; no folder is made."""
    if "://" in where:
        return BlobBucket(where, run).names()
    return blob_names(_folder(where, folder, run))


def _folder(where: str, folder: Path, run: str) -> Path:
    return (Path(where) if where else folder / "blobs") / run


def blobs_name(where: str, folder: Path, run: str) -> str:
    """Return the place of a run's blobs, for people."""
    return f"{where.rstrip('/') or folder / 'blobs'}/{run}"


def check_blobs(blobs: Blobs) -> None:
    """Write a meaningless blob and delete it, to test that the store can be written.

    Raises:
        StorageFailed: the store cannot be written.
    """
    blobs.drop({*blobs.put(secrets.token_bytes(2**16))}, own=True)
