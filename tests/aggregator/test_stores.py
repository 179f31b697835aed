"""The store contracts over memory and disk."""

from pathlib import Path

import pytest
import sqlalchemy as sql

from aggregator.adapters.blob_folder import BlobFolder
from aggregator.adapters.memory import MemoryBlobs, MemoryStore
from aggregator.adapters.sql_store import SqlStore, database_name, has_run, sqlite_url
from aggregator.core.ports import Blobs, Store
from tests.contracts.store import STARTED, BlobsContract, StoreContract
from wire.errors import ConfigError


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore()


class TestSqlStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return SqlStore(sqlite_url(tmp_path / "shoal.db"), "run-1")

    def test_runs_of_one_database_are_apart(self, tmp_path: Path) -> None:
        url = sqlite_url(tmp_path / "shoal.db")
        one, two = SqlStore(url, "one"), SqlStore(url, "two")
        one.commit([STARTED])
        assert two.load() is None
        assert SqlStore(url, "one").load() is not None
        assert two.runs() == ["one", "two"]

    def test_another_schema_version_is_refused(self, tmp_path: Path) -> None:
        url = sqlite_url(tmp_path / "shoal.db")
        SqlStore(url, "one").close()
        with sql.create_engine(url).begin() as connection:
            connection.execute(sql.text("update schema_version set version = 99"))
        with pytest.raises(ConfigError, match="version 99, this Shoal reads version 2"):
            SqlStore(url, "one")

    @pytest.mark.parametrize("url", ["sqlite:////nowhere/at/all.db", "nonsense"])
    def test_unusable_url_is_one_clear_error(self, url: str) -> None:
        with pytest.raises(ConfigError, match="database"):
            SqlStore(url, "one")

    def test_a_run_is_looked_for_without_a_trace(self, tmp_path: Path) -> None:
        path = tmp_path / "shoal.db"
        assert not has_run(sqlite_url(path), "one")
        assert not path.exists()
        path.write_bytes(b"")
        assert not has_run(sqlite_url(path), "one")
        assert path.read_bytes() == b""
        store = SqlStore(sqlite_url(path), "one")
        assert not has_run(sqlite_url(path), "one"), "it has not begun"
        store.commit([STARTED])
        assert (has_run(sqlite_url(path), "one"), has_run(sqlite_url(path), "two")) == (True, False)
        store.commit([], snapshot=store.load())
        assert has_run(sqlite_url(path), "one")
        assert store.runs() == ["one"]

    def test_a_password_is_not_told(self) -> None:
        assert database_name("postgresql://shoal:secret@host/runs") == "postgresql://shoal:***@host/runs"


class TestMemoryBlobs(BlobsContract):
    @pytest.fixture
    def blobs(self) -> Blobs:
        return MemoryBlobs()


class TestBlobFolder(BlobsContract):
    @pytest.fixture
    def blobs(self, tmp_path: Path) -> Blobs:
        return BlobFolder(tmp_path / "blobs")

    def test_keep_deletes_blobs_and_nothing_else(self, blobs: Blobs, tmp_path: Path) -> None:
        """Neither what `check` of another thread is writing, nor keys and databases that somebody took for a run's folder."""
        names = ["check.7", "secret.key", "shoal.db", f"{'0' * 64}.damaged", f"{'0' * 64}.new", "A" * 64, "0" * 63]
        for name in names:
            (tmp_path / "blobs" / name).write_bytes(b"x")
        blobs.put(b"1")
        blobs.keep(set())
        assert sorted(path.name for path in (tmp_path / "blobs").iterdir()) == sorted(names)
