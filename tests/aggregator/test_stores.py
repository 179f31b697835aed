"""The store contracts over memory and disk."""

from pathlib import Path

import pytest
import sqlalchemy as sql

from aggregator.adapters.blob_folder import BlobFolder
from aggregator.adapters.memory import MemoryBlobs, MemoryStore
from aggregator.adapters.sql_store import SqlStore, sqlite_url
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


class TestMemoryBlobs(BlobsContract):
    @pytest.fixture
    def blobs(self) -> Blobs:
        return MemoryBlobs()


class TestBlobFolder(BlobsContract):
    @pytest.fixture
    def blobs(self, tmp_path: Path) -> Blobs:
        return BlobFolder(tmp_path / "blobs")
