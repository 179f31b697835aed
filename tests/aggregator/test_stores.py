"""The contracts of stores over memory and disk, and databases by their URLs."""

import sys
from pathlib import Path

import pytest

from aggregator.ports import BlobLost, Blobs, Store
from aggregator.storage.blob_folder import BlobFolder
from aggregator.storage.engine import database_name
from aggregator.storage.fleet_store import FleetStore, load_fleet
from aggregator.storage.memory import MemoryBlobs, MemoryStore
from tests.contracts.fleet_store import StoreContract
from tests.contracts.store import BlobsContract
from wire.errors import ConfigError


def test_a_driver_that_is_not_installed_is_one_clear_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for driver in ("psycopg", "psycopg2"):
        monkeypatch.setitem(sys.modules, driver, None)
    for use in (FleetStore, load_fleet):
        with pytest.raises(ConfigError) as raised:
            use("postgresql://shoal:secret@localhost/runs")
        text = str(raised.value)
        assert text.startswith(
            "database postgresql://shoal:***@localhost/runs needs the package psycopg: pip install "
        )
        assert len(text.splitlines()) == 1


def test_a_password_is_not_told() -> None:
    assert (
        database_name("postgresql://shoal:secret@host/runs") == "postgresql://shoal:***@host/runs"
    )


@pytest.mark.parametrize(
    "url",
    ["postgresql:/shoal:secret@host/runs", "postgresql://shoal:secret@host:port/runs", "x:y@"],
)
def test_what_is_no_url_is_one_clear_error_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError, match=r"database .*\*\*\*@.*: expected sqlite:///PATH or"):
        FleetStore(url)
    assert "secret" not in database_name(url)


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore()


class TestMemoryBlobs(BlobsContract):
    @pytest.fixture
    def blobs(self) -> Blobs:
        return MemoryBlobs()


class TestBlobFolder(BlobsContract):
    @pytest.fixture
    def blobs(self, tmp_path: Path) -> Blobs:
        return BlobFolder(tmp_path / "blobs")

    def test_what_is_lost_says_where_it_belongs(self, blobs: Blobs, tmp_path: Path) -> None:
        with pytest.raises(
            BlobLost, match=rf"missing in {tmp_path}/blobs; restore it from a backup"
        ):
            blobs.get("0" * 64)

    def test_keep_deletes_blobs_and_nothing_else(self, blobs: Blobs, tmp_path: Path) -> None:
        """Neither what `check` of another thread is writing, nor keys and databases that somebody
        took for a run's folder."""
        names = [
            "check.7",
            "secret.key",
            "shoal.db",
            f"{'0' * 64}.damaged",
            f"{'0' * 64}.new",
            "A" * 64,
            "0" * 63,
        ]
        for name in names:
            (tmp_path / "blobs" / name).write_bytes(b"x")
        blobs.put(b"1")
        blobs.keep(set())
        assert sorted(path.name for path in (tmp_path / "blobs").iterdir()) == sorted(names)
