"""The store on a real PostgreSQL: the contract of all stores, migrations, and what is left after
every kind of break."""

import contextlib
import secrets
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sql

from aggregator.core.ports import StorageFailed, Store
from aggregator.core.state import DeviceCheckedIn, Resumed
from aggregator.storage.schema import opened
from aggregator.storage.sql_store import SqlStore, load_run, run_names
from tests.contracts.store import STARTED, StoreContract
from tests.support.known import known
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


class TestPostgresStore(StoreContract):
    @pytest.fixture
    def store(self, url: str) -> Iterator[Store]:
        store = SqlStore(url, "run-1")
        yield store
        store.close()


def devices(store: SqlStore) -> list[str]:
    return sorted(known(store.load()).devices)


def test_services_that_start_at_a_time_make_one_schema(url: str) -> None:
    found = list[Any]()

    def begin() -> None:
        try:
            opened(url).dispose()
            found.append(run_names(url))
        except ConfigError as error:
            found.append(error)

    threads = [threading.Thread(target=begin) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[]] * 4


def test_a_server_that_is_not_there_is_one_clear_error() -> None:
    for use in (SqlStore, load_run):
        with pytest.raises(
            ConfigError,
            match=r"database postgresql\+?\w*://shoal:\*\*\*@127\.0\.0\.1:1/x: .*connection failed",
        ):
            use("postgresql://shoal:secret@127.0.0.1:1/x", "run-1")


@pytest.mark.parametrize("how", ["connections", "restart", "crash"])
def test_what_was_committed_is_there_and_the_store_goes_on_after_a_break(
    own_server: Postgres, how: str
) -> None:
    url = own_server.create("shoal")
    store = SqlStore(url, "run-1")
    store.commit([STARTED])
    store.commit([DeviceCheckedIn(1.0, "a", 5, 2)])
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
                store.commit([DeviceCheckedIn(2.0, "b", 5, 2)])
            with pytest.raises(StorageFailed):
                store.check()
            own_server.start()
            store.check()
            with pytest.raises(StorageFailed, match="what was written last is not known"):
                store.commit([DeviceCheckedIn(2.0, "b", 5, 2)])
            assert devices(store) == ["a"]
    store.commit([DeviceCheckedIn(3.0, "c", 5, 2)])
    assert devices(store) == ["a", "c"]


def test_a_commit_whose_answer_is_lost_is_found_and_never_written_twice(
    postgres: Postgres, url: str
) -> None:
    """The server carries the commit out, and the connection breaks before the answer."""
    with lossy_proxy(postgres.port) as proxy:
        store = SqlStore(url.replace(f":{postgres.port}/", f":{proxy.port}/"), "run-1")
        store.commit([STARTED])
        proxy.lose_answer_to = b"COMMIT"
        with pytest.raises(StorageFailed, match="server closed the connection"):
            store.commit([DeviceCheckedIn(1.0, "a", 5, 2)])
        with pytest.raises(StorageFailed, match="what was written last is not known"):
            store.commit([DeviceCheckedIn(1.0, "a", 5, 2)])
        assert devices(store) == ["a"], "the server had carried it out"
        store.commit([Resumed(2.0, 7)])
        other = SqlStore(url, "run-1")
        assert (devices(other), known(other.load()).epoch) == (["a"], 7)


def test_a_store_does_not_write_after_a_commit_that_it_does_not_know(url: str) -> None:
    one, two = SqlStore(url, "run-1"), SqlStore(url, "run-1")
    one.commit([STARTED])
    with pytest.raises(StorageFailed, match="what was written last is not known"):
        two.commit([STARTED])
    assert two.load() == one.load()
    two.commit([DeviceCheckedIn(1.0, "a", 5, 2)])
    assert devices(one) == ["a"]


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
    store = SqlStore(server.create("shoal"), "run-1")
    store.commit([STARTED])
    filler, kept = folder / "filler", list[str]()
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(2**16))
    assert shutil.disk_usage(folder).free < 2**16
    try:
        for number in range(10_000):
            names = [f"d{number}-{i}" for i in range(100)]
            store.commit([DeviceCheckedIn(1.0, name, 5, 2) for name in names])
            kept += names
        pytest.fail("the disk was never full")
    except StorageFailed:
        pass
    filler.unlink()
    end_s = time.monotonic() + 30
    while True:
        try:
            store.check()
            assert set(devices(store)) >= set(kept)
            break
        except StorageFailed:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.5)
    store.commit([DeviceCheckedIn(2.0, "after", 5, 2)])
    assert "after" in devices(store)
