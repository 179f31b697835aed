"""Contract of every blob store of an aggregator; subclassed once per adapter."""

import pytest

from aggregator.ports import BlobLost, Blobs
from aggregator.storage.blob_bucket import check_blobs
from wire.codec import digest


class BlobsContract:
    def test_blob_comes_back_by_its_hash(self, blobs: Blobs) -> None:
        (name,) = blobs.put(b"payload")
        assert name == digest(b"payload")
        assert blobs.put(b"payload", b"other") == [name, digest(b"other")]
        assert blobs.get(name) == b"payload"

    def test_unknown_blob_is_lost(self, blobs: Blobs) -> None:
        with pytest.raises(BlobLost, match="000000000000: missing"):
            blobs.get("0" * 64)

    def test_what_can_be_written_is_checked_without_a_trace(self, blobs: Blobs) -> None:
        (name,) = blobs.put(b"payload")
        check_blobs(blobs)
        assert blobs.get(name) == b"payload"

    def test_keep_forgets_the_others(self, blobs: Blobs) -> None:
        one, two = blobs.put(b"1", b"2")
        blobs.keep({two})
        assert blobs.get(two) == b"2"
        with pytest.raises(BlobLost):
            blobs.get(one)
