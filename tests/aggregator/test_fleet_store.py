"""The store of a fleet on SQLite: the contract, and what happens to files and processes."""

import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sql
from msgspec.structs import replace

from aggregator.fleet.records import Fleet
from aggregator.ports import StorageFailed
from aggregator.storage.engine import sqlite_url
from aggregator.storage.fleet_store import FleetStore, load_fleet
from tests.contracts.fleet_store import UNKNOWN, FleetStoreContract, rich
from tests.fleet.parts import underived, untimed
from tests.fleet.world import World
from wire.errors import ConfigError


class TestFleetStoreOnSqlite(FleetStoreContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return sqlite_url(tmp_path / "shoal.db")

    @pytest.mark.parametrize("becomes", ["gone", "another", "its own folder's backup"])
    def test_a_file_that_was_removed_or_replaced_is_not_written(
        self, store: FleetStore, tmp_path: Path, becomes: str
    ) -> None:
        fleet = rich(store).fleet
        path, aside = tmp_path / "shoal.db", tmp_path / "aside.db"
        path.rename(aside)
        if becomes == "another":
            path.write_bytes(b"")
        if becomes == "its own folder's backup":
            path.write_bytes(aside.read_bytes())
        before = path.read_bytes() if path.exists() else None
        for write in (store.check, lambda: store.commit(fleet, replace(fleet, serial=99), set())):
            with pytest.raises(
                StorageFailed,
                match=r"shoal\.db: the file was removed or replaced while the service ran: restart "
                r"the service",
            ):
                write()
        assert (path.read_bytes() if path.exists() else None) == before
        aside.rename(path)
        store.check()
        assert store.load() == untimed(fleet), "nothing of it was written"

    def test_a_fleet_is_looked_for_without_a_trace(self, tmp_path: Path) -> None:
        path = tmp_path / "shoal.db"
        for _ in range(2):
            assert load_fleet(sqlite_url(path)) is None
            assert not path.exists() or path.read_bytes() == b""
            path.write_bytes(b"")

    def test_a_full_disk_is_told_and_nothing_of_the_commit_is_written(
        self, store: FleetStore
    ) -> None:
        world = World(store)
        world.check_in("a")
        fleet = world.fleet

        def limit(connection: Any, pages: int) -> None:
            connection.execute(f"PRAGMA max_page_count={pages}")

        def full(connection: Any, _record: Any, _proxy: Any) -> None:
            limit(connection, 1)  # SQLite takes the number of pages that there are

        def many() -> None:
            nonlocal fleet
            for number in range(1000):
                world.check_in(f"d{number}")
                fleet = world.fleet

        sql.event.listen(store._engine, "checkout", full)
        with pytest.raises(StorageFailed, match=r"shoal\.db: .*database or disk is full"):
            many()
        with pytest.raises(StorageFailed, match=UNKNOWN):
            store.commit(fleet, fleet, set())
        sql.event.remove(store._engine, "checkout", full)
        sql.event.listen(store._engine, "checkout", lambda c, _r, _p: limit(c, 2**30))
        assert store.load() == untimed(fleet)
        store.commit(fleet, replace(fleet, serial=99), set())
        assert store.load().serial == 99

    @pytest.mark.parametrize("count", [5, 60, 111])
    def test_a_kill_leaves_the_fleet_of_one_of_its_commits(self, url: str, count: int) -> None:
        program = f"from {__name__} import live; live({url!r})"
        with subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            for _ in range(count):
                child.stdout.readline()
            child.kill()
            safe = count + len(child.stdout.read().splitlines())
        with closing(FleetStore(url)) as store:
            found = underived(store.load())
        world = Remembering()
        lives(world)
        assert found in [underived(fleet) for fleet in world.fleets[safe : safe + 2]]

    def test_a_database_in_memory_has_no_file(self) -> None:
        FleetStore("sqlite://").check()

    @pytest.mark.parametrize("url", ["sqlite:////nowhere/at/all.db", "nonsense"])
    def test_unusable_url_is_one_clear_error(self, url: str) -> None:
        with pytest.raises(ConfigError, match="database"):
            FleetStore(url)


class Remembering(World):
    """A world that knows its fleets after each event."""

    def __init__(self) -> None:
        super().__init__()
        self.fleets = [self.fleet]

    def check_changed(self, before: Fleet, changed: set[str]) -> None:
        super().check_changed(before, changed)
        self.fleets.append(self.fleet)


class Telling(FleetStore):
    """A store that prints a line after each commit."""

    def commit(self, *what: Any, **more: Any) -> None:
        super().commit(*what, **more)
        print("committed", flush=True)


def lives(world: World) -> None:
    """Have things happen to a fleet."""
    for device_id in "abcd":
        world.check_in(device_id)
    world.start("one", rounds=100, min_devices=2)
    for _ in range(60):
        world.carry_out()
        for device_id in "abcd":
            world.work(device_id)
        world.ring()


def live(url: str) -> None:
    """Write a fleet to which things happen."""
    lives(World(Telling(url)))
