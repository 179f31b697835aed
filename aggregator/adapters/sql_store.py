"""A run in an SQL database, by SQLAlchemy: SQLite in a file by default.

Events are the log of the run since its last snapshot, and are never changed. SQLite is put in WAL mode with synchronous=FULL: what
`commit` wrote is on the disk when it returns.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sql
from sqlalchemy.exc import SQLAlchemyError

from aggregator.core.ports import StorageFailed
from aggregator.core.record import RoundRecord
from aggregator.core.round import step
from aggregator.core.state import Event, RunState, decode_state, encode_state
from wire.errors import ConfigError

SCHEMA_VERSION = 2

_metadata = sql.MetaData()
_schema = sql.Table("schema_version", _metadata, sql.Column("version", sql.Integer, primary_key=True))
_events = sql.Table(
    "events",
    _metadata,
    sql.Column("seq", sql.Integer, primary_key=True, autoincrement=True),
    sql.Column("run", sql.String(64), nullable=False, index=True),
    sql.Column("event", sql.LargeBinary, nullable=False),
)
_snapshots = sql.Table(
    "snapshots",
    _metadata,
    sql.Column("run", sql.String(64), primary_key=True),
    sql.Column("state", sql.LargeBinary, nullable=False),
)
_runs = sql.Table(
    "runs",
    _metadata,
    sql.Column("number", sql.Integer, primary_key=True, autoincrement=True),
    sql.Column("run", sql.String(64), nullable=False, unique=True),
)
_checks = sql.Table("checks", _metadata, sql.Column("filler", sql.LargeBinary))
_rounds = sql.Table(
    "rounds",
    _metadata,
    sql.Column("run", sql.String(64), primary_key=True),
    sql.Column("round", sql.Integer, primary_key=True),
    sql.Column("record", sql.LargeBinary, nullable=False),
)


def sqlite_url(path: Path) -> str:
    """The database URL of an SQLite file."""
    return f"sqlite:///{path}"


def database_name(url: str) -> str:
    """A database URL for people: without its password."""
    try:
        return sql.make_url(url).render_as_string(hide_password=True)
    except sql.exc.ArgumentError:
        return url


def has_run(url: str, run: str) -> bool:
    """Whether a database holds anything of a run. The database is not made, and nothing is written into it.

    Raises:
        ConfigError: the database cannot be opened.
    """
    try:
        engine = _engine(url)
        if (file := _sqlite_file(engine)) is not None and not (file.exists() and file.stat().st_size):
            return False  # SQLite would make it
        try:
            with engine.connect() as connection:
                tables = [table for table in (_events, _snapshots) if sql.inspect(connection).has_table(table.name)]
                return any(connection.scalar(sql.select(table.c.run).where(table.c.run == run).limit(1)) is not None for table in tables)
        finally:
            engine.dispose()
    except SQLAlchemyError as error:
        raise ConfigError(f"database {database_name(url)}: {str(error).splitlines()[0]}") from None


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
    """The runs in a database, in the order they were started; none where the database is not there. Nothing is written into it.

    Raises:
        ConfigError: the database cannot be opened.
    """
    try:
        engine = _engine(url)
        if (file := _sqlite_file(engine)) is not None and not (file.exists() and file.stat().st_size):
            return []
        try:
            with engine.connect() as connection:
                there = sql.inspect(connection).has_table(_runs.name)
                return list(connection.scalars(sql.select(_runs.c.run).order_by(_runs.c.number))) if there else []
        finally:
            engine.dispose()
    except SQLAlchemyError as error:
        raise ConfigError(f"database {database_name(url)}: {str(error).splitlines()[0]}") from None


class SqlStore:
    """An `aggregator.core.ports.Store` for one run of a database. Any thread may read it."""

    def __init__(self, url: str, run: str) -> None:
        """
        Raises:
            ConfigError: the database cannot be opened, or was written by another version of Shoal.
        """
        self._run = run
        try:
            self._engine = _engine(url)
            if self._engine.dialect.name == "sqlite":
                sql.event.listen(self._engine, "connect", _configure_sqlite)
            _metadata.create_all(self._engine)
            with self._engine.begin() as connection:
                version = connection.scalar(sql.select(_schema.c.version))
                if version is None:
                    connection.execute(_schema.insert().values(version=SCHEMA_VERSION))
                if connection.scalar(sql.select(_runs.c.number).where(_runs.c.run == run)) is None:
                    connection.execute(_runs.insert().values(run=run))
            self._file = _sqlite_file(self._engine)
            self._identity = _identity(self._file)
        except (SQLAlchemyError, OSError) as error:
            raise ConfigError(f"database {database_name(url)}: {str(error).splitlines()[0]}") from None
        if version not in (None, SCHEMA_VERSION):
            raise ConfigError(f"database {database_name(url)}: its schema is version {version}, this Shoal reads version {SCHEMA_VERSION}")

    def commit(self, events: Sequence[Event], records: Sequence[RoundRecord] = (), snapshot: RunState | None = None) -> None:
        rows = [{"run": self._run, "event": msgspec.json.encode(event)} for event in events]
        own = {"run": self._run}
        self._check_file()
        with self._transaction() as connection:
            if snapshot is None and rows:
                connection.execute(_events.insert(), rows)
            for record in records:
                self._replace(connection, _rounds, {**own, "round": record.round}, {"record": msgspec.json.encode(record)})
            if snapshot is not None:
                connection.execute(_events.delete().where(_events.c.run == self._run))
                self._replace(connection, _snapshots, own, {"state": encode_state(snapshot)})

    def load(self) -> RunState | None:
        with self._transaction() as connection:
            encoded = connection.scalar(sql.select(_snapshots.c.state).where(_snapshots.c.run == self._run))
            later = sql.select(_events.c.event).where(_events.c.run == self._run).order_by(_events.c.seq)
            state = decode_state(encoded) if encoded is not None else None
            for (payload,) in connection.execute(later):
                try:
                    state, _ = step(state, msgspec.json.decode(payload, type=Event))
                except (LookupError, ValueError) as error:
                    text = f"its log cannot be replayed: {type(error).__name__}: {error}"
                    raise StorageFailed(f"database {self._engine.url}: run {self._run}: {text}; `shoal doctor` says more") from None
        return state

    def rounds(self) -> list[RoundRecord]:
        chosen = sql.select(_rounds.c.record).where(_rounds.c.run == self._run).order_by(_rounds.c.round)
        with self._transaction() as connection:
            return [msgspec.json.decode(payload, type=RoundRecord) for (payload,) in connection.execute(chosen)]

    def check(self) -> None:
        self._check_file()
        with self._transaction() as connection:
            connection.execute(_checks.delete())
            connection.execute(_checks.insert().values(filler=bytes(2**14)))

    def runs(self) -> list[str]:
        """The runs in this database, in the order they were started."""
        with self._transaction() as connection:
            return list(connection.scalars(sql.select(_runs.c.run).order_by(_runs.c.number)))

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    def _check_file(self) -> None:
        """Check that the file which SQLite has open is still the one of that name: what is written to another is lost at the next start.

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
            raise StorageFailed(f"database {self._engine.url}: {str(error).splitlines()[0]}") from None
        except msgspec.MsgspecError as error:
            raise StorageFailed(f"database {self._engine.url}: a row of run {self._run} cannot be read: {error}") from None

    @staticmethod
    def _replace(connection: sql.Connection, table: sql.Table, key: dict[str, Any], values: dict[str, Any]) -> None:
        connection.execute(table.delete().where(*(table.c[name] == value for name, value in key.items())))
        connection.execute(table.insert().values(**key, **values))


def _engine(url: str) -> sql.Engine:
    """SQLAlchemy's engine for a database.

    Raises:
        ConfigError: its driver is not installed.
        SQLAlchemyError: not a URL, or of an unknown kind of database.
    """
    try:
        return sql.create_engine(url)
    except ImportError as error:
        raise ConfigError(f"database {database_name(url)}: its driver is not installed: {error}") from None


def _sqlite_file(engine: sql.Engine) -> Path | None:
    """The file of an SQLite database that is one."""
    name = engine.url.database if engine.dialect.name == "sqlite" else None
    return Path(name) if name and name != ":memory:" and not name.startswith("file:") else None


def _identity(file: Path | None) -> tuple[int, int] | None:
    """By what the file of a name is told from another that takes its place.

    Raises:
        OSError: it is not there.
    """
    if file is None:
        return None
    found = file.stat()
    return found.st_dev, found.st_ino


def _configure_sqlite(connection: Any, _record: object) -> None:
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA busy_timeout=10000")
