"""The store contracts over memory and disk."""

import sys
from pathlib import Path

import pytest

from aggregator.core.ports import BlobLost, Blobs, StorageFailed, Store
from aggregator.core.state import DeviceCheckedIn
from aggregator.storage.blob_folder import BlobFolder
from aggregator.storage.engine import database_name, sqlite_url
from aggregator.storage.memory import MemoryBlobs, MemoryStore
from aggregator.storage.sql_store import SqlStore, load_run, run_names
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
        assert run_names(url) == ["one", "two"]

    @pytest.mark.parametrize("becomes", ["gone", "another", "its own folder's backup"])
    def test_a_file_that_was_removed_or_replaced_is_not_written(
        self, store: Store, tmp_path: Path, becomes: str
    ) -> None:
        store.commit([STARTED])
        path, aside = tmp_path / "shoal.db", tmp_path / "aside.db"
        path.rename(aside)
        if becomes == "another":
            path.write_bytes(b"")
        if becomes == "its own folder's backup":
            path.write_bytes(aside.read_bytes())
        before = path.read_bytes() if path.exists() else None
        for write in (store.check, lambda: store.commit([DeviceCheckedIn(1.0, "d", 5, 2)])):
            with pytest.raises(
                StorageFailed,
                match=r"shoal\.db: the file was removed or replaced while the service ran: restart "
                r"the service",
            ):
                write()
        assert (path.read_bytes() if path.exists() else None) == before
        aside.rename(path)
        store.check()
        state = store.load()
        assert state is not None
        assert not state.devices, "nothing of it was written"

    def test_a_database_in_memory_has_no_file(self) -> None:
        SqlStore("sqlite://", "one").check()

    def test_a_driver_that_is_not_installed_is_one_clear_error(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for driver in ("psycopg", "psycopg2"):
            monkeypatch.setitem(sys.modules, driver, None)
        url = "postgresql://shoal:secret@localhost/runs"
        for use in (SqlStore, load_run):
            with pytest.raises(ConfigError) as raised:
                use(url, "one")
            told = str(raised.value)
            assert told.startswith(
                "database postgresql://shoal:***@localhost/runs: its driver is not installed: "
            )
            assert "psycopg" in told
            assert len(told.splitlines()) == 1

    @pytest.mark.parametrize("url", ["sqlite:////nowhere/at/all.db", "nonsense"])
    def test_unusable_url_is_one_clear_error(self, url: str) -> None:
        with pytest.raises(ConfigError, match="database"):
            SqlStore(url, "one")

    def test_a_run_is_looked_for_without_a_trace(self, tmp_path: Path) -> None:
        path = tmp_path / "shoal.db"
        assert load_run(sqlite_url(path), "one") is None
        assert not path.exists()
        path.write_bytes(b"")
        assert load_run(sqlite_url(path), "one") is None
        assert path.read_bytes() == b""
        store = SqlStore(sqlite_url(path), "one")
        assert load_run(sqlite_url(path), "one") is None, "it has not begun"
        store.commit([STARTED])
        assert load_run(sqlite_url(path), "one") is not None
        assert load_run(sqlite_url(path), "two") is None
        store.commit([], snapshot=store.load())
        assert load_run(sqlite_url(path), "one") is not None
        assert run_names(sqlite_url(path)) == ["one"]

    def test_a_password_is_not_told(self) -> None:
        assert (
            database_name("postgresql://shoal:secret@host/runs")
            == "postgresql://shoal:***@host/runs"
        )


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
            BlobLost, match=rf"it is not kept here, in {tmp_path}/blobs: put it back from a backup"
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
