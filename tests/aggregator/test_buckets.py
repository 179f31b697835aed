"""Blobs in a real S3-compatible server: the contract of all blob stores, damage, and a store that
is away."""

import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from aggregator.ports import BlobLost, Blobs, StorageFailed
from aggregator.storage.blob_bucket import BlobBucket, check_blobs
from aggregator.storage.blob_folder import BlobFolder
from simulation.datasets.windows import FleetData
from simulation.local.broker import free_port
from tests.aggregator.bench import Bench
from tests.contracts.store import BlobsContract
from tests.support.s3 import BUCKET, S3Server
from wire import messages as m
from wire.codec import digest
from wire.errors import ConfigError

pytest.importorskip(
    "boto3", reason="boto3 is not installed: pip install 'shoal[s3]' would run this"
)


@pytest.fixture
def where(s3: S3Server) -> str:
    return f"s3://{BUCKET}/{secrets.token_hex(4)}"


class TestBlobBucket(BlobsContract):
    @pytest.fixture
    def blobs(self, where: str) -> Blobs:
        return BlobBucket(where, "run-1")


def test_runs_and_prefixes_of_one_bucket_are_apart(where: str) -> None:
    one, two, other = (
        BlobBucket(where, "one"),
        BlobBucket(where, "two"),
        BlobBucket(where + "/deeper/", "one"),
    )
    (name,) = one.put(b"1")
    assert (two.names(), other.names()) == (set(), set())
    two.keep(set())
    other.put(b"2")
    other.keep(set())
    assert one.get(name) == b"1"


@pytest.mark.slow
def test_more_blobs_than_a_page_of_the_list(where: str) -> None:
    blobs = BlobBucket(where, "run-1")
    names = blobs.put(*(str(number).encode() for number in range(1100)))
    assert blobs.names() == set(names)
    blobs.keep(set(names[:3]))
    assert blobs.names() == set(names[:3])


def test_a_damaged_object_is_set_aside(where: str) -> None:
    blobs = BlobBucket(where, "run-1")
    (name,) = blobs.put(b"payload")
    blobs._write(name, b"something else")
    with pytest.raises(
        BlobLost,
        match=rf"damaged in {where}, and set aside as {name}\.damaged; restore it from a backup",
    ):
        blobs.get(name)
    with pytest.raises(BlobLost, match="missing in s3://"):
        blobs.get(name)
    assert blobs._read(name + ".damaged") == b"something else"
    assert blobs.put(b"payload") == [name]
    assert blobs.get(name) == b"payload"


@pytest.mark.parametrize("kind", ["bucket", "folder"])
def test_a_service_that_has_lost_its_lease_deletes_nothing(
    where: str, tmp_path: Path, kind: str
) -> None:
    def never() -> bool:
        return False

    blobs = BlobBucket(where, "run-1", never) if kind == "bucket" else BlobFolder(tmp_path, never)
    (name,) = blobs.put(b"1")
    blobs.keep(set())
    assert blobs.get(name) == b"1"
    check_blobs(blobs)  # what it writes it deletes all the same


def test_a_bucket_that_is_not_there_is_no_lost_blob(s3: S3Server) -> None:
    blobs = BlobBucket("s3://nowhere", "run-1")
    for use in (lambda: blobs.get("0" * 64), lambda: blobs.put(b"1"), blobs.names):
        with pytest.raises(StorageFailed, match=r"blobs in s3://nowhere: .*NoSuchBucket"):
            use()


@pytest.mark.parametrize("where", ["s3://", "s3:bucket", "http://bucket", "s3://bucket?x=1"])
def test_an_address_that_cannot_be_used_is_one_clear_error(where: str) -> None:
    with pytest.raises(ConfigError, match="expected s3://BUCKET or s3://BUCKET/PREFIX"):
        BlobBucket(where, "run-1")


@pytest.fixture
def silent() -> Iterator[int]:
    """A port on which connections are taken and never answered."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_store_that_never_answers_is_given_up(
    s3: S3Server, silent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aggregator.storage.blob_bucket.READ_S", 0.2)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{silent}")
    with pytest.raises(StorageFailed, match="Read timeout"):
        BlobBucket("s3://bucket", "run-1").get(digest(b"1"))


def test_a_store_that_is_away_pauses_the_run_and_it_goes_on_when_it_is_back(
    fleet: FleetData, s3: S3Server, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = S3Server(tmp_path, free_port())
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", own.environment["AWS_ENDPOINT_URL_S3"])
    try:
        bench = Bench(fleet, blobs=BlobBucket(where, "run-1"))
        own.stop()
        assert isinstance(bench.verdict(bench.payload("a")), m.Busy)
        assert "blobs in s3://" in bench.runner.problem
        bench.clock.now_s += 6
        bench.runner.tick()
        assert bench.runner.problem
        bench.blobs.keep(set())
        own.start()
        bench.clock.now_s += 6
        bench.runner.tick()
        assert bench.runner.problem == ""
        assert isinstance(bench.verdict(bench.payload("a")), m.Acknowledge)
    finally:
        own.stop()
