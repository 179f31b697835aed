"""Tables of the service's databases, and the version of their schema.

A PostgreSQL database uses all tables. SQLite has the tables of enrolment in a file of their own.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sql

from aggregator.ports import StorageFailed
from aggregator.storage.engine import database_name, make_engine, sqlite_file, using
from wire.errors import ConfigError, ShoalError

VERSION = 1
"""Version of the schema; a database of another version is refused."""
_LOCK = 5_407_226  # number of PostgreSQL's lock that lets only one service make the tables

METADATA = sql.MetaData()
NUMBER = sql.BigInteger().with_variant(
    sql.Integer, "sqlite"
)  # SQLite generates keys only for a column of exactly this type

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
"""One row, with `VERSION`."""
TELEMETRY = sql.Table(
    "telemetry",
    METADATA,
    sql.Column("device_id", sql.String(64), primary_key=True),
    sql.Column("record", sql.LargeBinary, nullable=False),
)
# Rows of a fleet (`aggregator.storage.fleet_store`).
FLEET = sql.Table(
    "fleet",
    METADATA,
    sql.Column("number", sql.Integer, primary_key=True, autoincrement=False),
    sql.Column("commits", sql.BigInteger, nullable=False),
    sql.Column("record", sql.LargeBinary, nullable=False),
)
"""One row: number of commits, and the fleet's fields that are not in other tables."""
DEVICE_RECORDS = sql.Table(
    "device_records",
    METADATA,
    sql.Column("device_id", sql.String(64), primary_key=True),
    sql.Column("record", sql.LargeBinary, nullable=False),
)
MEMBERS = sql.Table(
    "members",
    METADATA,
    sql.Column("campaign", sql.String(64), primary_key=True),
    sql.Column("device_id", sql.String(64), primary_key=True),
    sql.Column("member", sql.LargeBinary),
    sql.Column("received", sql.LargeBinary),
)
"""`Member` and counted update of a device in a campaign, each NULL if absent."""
CAMPAIGN_PARTS = sql.Table(
    "campaign_parts",
    METADATA,
    sql.Column("campaign", sql.String(64), primary_key=True),
    sql.Column("part", sql.String(32), primary_key=True),
    sql.Column("record", sql.LargeBinary, nullable=False),
)
RELEASES = sql.Table(
    "releases",
    METADATA,
    sql.Column("number", NUMBER, primary_key=True, autoincrement=False),
    sql.Column("record", sql.LargeBinary, nullable=False),
)
ROLLOUTS = sql.Table(
    "rollouts",
    METADATA,
    sql.Column("place", sql.Integer, primary_key=True, autoincrement=False),
    sql.Column("record", sql.LargeBinary, nullable=False),
)
"""Rollouts by their position in the fleet's list, from 0."""
ROUND_RECORDS = sql.Table(
    "round_records",
    METADATA,
    sql.Column("campaign", sql.String(64), primary_key=True),
    sql.Column("round", sql.Integer, primary_key=True),
    sql.Column("views", sql.String(64), nullable=False),
    sql.Column("record", sql.LargeBinary, nullable=False),
)
"""`RoundRecord` of each round of a campaign, and the digest of its distance matrices."""
JOURNAL = sql.Table(
    "journal",
    METADATA,
    sql.Column("number", NUMBER, primary_key=True, autoincrement=False),
    sql.Column("events", sql.LargeBinary, nullable=False),
)
"""Events of each commit, for people. Nothing is read back from it."""
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
    """Return the engine of a database, with its tables; an absent database is made.

    Raises:
        ConfigError: the database cannot be opened, or has another schema.
    """
    engine = make_engine(url)
    with using(url, ConfigError), engine.begin() as connection:
        if has_tables(connection):
            return engine
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            connection.execute(sql.select(sql.func.pg_advisory_xact_lock(_LOCK)))
        if not has_tables(connection):  # another process may have made them meanwhile
            METADATA.create_all(connection)
            connection.execute(SCHEMA_VERSION.insert().values(version=VERSION))
    return engine


Fence = Callable[[sql.Connection], None]
"""Called first in a transaction that writes; raises `StorageFailed` if writing is forbidden."""


class Database:
    """Connections to a database that has its tables. Any thread may use it."""

    def __init__(self, url: str, fence: Fence | None = None) -> None:
        """Open the database.

        `fence`: condition that is checked in every transaction that writes.

        Raises:
            ConfigError: the database cannot be opened, or has another schema.
        """
        self._engine, self._url, self._fence = opened(url), url, fence
        with using(url, ConfigError):
            self._file = sqlite_file(self._engine)
            self._identity = _identity(self._file)

    @contextmanager
    def _transaction(self, writes: bool = False) -> Iterator[sql.Connection]:
        with using(self._url, StorageFailed), self._engine.begin() as connection:
            if writes and self._fence is not None:
                self._fence(connection)
            yield connection

    def check(self) -> None:
        """Write a meaningless row, to test that the database can be written.

        Raises:
            StorageFailed: the database cannot be written.
        """
        self._check_file()
        with self._transaction(writes=True) as connection:
            connection.execute(CHECKS.delete())
            connection.execute(CHECKS.insert().values(filler=bytes(2**14)))

    def scrub(self) -> None:
        """Overwrite the contents of deleted rows in SQLite; other databases do so by themselves.

        Raises:
            StorageFailed: the database cannot be written.
        """
        if self._engine.dialect.name != "sqlite":
            return
        with (
            using(self._url, StorageFailed),
            self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        ):
            connection.execute(sql.text("VACUUM"))
            connection.execute(sql.text("PRAGMA wal_checkpoint(TRUNCATE)"))

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    def _check_file(self) -> None:
        """Raise StorageFailed if the file that SQLite has open was removed or replaced.

        Anything written to such a file is lost at the next start.
        """
        try:
            same = _identity(self._file) == self._identity
        except OSError:
            same = False
        if not same:
            problem = "the file was removed or replaced while the service ran: restart the service"
            raise StorageFailed(f"database {database_name(self._url)}: {problem}")


@contextmanager
def reading(url: str, kind: type[ShoalError] = ConfigError) -> Iterator[sql.Connection | None]:
    """Open a read-only connection; None if the database is absent or empty.

    Nothing is made or written. `kind`: class of the error if the database cannot be read.

    Raises:
        ConfigError: it has another schema.
    """
    engine = make_engine(url)
    file = sqlite_file(engine)
    try:
        if file is not None and not (file.exists() and file.stat().st_size):
            yield None  # opening it would make the file
        else:
            with using(url, kind), engine.connect() as connection:
                yield connection if has_tables(connection) else None
    finally:
        engine.dispose()


def has_tables(connection: sql.Connection) -> bool:
    """Return True if a database has Shoal's tables.

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


def _identity(file: Path | None) -> tuple[int, int] | None:
    """Return device and inode of a file, which differ for a file that replaces it.

    Raises:
        OSError: the file is not there.
    """
    if file is None:
        return None
    status = file.stat()
    return status.st_dev, status.st_ino
