"""The tables of the service's databases, and the version of their schema.

A PostgreSQL database has all of them in use. In SQLite those of enrolment are in use in a file of
their own."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import sqlalchemy as sql

from aggregator.core.ports import StorageFailed
from aggregator.storage.engine import database_name, make_engine, sqlite_file, using
from wire.errors import ConfigError, ShoalError

VERSION = 1
"""A database of another version is refused."""
_LOCK = 5_407_226  # of PostgreSQL: two services that start at a time must not both make the tables

METADATA = sql.MetaData()
NUMBER = sql.BigInteger().with_variant(
    sql.Integer, "sqlite"
)  # SQLite counts up by itself only in a column of this very type

# By run, or by fleet (`aggregator.storage.sql_store.FLEET`), the log of events since the last
# snapshot, that snapshot, and the number of commits so far.
EVENTS = sql.Table(
    "events",
    METADATA,
    sql.Column("seq", NUMBER, primary_key=True, autoincrement=True),
    sql.Column("run", sql.String(72), nullable=False, index=True),
    sql.Column("event", sql.LargeBinary, nullable=False),
)
SNAPSHOTS = sql.Table(
    "snapshots",
    METADATA,
    sql.Column("run", sql.String(72), primary_key=True),
    sql.Column("state", sql.LargeBinary, nullable=False),
)
RUNS = sql.Table(
    "runs",
    METADATA,
    sql.Column("number", sql.Integer, primary_key=True, autoincrement=True),
    sql.Column("run", sql.String(72), nullable=False, unique=True),
    sql.Column("commits", sql.BigInteger, nullable=False, server_default="0"),
)
ROUNDS = sql.Table(
    "rounds",
    METADATA,
    sql.Column("run", sql.String(64), primary_key=True),
    sql.Column("round", sql.Integer, primary_key=True),
    sql.Column("record", sql.LargeBinary, nullable=False),
)
CHECKS = sql.Table("checks", METADATA, sql.Column("filler", sql.LargeBinary))
LEASES = sql.Table(
    "leases",
    METADATA,
    sql.Column("fleet", sql.String(64), primary_key=True),
    sql.Column("epoch", sql.BigInteger, nullable=False),
    sql.Column("holder", sql.String(64), nullable=False),
    sql.Column("beat", sql.BigInteger, nullable=False),
    sql.Column("secret", sql.String(64), nullable=False),
)
SCHEMA_VERSION = sql.Table(
    "schema_version", METADATA, sql.Column("version", sql.Integer, primary_key=True)
)
"""One row, of `VERSION`."""
DEVICES = sql.Table(
    "devices",
    METADATA,
    sql.Column("device_id", sql.String(64), primary_key=True),
    sql.Column("entry", sql.LargeBinary, nullable=False),
)
CHARTERS = sql.Table(
    "charters",
    METADATA,
    sql.Column("run", sql.String(64), primary_key=True),
    sql.Column("charter", sql.LargeBinary, nullable=False),
    sql.Column("files", sql.Text, nullable=False),
)
TOKENS = sql.Table(
    "enrolment_tokens",
    METADATA,
    sql.Column("hash", sql.String(64), primary_key=True),
    sql.Column("made_at_s", sql.Float, nullable=False),
    sql.Column("expires_at_s", sql.Float, nullable=False),
    sql.Column("device_id", sql.String(64), nullable=False),
    sql.Column("tags", sql.Text, nullable=False),
    sql.Column("approve", sql.Boolean, nullable=False),
    sql.Column("used_key", sql.String(64), nullable=False),
    sql.Column("used_by", sql.String(64), nullable=False),
)
ENROLLED = sql.Table(
    "enrolment_devices",
    METADATA,
    sql.Column("device_id", sql.String(64), primary_key=True),
    sql.Column("state", sql.String(16), nullable=False),
    sql.Column("key", sql.String(64), nullable=False),
    sql.Column("previous_key", sql.String(64), nullable=False),
    sql.Column("certificate", sql.Text, nullable=False),
    sql.Column("not_after_s", sql.Float, nullable=False),
    sql.Column("token", sql.String(64), nullable=False),
    sql.Column("tags", sql.Text, nullable=False),
    sql.Column("since_s", sql.Float, nullable=False),
)
BANS = sql.Table(
    "enrolment_bans",
    METADATA,
    sql.Column("device_id", sql.String(64), primary_key=True),
    sql.Column("lifted", sql.Boolean, nullable=False),
    sql.Column("at_s", sql.Float, nullable=False),
)
AUDIT = sql.Table(
    "enrolment_audit",
    METADATA,
    sql.Column("number", sql.Integer, primary_key=True, autoincrement=True),
    sql.Column("at_s", sql.Float, nullable=False),
    sql.Column("what", sql.String(32), nullable=False),
    sql.Column("device_id", sql.String(64), nullable=False),
    sql.Column("token", sql.String(64), nullable=False),
    sql.Column("detail", sql.Text, nullable=False),
)


def opened(url: str) -> sql.Engine:
    """Return the engine of a database that has its tables; one that is not there is made.

    Raises:
        ConfigError: it cannot be opened, or has another schema.
    """
    engine = make_engine(url)
    with using(url, ConfigError), engine.begin() as connection:
        if has_tables(connection):
            return engine
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            connection.execute(sql.select(sql.func.pg_advisory_xact_lock(_LOCK)))
        if not has_tables(connection):  # somebody else may have made them meanwhile
            METADATA.create_all(connection)
            connection.execute(SCHEMA_VERSION.insert().values(version=VERSION))
    return engine


Fence = Callable[[sql.Connection], None]
"""Called first in a transaction that writes; raises `StorageFailed` where this service may not
write any more."""


class Database:
    """Connections to a database that has its tables. Any thread may use it."""

    def __init__(self, url: str, fence: Fence | None = None) -> None:
        """`fence`: what has to hold in every transaction that writes.

        Raises:
            ConfigError: the database cannot be opened, or has another schema.
        """
        self._engine, self._url, self._fence = opened(url), url, fence

    @contextmanager
    def _transaction(self, writes: bool = False) -> Iterator[sql.Connection]:
        with using(self._url, StorageFailed), self._engine.begin() as connection:
            if writes and self._fence is not None:
                self._fence(connection)
            yield connection

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()


@contextmanager
def reading(url: str, kind: type[ShoalError] = ConfigError) -> Iterator[sql.Connection | None]:
    """Open a connection that only reads; None where the database is not there or is empty. Nothing
    is made or written. `kind`: of the error where it cannot be read.

    Raises:
        ConfigError: it has another schema.
    """
    engine = make_engine(url)
    file = sqlite_file(engine)
    try:
        if file is not None and not (file.exists() and file.stat().st_size):
            yield None  # SQLite would make it
        else:
            with using(url, kind), engine.connect() as connection:
                yield connection if has_tables(connection) else None
    finally:
        engine.dispose()


def has_tables(connection: sql.Connection) -> bool:
    """Return false where nothing of Shoal is in a database.

    Raises:
        ConfigError: it has another schema.
    """
    if not sql.inspect(connection).has_table(SCHEMA_VERSION.name):
        return False
    version = connection.scalar(sql.select(SCHEMA_VERSION.c.version))
    if version != VERSION:
        raise ConfigError(
            f"database {database_name(str(connection.engine.url))}: its schema is version "
            f"{version}, and this Shoal reads version {VERSION}: use the Shoal that wrote it, or "
            "begin in another folder"
        )
    return True
