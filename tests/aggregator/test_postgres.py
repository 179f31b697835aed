"""The store of a fleet on a real PostgreSQL: the contract, and what is left after every kind of
break."""

import contextlib
import secrets
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sql
from msgspec.structs import replace

from aggregator.fleet.records import Device, Fleet
from aggregator.ports import StorageFailed
from aggregator.storage.fleet_store import FleetStore, load_fleet
from aggregator.storage.schema import opened
from tests.contracts.fleet_store import UNKNOWN, FleetStoreContract
from tests.fleet.world import World
from tests.support.lossy_proxy import lossy_proxy
from tests.support.postgres import Postgres, elsewhere, programs, running
from wire.errors import ConfigError

pytest.importorskip(
    "psycopg", reason="psycopg is not installed: pip install 'shoal[postgres]' would run this"
)


@pytest.fixture
def url(postgres: Postgres) -> str:
    return postgres.create(secrets.token_hex(6))


@pytest.fixture
def own_server() -> Iterator[Postgres]:
    programs()
    with elsewhere() as folder, running(folder) as server:
        yield server


class TestFleetStoreOnPostgres(FleetStoreContract):
    @pytest.fixture
    def url(self, postgres: Postgres) -> str:
        return postgres.create(secrets.token_hex(6))


DEVICE = Device(tags=("x" * 200,))


def devices(store: FleetStore) -> list[str]:
    return sorted(store.load().devices)


def test_services_that_start_at_a_time_make_one_schema(url: str) -> None:
    found = list[Any]()

    def begin() -> None:
        try:
            opened(url).dispose()
            found.append(load_fleet(url))
        except ConfigError as error:
            found.append(error)

    threads = [threading.Thread(target=begin) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [None] * 4


def test_a_server_that_is_not_there_is_one_clear_error() -> None:
    for use in (FleetStore, load_fleet):
        with pytest.raises(
            ConfigError,
            match=r"database postgresql\+?\w*://shoal:\*\*\*@127\.0\.0\.1:1/x: .*connection failed",
        ):
            use("postgresql://shoal:secret@127.0.0.1:1/x")


@pytest.mark.parametrize("how", ["connections", "restart", "crash"])
def test_what_was_committed_is_there_and_the_store_goes_on_after_a_break(
    own_server: Postgres, how: str
) -> None:
    store = FleetStore(own_server.create("shoal"))
    world = World(store)
    world.check_in("a")
    fleet = world.fleet
    match how:
        case "connections":
            with sql.create_engine(own_server.url("postgres")).connect() as connection:
                connection.execute(
                    sql.text(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE "
                        "application_name = 'shoal'"
                    )
                )
        case "restart" | "crash":
            own_server.stop("fast" if how == "restart" else "immediate")
            with pytest.raises(StorageFailed, match="connection failed"):
                world.check_in("b")
            with pytest.raises(StorageFailed):
                store.check()
            own_server.start()
            store.check()
            with pytest.raises(StorageFailed, match=UNKNOWN):
                store.commit(fleet, fleet, set())
            assert devices(store) == ["a"]
            world.fleet = fleet
    world.check_in("c")
    assert devices(store) == ["a", "c"]


def test_a_commit_whose_answer_is_lost_is_found_and_never_written_twice(
    postgres: Postgres, url: str
) -> None:
    """The server carries the commit out, and the connection breaks before the answer."""
    with lossy_proxy(postgres.port) as proxy:
        store = FleetStore(url.replace(f":{postgres.port}/", f":{proxy.port}/"))
        fleet = store.load()
        store.commit(fleet, replace(fleet, serial=1), set())
        fleet, after = replace(fleet, serial=1), replace(fleet, serial=2)
        proxy.lose_answer_to = b"COMMIT"
        with pytest.raises(StorageFailed, match="server closed the connection"):
            store.commit(fleet, after, set())
        with pytest.raises(StorageFailed, match=UNKNOWN):
            store.commit(fleet, after, set())
        assert store.load() == after, "the server had carried it out"
        store.commit(after, replace(after, serial=3), set())
        with closing(FleetStore(url)) as other:
            assert other.load().serial == 3


def test_a_fleet_is_read_as_it_is_at_one_time(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another service writes while this one reads."""
    writer, reader = FleetStore(url), FleetStore(url)
    world = World(writer)
    world.check_in("a")
    before = world.fleet

    def late(connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "FROM device_records" in statement and "b" not in world.fleet.devices:
            world.check_in("b")

    sql.event.listen(reader._engine, "before_cursor_execute", late)
    found = reader.load()
    assert "b" in world.fleet.devices
    assert (set(found.devices), found.at_s) == (set(before.devices), before.at_s)
    with pytest.raises(StorageFailed, match=UNKNOWN):
        reader.commit(found, Fleet(), set())


def test_a_full_disk_of_the_server_is_told_and_nothing_acknowledged_is_lost() -> None:
    programs()
    with elsewhere() as folder:
        mount = ["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", str(folder)]
        mounted = (
            subprocess.run(mount, capture_output=True, text=True) if shutil.which("mount") else None
        )
        if mounted is None or mounted.returncode:
            pytest.skip(
                "no file system of a given size: "
                f"{mounted.stderr.strip() if mounted else 'there is no mount here'}"
            )
        try:
            with running(folder) as server:
                fill_and_free(server, folder)
        finally:
            subprocess.run(["umount", "--lazy", str(folder)])


def fill_and_free(server: Postgres, folder: Path) -> None:
    store = FleetStore(server.create("shoal"))
    kept = set[str]()
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(2**16))
    assert shutil.disk_usage(folder).free < 2**16
    fleet = store.load()
    try:
        for number in range(10_000):
            names = {f"d{number}-{i}" for i in range(100)}
            new = dict.fromkeys(names, DEVICE)
            after = replace(fleet, devices=fleet.devices.update(new))
            store.commit(fleet, after, names)
            fleet, kept = after, kept | names
        pytest.fail("the disk was never full")
    except StorageFailed:
        pass
    filler.unlink()
    end_s = time.monotonic() + 30
    while True:
        try:
            store.check()
            found = store.load()
            assert kept <= {*found.devices}
            break
        except StorageFailed:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.5)
    store.commit(found, replace(found, serial=9), set())
    assert store.load().serial == 9
