"""Checks, copies and traceless reads of the SQLite database of a service's folder."""

import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sql
from immutables import Map
from msgspec.structs import replace
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import StaticPool

from aggregator.core.telemetry import DeviceTelemetry
from aggregator.fleet.events import Event
from aggregator.fleet.reconcile import Turn
from aggregator.fleet.records import Fleet
from aggregator.fleet.step import take_in
from aggregator.leadership.identity import is_served
from aggregator.maintenance.finding import RESTORE, Finding
from aggregator.ports import StorageFailed
from aggregator.storage.engine import database_name, sqlite_url
from aggregator.storage.fleet_reading import derived, read_records
from aggregator.storage.fleet_store import FleetStore, read_rounds
from aggregator.storage.schema import has_tables, reading
from aggregator.storage.telemetry_table import telemetry_rows
from aggregator.view.fleet import FleetView
from aggregator.view.round_record import RoundRecord
from host.files import file_error, is_locked
from wire.errors import ConfigError

_UNREADABLE = {
    sqlite3.SQLITE_AUTH,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
}
LEAST_SPACE = 2**16
"""Free bytes below which SQLite reports a full disk, as it writes files even to read."""


@dataclass
class Contents:
    """Contents of a database."""

    fleet: Fleet | None = None
    """The fleet, or None before a service has written one."""
    records: dict[str, list[RoundRecord]] = field(default_factory=dict)
    """Records of rounds, by campaign."""
    telemetry: dict[str, DeviceTelemetry] = field(default_factory=dict)
    damage: list[str] = field(default_factory=list)
    """Faults of the file or of rows; faulty rows are left out of the contents."""


def read_database(path: Path) -> Contents:
    """Return the contents of a database, which may be in use; nothing is written.

    Damage raises no error; it is in the result.

    Raises:
        ConfigError: the database has another schema.
        StorageFailed: it cannot be read, which does not mean that it is damaged.
    """
    try:
        with _reading(path) as connection:
            lines = [str(text) for (text,) in connection.execute("PRAGMA integrity_check(5)")]
            if lines != ["ok"]:
                return Contents(
                    damage=[text.removeprefix("*** in database main ***\n") for text in lines]
                )
            engine = sql.create_engine(
                sqlite_url(path), creator=lambda: connection, poolclass=StaticPool
            )
            with engine.connect() as reading:
                return read_contents(reading, str(path))
    except OSError as error:
        raise StorageFailed(file_error(f"database {path}: not readable", error)) from None
    except (sqlite3.Error, DBAPIError) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        if getattr(cause, "sqlite_errorcode", 0) & 0xFF not in _UNREADABLE:
            return Contents(damage=[str(cause)])
        full = shutil.disk_usage(path.parent).free < LEAST_SPACE
        why = "; no space is left on its disk" if full else ""
        raise StorageFailed(f"database {path}: not readable: {cause}{why}") from None


def read_whole(folder: Path) -> Contents:
    """Return the contents of a folder's database, which may be in use; nothing is written.

    Raises:
        ConfigError: the database is absent, is damaged, or has another schema.
        StorageFailed: it cannot be read.
    """
    path = folder / "shoal.db"
    if not path.exists():
        raise ConfigError(f"No shoal.db in folder {folder}. `shoal serve --folder` makes it.")
    contents = read_database(path)
    if contents.damage:
        raise ConfigError(
            f"database {path}: damaged, {contents.damage[0]}; `shoal doctor` says more"
        )
    return contents


def read_view(folder: Path, database: str = "") -> FleetView:
    """Return the fleet of a folder, or of another database, for readers; nothing is written.

    All devices are offline unless a service runs in the folder.

    Raises:
        ConfigError: the database is absent, is damaged, or has another schema.
        StorageFailed: it cannot be read.
    """
    contents = Contents()
    if not database:
        contents = read_whole(folder)
    else:
        with reading(database) as connection:
            if connection is not None:
                contents = read_contents(connection, database)
        if contents.damage:
            raise ConfigError(f"database {database_name(database)}: damaged, {contents.damage[0]}")
    fleet = contents.fleet or Fleet()
    if not is_served(folder):
        away = {d: replace(device, online=False) for d, device in fleet.devices.items()}
        fleet = replace(fleet, devices=Map(away))
    return FleetView(fleet, contents.telemetry, {}, max(time.time(), fleet.at_s))


def copy_database(path: Path, to: Path) -> None:
    """Copy a database, which may be in use, as of one moment.

    Raises:
        StorageFailed: the database cannot be read, or is damaged.
        OSError: the copy cannot be written.
    """
    to.unlink(missing_ok=True)
    os.close(os.open(to, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        with _reading(path) as connection, closing(sqlite3.connect(to)) as copy:
            connection.backup(copy)
    except sqlite3.Error as error:
        raise StorageFailed(f"database {path}: not copied: {error}") from None
    with to.open("rb") as file:
        os.fsync(file.fileno())


def carry_out(folder: Path, *events: Event) -> None:
    """Apply events to the fleet of a folder in which no service runs.

    Resulting commands are not carried out; the service issues them again at its start.

    Raises:
        ConfigError: the database cannot be opened.
        StorageFailed: the fleet cannot be read or written.
    """
    with closing(FleetStore(sqlite_url(folder / "shoal.db"))) as store:
        before = store.load()
        turn = Turn(before)
        for event in events:
            take_in(turn, event)
        store.commit(before, turn.fleet(), turn.changed, events)


def check_database(folder: Path) -> tuple[Finding, Contents | None]:
    """Check ``shoal.db``; return the finding, and the contents of an undamaged database."""
    path, blobs = folder / "shoal.db", (folder / "blobs").exists()
    lost = (
        "but there are blobs: the run is lost, unless `serve --database` names another database. "
        f"Then name it to the doctor too. Otherwise {RESTORE}"
    )
    if not path.is_file():
        if not blobs:
            text = "missing: no campaign was started in this folder"
            return Finding("note", path.name, text), None
        return Finding("wrong", path.name, f"missing, {lost}"), None
    try:
        contents = read_database(path)
    except (ConfigError, StorageFailed) as error:
        text = f"{error}. What depends on it was not checked, and nothing was changed"
        return Finding("wrong", path.name, text), None
    if contents.damage:
        damage = "; ".join(text.splitlines()[0] for text in contents.damage[:3])
        text = (
            f"damaged: {damage}. The service may stop at any read. Stop it, and {RESTORE}. "
            "SQLite's `.recover` may read a part of it"
        )
        return Finding("wrong", path.name, text), None
    if contents.fleet is None and blobs:
        return Finding("wrong", path.name, f"empty, {lost}"), None
    campaigns = contents.fleet.campaigns if contents.fleet is not None else {}
    stands = ", ".join(f"{n} ({c.phase}, round {c.round})" for n, c in campaigns.items())
    return Finding("ok", path.name, f"whole; {stands or 'no campaign'}"), contents


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a connection that writes nothing and leaves no files beside the database.

    Even to read, SQLite would make files there. Without a log, the database is opened as immutable.
    If a log is left, but no service has the folder, SQLite keeps the log's index in memory and
    locks nothing.
    """
    with path.open("rb") as file:
        file.read(1)  # raises OSError with the cause, which SQLite hides
    logged = path.with_name(path.name + "-wal").exists()
    alone = logged and not is_locked(path.parent)
    how = ("&vfs=unix-none" if alone else "") if logged else "&immutable=1"
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro{how}", uri=True, timeout=10.0)
    connection.text_factory = lambda text: text.decode(errors="replace")
    try:
        if alone:
            connection.execute("PRAGMA locking_mode=EXCLUSIVE")
        yield connection
    finally:
        connection.close()


def read_contents(connection: sql.Connection, url: str) -> Contents:
    """Return the contents of an open database."""
    contents = Contents()
    if not has_tables(connection):
        return contents
    try:
        fleet, commits = read_records(connection)
        if commits:
            contents.fleet = derived(fleet, url)
        for name in fleet.campaigns:
            contents.records[name] = read_rounds(connection, name)
        contents.telemetry = telemetry_rows(connection)
    except DBAPIError:
        raise
    except Exception as error:  # a damaged row can cause any error
        contents.damage.append(str(error) or type(error).__name__)
    return contents
