"""A run in an SQL database, by SQLAlchemy: SQLite in a file by default, or PostgreSQL.

Events are the log of the run since its last snapshot, and are never changed. What `commit` wrote is
on the disk when it returns (`aggregator.storage.engine`). A commit whose answer is lost may have
been carried out. So each has a number: after one that failed, the store writes nothing before
`load` has told what there is, and no commit is written after another that this store does not know
of.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sql
from sqlalchemy.exc import SQLAlchemyError

from aggregator.core.ports import StorageFailed
from aggregator.core.record import RoundRecord
from aggregator.core.round.machine import step
from aggregator.core.state import Event, RunState, decode_state, encode_state
from aggregator.storage.engine import database_name, make_engine, sqlite_file
from aggregator.storage.schema import prepare
from aggregator.storage.tables import CHECKS, EVENTS, ROUNDS, RUNS, SNAPSHOTS
from wire.errors import ConfigError

LARGEST_ROUND = 2**31 - 1
"""What a column of rounds can hold, and be compared with, in every database."""


def has_run(url: str, run: str) -> bool:
    """Whether a database holds anything of a run. The database is not made, and nothing is written
    into it.

    Raises:
        ConfigError: the database cannot be opened.
    """
    try:
        engine = make_engine(url)
        if (file := sqlite_file(engine)) is not None and not (
            file.exists() and file.stat().st_size
        ):
            return False  # SQLite would make it
        try:
            with engine.connect() as connection:
                tables = [
                    table
                    for table in (EVENTS, SNAPSHOTS)
                    if sql.inspect(connection).has_table(table.name)
                ]
                return any(
                    connection.scalar(sql.select(table.c.run).where(table.c.run == run).limit(1))
                    is not None
                    for table in tables
                )
        finally:
            engine.dispose()
    except SQLAlchemyError as error:
        raise ConfigError(f"database {database_name(url)}: {str(error).splitlines()[0]}") from None


def runs_of(url: str) -> list[str]:
    """The runs in a database of the newest schema, in the order they were started; nothing is
    written.

    Raises:
        ConfigError: the database cannot be opened.
    """
    engine = make_engine(url)
    try:
        with engine.connect() as connection:
            return list(connection.scalars(sql.select(RUNS.c.run).order_by(RUNS.c.number)))
    except SQLAlchemyError as error:
        raise ConfigError(f"database {database_name(url)}: {str(error).splitlines()[0]}") from None
    finally:
        engine.dispose()


Fence = Callable[[sql.Connection], None]
"""Called first in a transaction that writes; raises `StorageFailed` where this service may not
write any more."""


def load_run(url: str, run: str) -> RunState | None:
    """The state of a run; None where the database has none of this name. The database is not made.

    Raises:
        ConfigError: the database cannot be opened.
        StorageFailed: it cannot be read.
    """
    if not has_run(url, run):
        return None
    with closing(SqlStore(url, run)) as store:
        return store.load()


def run_names(url: str) -> list[str]:
    """The runs in a database, in the order they were started; none where the database is not there.
    Nothing is written into it.

    Raises:
        ConfigError: the database cannot be opened.
    """
    engine = make_engine(url)
    try:
        if (file := sqlite_file(engine)) is not None and not (
            file.exists() and file.stat().st_size
        ):
            return []
        with engine.connect() as connection:
            there = sql.inspect(connection).has_table(RUNS.name)
            return (
                list(connection.scalars(sql.select(RUNS.c.run).order_by(RUNS.c.number)))
                if there
                else []
            )
    except SQLAlchemyError as error:
        raise ConfigError(f"database {database_name(url)}: {str(error).splitlines()[0]}") from None
    finally:
        engine.dispose()


class SqlStore:
    """An `aggregator.core.ports.Store` for one run of a database. Any thread may read it."""

    def __init__(self, url: str, run: str, fence: Fence | None = None) -> None:
        """`fence`: what has to hold in every transaction that writes.

        Raises:
            ConfigError: the database cannot be opened, or has another schema:
            `aggregator.storage.schema.upgrade` takes up an older one.
        """
        self._run, self._fence = run, fence
        try:
            self._engine = make_engine(url)
            with self._engine.begin() as connection:
                prepare(connection)
                self._commits: int | None = connection.scalar(
                    sql.select(RUNS.c.commits).where(RUNS.c.run == run)
                )
                if self._commits is None:
                    connection.execute(RUNS.insert().values(run=run))
                    self._commits = 0
            self._file = sqlite_file(self._engine)
            self._identity = _identity(self._file)
        except (SQLAlchemyError, OSError) as error:
            raise ConfigError(
                f"database {database_name(url)}: {str(error).splitlines()[0]}"
            ) from None

    def commit(
        self,
        events: Sequence[Event],
        records: Sequence[RoundRecord] = (),
        snapshot: RunState | None = None,
    ) -> None:
        rows = [{"run": self._run, "event": msgspec.json.encode(event)} for event in events]
        own = {"run": self._run}
        self._check_file()
        commits, self._commits = self._commits, None
        with self._transaction() as connection:
            self._number(connection, commits)
            if snapshot is None and rows:
                connection.execute(EVENTS.insert(), rows)
            for record in records:
                self._replace(
                    connection,
                    ROUNDS,
                    {**own, "round": record.round},
                    {"record": msgspec.json.encode(record)},
                )
            if snapshot is not None:
                connection.execute(EVENTS.delete().where(EVENTS.c.run == self._run))
                self._replace(connection, SNAPSHOTS, own, {"state": encode_state(snapshot)})
        self._commits = (commits or 0) + 1

    def load(self) -> RunState | None:
        with self._transaction() as connection:
            commits = connection.scalar(
                sql.select(RUNS.c.commits).where(RUNS.c.run == self._run)
            )  # first: what comes later is not known
            encoded = connection.scalar(
                sql.select(SNAPSHOTS.c.state).where(SNAPSHOTS.c.run == self._run)
            )
            later = (
                sql.select(EVENTS.c.event).where(EVENTS.c.run == self._run).order_by(EVENTS.c.seq)
            )
            state = decode_state(encoded) if encoded is not None else None
            for (payload,) in connection.execute(later):
                try:
                    state, _ = step(state, msgspec.json.decode(payload, type=Event))
                except (LookupError, ValueError) as error:
                    text = f"its log cannot be replayed: {type(error).__name__}: {error}"
                    raise StorageFailed(
                        f"database {self._engine.url}: run {self._run}: {text}; `shoal doctor` "
                        "says more"
                    ) from None
        self._commits = commits
        return state

    def rounds(self, after: int = 0, until: int | None = None) -> list[RoundRecord]:
        chosen = sql.select(ROUNDS.c.record).where(
            ROUNDS.c.run == self._run, ROUNDS.c.round > min(after, LARGEST_ROUND)
        )
        chosen = (
            chosen if until is None else chosen.where(ROUNDS.c.round <= min(until, LARGEST_ROUND))
        )
        chosen = chosen.order_by(ROUNDS.c.round)
        with self._transaction() as connection:
            return [
                msgspec.json.decode(payload, type=RoundRecord)
                for (payload,) in connection.execute(chosen)
            ]

    def check(self) -> None:
        self._check_file()
        with self._transaction() as connection:
            connection.execute(CHECKS.delete())
            connection.execute(CHECKS.insert().values(filler=bytes(2**14)))

    def runs(self) -> list[str]:
        """The runs in this database, in the order they were started."""
        with self._transaction() as connection:
            return list(connection.scalars(sql.select(RUNS.c.run).order_by(RUNS.c.number)))

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    def _check_file(self) -> None:
        """Check that the file which SQLite has open is still the one of that name: what is written
        to another is lost at the next start.

        Raises:
            StorageFailed: it is not.
        """
        try:
            same = _identity(self._file) == self._identity
        except OSError:
            same = False
        if not same:
            told = "the file was removed or replaced while the service ran: restart the service"
            raise StorageFailed(f"database {database_name(str(self._engine.url))}: {told}")

    @contextmanager
    def _transaction(self) -> Iterator[sql.Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except (SQLAlchemyError, sqlite3.Error, OSError) as error:
            raise StorageFailed(
                f"database {self._engine.url}: {str(error).splitlines()[0]}"
            ) from None
        except msgspec.MsgspecError as error:
            raise StorageFailed(
                f"database {self._engine.url}: a row of run {self._run} cannot be read: {error}"
            ) from None

    def _number(self, connection: sql.Connection, commits: int | None) -> None:
        """Begin to write: the next commit after that of this number.

        Raises:
            StorageFailed: this store does not know what was written last, or may not write.
        """
        if self._fence is not None:
            self._fence(connection)
        own = (RUNS.c.run == self._run, RUNS.c.commits == commits)
        if (
            commits is None
            or connection.execute(RUNS.update().where(*own).values(commits=commits + 1)).rowcount
            != 1
        ):
            name = database_name(str(self._engine.url))
            raise StorageFailed(
                f"database {name}: run {self._run}: what was written last is not known, it has to "
                "be read again"
            )

    @staticmethod
    def _replace(
        connection: sql.Connection, table: sql.Table, key: dict[str, Any], values: dict[str, Any]
    ) -> None:
        connection.execute(
            table.delete().where(*(table.c[name] == value for name, value in key.items()))
        )
        connection.execute(table.insert().values(**key, **values))


def _identity(file: Path | None) -> tuple[int, int] | None:
    """By what the file of a name is told from another that takes its place.

    Raises:
        OSError: it is not there.
    """
    if file is None:
        return None
    found = file.stat()
    return found.st_dev, found.st_ino
