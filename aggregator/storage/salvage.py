"""What can be read of the database of a service's folder, whole or damaged, and how a new one is
made of it. SQLite alone."""

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from aggregator.core.ports import StorageFailed
from aggregator.core.record import RoundRecord
from aggregator.core.registry import Entry
from aggregator.core.release.rollout import step as step_fleet
from aggregator.core.release.state import FleetEvent, FleetState, decode_fleet
from aggregator.core.round.machine import step
from aggregator.core.state import Event, RunState, decode_state
from aggregator.storage.engine import sqlite_url
from aggregator.storage.registry_table import RegistryTable
from aggregator.storage.release_store import ReleaseStore
from aggregator.storage.sql_store import SqlStore
from host.files import is_locked

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
"""With fewer bytes free, a disk is full for SQLite, which makes files to read with."""
ASKED_AGAIN = "devices are asked again for what the round then lacks"

Row = tuple[int | str | bytes | None, ...]


@dataclass
class SavedRun:
    """What a database has of a run. `state` is the snapshot after all of `events`; None where the
    run cannot be read."""

    snapshot: RunState | None = None
    events: list[Event] = field(default_factory=list)
    state: RunState | None = None
    records: list[RoundRecord] = field(default_factory=list)


@dataclass
class Contents:
    """What was read of a database: runs by name, in the order in which they were started, and what
    is wrong."""

    runs: dict[str, SavedRun] = field(default_factory=dict)
    fleets: dict[str, FleetState] = field(default_factory=dict)
    """The releases of each fleet."""
    damage: list[str] = field(default_factory=list)
    """What SQLite finds wrong with the file, and rows that are not what they should be."""
    lost: list[str] = field(default_factory=list)
    """What a new database will not have."""
    revision: str = ""
    """Of the schema; a number in a database from before there were revisions."""
    registry: dict[str, Entry] = field(default_factory=dict)
    """The entries of devices, by id."""


def read_database(path: Path) -> Contents:
    """Read a database, which may be in use, and check it; nothing is written. Damage raises
    nothing: it is in the result.

    Raises:
        StorageFailed: it cannot be read, which says nothing of what is in it.
    """
    try:
        with _reading(path) as connection:
            return _read(connection, _integrity(connection))
    except OSError as error:
        raise StorageFailed(f"database {path}: it cannot be read: {error.strerror}") from None
    except sqlite3.Error as error:
        if not _unreadable(error):
            return Contents(damage=[str(error)])
        why = (
            "; no space is left on its disk"
            if shutil.disk_usage(path.parent).free < LEAST_SPACE
            else ""
        )
        raise StorageFailed(f"database {path}: it cannot be read: {error}{why}") from None


def copy_database(path: Path, to: Path) -> None:
    """Copy a database, which may be in use, as it is at one moment.

    Raises:
        StorageFailed: it cannot be read, or is damaged.
        OSError: the copy cannot be written.
    """
    to.unlink(missing_ok=True)
    os.close(os.open(to, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        with _reading(path) as connection, closing(sqlite3.connect(to)) as copy:
            connection.backup(copy)
    except sqlite3.Error as error:
        raise StorageFailed(f"database {path}: it cannot be copied: {error}") from None
    with to.open("rb") as file:
        os.fsync(file.fileno())


def salvage(path: Path) -> Contents:
    """Read what there is in a damaged database that nobody uses. A copy is read; where its first
    page, which says what is where, cannot be used, it gets that of a new database: tables always
    begin at the same pages.

    Raises:
        StorageFailed: it cannot be read.
        OSError: it cannot be copied.
    """
    first = read_database(path)
    if any(run.state is not None for run in first.runs.values()):
        return first
    with tempfile.TemporaryDirectory() as folder:
        copy, fresh = Path(folder) / "copy.db", Path(folder) / "fresh.db"
        shutil.copy(path, copy)
        if (log := path.with_name(path.name + "-wal")).exists():
            shutil.copy(log, copy.with_name("copy.db-wal"))
        SqlStore(sqlite_url(fresh), "x").close()
        ReleaseStore(sqlite_url(fresh), "x").close()
        head = bytearray(fresh.read_bytes()[:4096])
        page_size = int.from_bytes(head[16:18], "big")
        head[28:32] = (copy.stat().st_size // page_size).to_bytes(4, "big")
        head[32:40] = bytes(8)  # no free pages: nothing is written
        with copy.open("r+b") as file:
            file.write(head[:page_size])
        second = read_database(copy)
    second.damage = first.damage or second.damage
    return second if second.runs else first


def write_database(
    path: Path,
    runs: dict[str, SavedRun],
    fleets: dict[str, FleetState],
    registry: Mapping[str, Entry],
) -> None:
    """Make a new database of these runs, but for those that cannot be read, of the releases of
    these fleets, and of these entries of devices.

    Raises:
        ShoalError: it cannot be written.
    """
    for name, run in runs.items():
        if run.state is None:
            continue
        store = SqlStore(sqlite_url(path), name)
        try:
            if run.snapshot is not None:
                store.commit([], run.records, run.snapshot)
                store.commit(run.events)
            else:
                store.commit(run.events, run.records)
        finally:
            store.close()
    with closing(RegistryTable(sqlite_url(path))) as table:
        table.save(registry)
    for name, state in fleets.items():
        releases = ReleaseStore(sqlite_url(path), name)
        try:
            releases.replace(state)
        finally:
            releases.close()


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that writes nothing. SQLite would leave files beside the database, also to read
    it. So without a log it is told that nothing changes; where a log was left, but no service has
    the folder, it keeps the log's index in its own memory, and locks nothing."""
    with path.open("rb") as file:
        file.read(1)  # what is wrong with a file that cannot be read, SQLite does not tell
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


def _unreadable(error: sqlite3.Error) -> bool:
    """Whether an error is the disk's or the system's, not one of what was read."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _UNREADABLE


def _integrity(connection: sqlite3.Connection) -> list[str]:
    """What SQLite finds wrong with the file."""
    try:
        found = [str(text) for (text,) in connection.execute("PRAGMA integrity_check(5)")]
    except sqlite3.Error as error:
        if _unreadable(error):
            raise
        return [str(error)]
    return (
        []
        if found == ["ok"]
        else [text.removeprefix("*** in database main ***\n") for text in found]
    )


def _read(connection: sqlite3.Connection, damage: list[str]) -> Contents:
    contents = Contents(damage=damage)
    contents.revision = _revision(connection)
    names = [str(name) for (name,) in _rows(connection, "runs", "run", damage).values()]
    snapshots = {
        str(run): state
        for run, state in _rows(connection, "snapshots", "run, state", damage).values()
    }
    events = _rows(connection, "events", "run, event", damage)
    records = _rows(connection, "rounds", "run, record", damage)
    whole = not damage
    for name in dict.fromkeys(
        [*names, *snapshots, *(str(row[0]) for row in [*events.values(), *records.values()])]
    ):
        contents.runs[name] = run = SavedRun()
        own = {seq: payload for seq, (of, payload) in events.items() if of == name}
        if name in snapshots:
            run.state = run.snapshot = _decoded(
                snapshots[name], decode_state, f"the snapshot of run {name}", damage
            )
        if name not in snapshots or run.snapshot is not None:
            _replay(name, run, own, events.keys(), whole, contents)
        for _, payload in (row for row in records.values() if row[0] == name):
            if (
                record := _decoded(
                    payload,
                    partial(msgspec.json.decode, type=RoundRecord),
                    f"a record of run {name}",
                    damage,
                )
            ) is not None:
                run.records.append(record)
        _tell_lost(name, run, bool(damage), contents)
    if _has_table(connection, "devices"):
        for device_id, payload in _rows(connection, "devices", "device_id, entry", damage).values():
            entry = _decoded(
                payload,
                partial(msgspec.json.decode, type=Entry),
                f"the entry of device {device_id!r}",
                damage,
            )
            contents.registry |= {str(device_id): entry} if entry is not None else {}
        if damage:
            contents.lost.append(
                f"the registry: devices beside the {len(contents.registry)} that could be read, "
                "with their tags and bans"
            )
    _read_releases(connection, contents)
    if damage and not contents.runs:
        contents.lost.append("every run")
    return contents


def _revision(connection: sqlite3.Connection) -> str:
    """The revision of the schema, or its number; empty where it cannot be told."""
    for table, column in (("alembic_version", "version_num"), ("schema_version", "version")):
        with suppress(sqlite3.Error):
            for (revision,) in connection.execute(f"SELECT {column} FROM {table}"):
                return str(revision)
    return ""


def _read_releases(connection: sqlite3.Connection, contents: Contents) -> None:
    """Read the releases of every fleet, up to the first event that is missing, cannot be read, or
    does not fit."""
    damage = contents.damage
    try:
        tables = {
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
    except sqlite3.Error as error:
        if _unreadable(error):
            raise
        tables = {"release_events", "release_snapshots"}
    if not {"release_events", "release_snapshots"} <= tables:
        return  # no service has ever made a release here
    snapshots = {
        str(fleet): state
        for fleet, state in _rows(connection, "release_snapshots", "fleet, state", damage).values()
    }
    events = _rows(connection, "release_events", "fleet, event", damage)
    for name in dict.fromkeys([*snapshots, *(str(fleet) for fleet, _ in events.values())]):
        state = (
            _decoded(snapshots[name], decode_fleet, f"the releases of fleet {name}", damage)
            if name in snapshots
            else FleetState()
        )
        if state is None:
            contents.lost.append(f"the releases of fleet {name}")
            continue
        for seq, payload in (
            (seq, payload) for seq, (fleet, payload) in events.items() if fleet == name
        ):
            event = _decoded(
                payload,
                partial(msgspec.json.decode, type=FleetEvent),
                f"event {seq} of releases",
                damage,
            )
            try:
                state, _ = step_fleet(state, event)
            except Exception as error:  # whatever the machine fails at
                damage.append(
                    f"event {seq} of the releases of fleet {name} cannot be taken in: "
                    f"{type(error).__name__}: {error}"
                )
                contents.lost.append(
                    f"the releases of fleet {name}: what came from number {seq} on"
                )
                break
        contents.fleets[name] = state


def _tell_lost(name: str, run: SavedRun, damaged: bool, contents: Contents) -> None:
    if not damaged:
        return
    if run.state is None:
        contents.lost.append(f"run {name}: its state")
        return
    missing = sorted(set(range(1, run.state.round)) - {record.round for record in run.records})
    if missing:
        contents.lost.append(
            f"run {name}: the records of rounds {', '.join(map(str, missing))}, which are for "
            "people to read"
        )


def _replay(
    name: str,
    run: SavedRun,
    own: dict[int, Any],
    known: Collection[int],
    whole: bool,
    contents: Contents,
) -> None:
    """Take in a run's events up to the first that is missing, cannot be read, or does not fit."""
    last = 0
    for seq in sorted(own):
        if not whole and any(number not in known for number in range(last + 1, seq)):
            contents.lost.append(f"run {name}: its events from number {last + 1} on; {ASKED_AGAIN}")
            return
        event = _decoded(
            own[seq],
            partial(msgspec.json.decode, type=Event),
            f"event {seq} of run {name}",
            contents.damage,
        )
        try:
            if event is None:
                raise ValueError
            state, _ = step(run.state, event)
        except Exception as error:  # whatever the round core fails at
            if event is not None:
                contents.damage.append(
                    f"event {seq} of run {name} cannot be taken in: {type(error).__name__}: {error}"
                )
            contents.lost.append(f"run {name}: its events from number {seq} on; {ASKED_AGAIN}")
            return
        run.state, last = state, seq
        run.events.append(event)
    if not whole:
        contents.lost.append(
            f"run {name}: events after number {last}, if there were any; {ASKED_AGAIN}"
        )


def _decoded(payload: Any, decode: Callable[[Any], Any], what: str, damage: list[str]) -> Any:
    """What a row holds; None, and a line of `damage`, if it cannot be read."""
    try:
        return decode(payload)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        damage.append(f"{what} cannot be read: {error}")
        return None


def _has_table(connection: sqlite3.Connection, table: str) -> bool:
    """Whether there is such a table, or the list of tables cannot be read."""
    try:
        return (
            connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone()
            is not None
        )
    except sqlite3.Error as error:
        if _unreadable(error):
            raise
        return True


def _rows(
    connection: sqlite3.Connection, table: str, columns: str, damage: list[str]
) -> dict[int, Row]:
    """A table's rows by number: from its beginning up to what cannot be read, and from its end back
    to that."""
    found: dict[int, Row] = {}
    for order in ("", " DESC"):
        try:
            rows = connection.execute(
                f"SELECT rowid, {columns} FROM {table} NOT INDEXED ORDER BY rowid{order}"
            )
            for number, *values in rows:
                found[number] = tuple(values)
            break
        except sqlite3.Error as error:
            if _unreadable(error):
                raise
            if (text := f"table {table}: {error}") not in damage:
                damage.append(text)
    return {number: found[number] for number in sorted(found)}


def damaged_name(path: Path) -> Path:
    """A free name beside a file, for the file to be set aside under."""
    name, number = path.with_name(f"{path.name}.damaged"), 1
    while name.exists():
        number += 1
        name = path.with_name(f"{path.name}.damaged{number}")
    return name
