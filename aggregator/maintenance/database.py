"""The SQLite database of a service's folder, as commands read it: checked, copied, and without a
trace."""

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import sqlalchemy as sql
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import StaticPool

from aggregator.core.ports import StorageFailed
from aggregator.core.record import RoundRecord
from aggregator.core.release.state import FleetState
from aggregator.core.state import RunState
from aggregator.maintenance.finding import RESTORE, Finding
from aggregator.storage.engine import sqlite_url
from aggregator.storage.registry_table import read_entries
from aggregator.storage.schema import has_tables
from aggregator.storage.sql_store import FLEET, FLEET_NAMES, RUN_NAMES, read_rounds, replay
from host.files import is_locked
from wire.errors import ConfigError

T = TypeVar("T")

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


@dataclass(frozen=True)
class SavedRun:
    """What a database has of a run. `state`: None before it has begun."""

    state: RunState | None
    records: list[RoundRecord]


@dataclass
class Contents:
    """What was read of a database."""

    runs: dict[str, SavedRun] = field(default_factory=dict)
    """By name, in the order in which they were started."""
    fleets: dict[str, FleetState] = field(default_factory=dict)
    """Releases of each fleet."""
    damage: list[str] = field(default_factory=list)
    """Faults of the file, or of rows. What has one is left out."""


def read_database(path: Path) -> Contents:
    """Read a database, which may be in use, and check it; nothing is written. Damage raises
    nothing: it is in the result.

    Raises:
        ConfigError: it has another schema.
        StorageFailed: it cannot be read, which says nothing of what is in it.
    """
    try:
        with _reading(path) as connection:
            found = [str(text) for (text,) in connection.execute("PRAGMA integrity_check(5)")]
            if found != ["ok"]:
                return Contents(
                    damage=[text.removeprefix("*** in database main ***\n") for text in found]
                )
            engine = sql.create_engine(
                sqlite_url(path), creator=lambda: connection, poolclass=StaticPool
            )
            with engine.connect() as reading:
                return _read(reading)
    except OSError as error:
        raise StorageFailed(f"database {path}: it cannot be read: {error.strerror}") from None
    except (sqlite3.Error, DBAPIError) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        if getattr(cause, "sqlite_errorcode", 0) & 0xFF not in _UNREADABLE:
            return Contents(damage=[str(cause)])
        full = shutil.disk_usage(path.parent).free < LEAST_SPACE
        why = "; no space is left on its disk" if full else ""
        raise StorageFailed(f"database {path}: it cannot be read: {cause}{why}") from None


def read_run(connection: sql.Connection, run: str) -> SavedRun:
    """Read a run of a database."""
    return SavedRun(replay(connection, run)[0], read_rounds(connection, run))


def read_whole(folder: Path) -> Contents:
    """Read the database of a service's folder, which may be in use; nothing is written.

    Raises:
        ConfigError: it is not there, is damaged, or has another schema.
        StorageFailed: it cannot be read.
    """
    path = folder / "shoal.db"
    if not path.exists():
        raise ConfigError(f"folder {folder}: there is no shoal.db; `shoal serve --folder` makes it")
    contents = read_database(path)
    if contents.damage:
        raise ConfigError(
            f"database {path}: damaged, {contents.damage[0]}; `shoal doctor` says more"
        )
    return contents


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


def check_database(folder: Path) -> tuple[Finding, Contents | None]:
    """Check ``shoal.db``. Returns the finding, and the contents of a whole database."""
    path = folder / "shoal.db"
    if not path.is_file():
        if not (folder / "blobs").exists():
            text = "it is not here: no run was begun in this folder"
            return Finding("note", path.name, text), None
        text = (
            "it is not here, but blobs are: unless `serve --database` names another one, which the "
            "doctor then has to be given as well, the run is lost. "
            f"{RESTORE[0].upper()}{RESTORE[1:]}"
        )
        return Finding("wrong", path.name, text), None
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
    runs = ", ".join(
        f"{name} ({run.state.phase}, round {run.state.round})"
        if run.state
        else f"{name} (not begun)"
        for name, run in contents.runs.items()
    )
    return Finding("ok", path.name, f"whole; {runs or 'no run'}"), contents


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


def _read(connection: sql.Connection) -> Contents:
    contents = Contents()
    if not has_tables(connection):
        return contents

    def read(what: str, part: Callable[[], T]) -> T | None:
        try:
            return part()
        except DBAPIError:
            raise
        except Exception as error:  # whatever the pure cores fail at
            contents.damage.append(f"{what} cannot be read: {type(error).__name__}: {error}")
            return None

    for name in connection.scalars(RUN_NAMES).all():
        run = read(
            f"run {name}",
            partial(read_run, connection, name),
        )
        if run is not None:
            contents.runs[name] = run
    for name in connection.scalars(FLEET_NAMES).all():
        fleet = read(
            f"the releases of fleet {name}",
            partial(replay, connection, name, FLEET),
        )
        if fleet is not None:
            contents.fleets[name] = fleet[0]
    read("the registry", partial(read_entries, connection))
    return contents
