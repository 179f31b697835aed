"""Which schema a service's database has, and the migrations to the one that this Shoal writes.

A database is migrated in one transaction, in SQLite as in PostgreSQL: where a migration fails, the
database is what it was.
"""

import logging
from pathlib import Path

import sqlalchemy as sql
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy.exc import SQLAlchemyError

from aggregator.storage.engine import database_name, make_engine, sqlite_file
from aggregator.storage.migrations.versions import r0002_first
from wire.errors import ConfigError

log = logging.getLogger("shoal.aggregator")

MIGRATIONS = Path(__file__).with_name("migrations")
VERSION = 2
"""The only schema with a version and no revision that is taken up."""
_LOCK = 5_407_226  # of PostgreSQL: two services that start at a time must not both migrate


def newest() -> str:
    """The revision that this Shoal writes."""
    return str(ScriptDirectory(str(MIGRATIONS)).get_current_head())


def readable() -> set[str]:
    """The revisions that this Shoal takes up, and the version from before there were any."""
    return {script.revision for script in ScriptDirectory(str(MIGRATIONS)).walk_revisions()} | {
        str(VERSION)
    }


def revision_of(connection: sql.Connection) -> str:
    """A database's revision, empty where nothing of Shoal is in it.

    Raises:
        ConfigError: this Shoal cannot read it.
    """
    tables = sql.inspect(connection)
    if tables.has_table("alembic_version"):
        revision = connection.scalar(sql.text("SELECT version_num FROM alembic_version"))
        if revision in readable():
            return str(revision)
    elif not tables.has_table("schema_version"):
        return ""
    else:
        revision = connection.scalar(sql.text("SELECT version FROM schema_version"))
        if revision in (None, VERSION):  # none: a start was killed before it wrote one
            return r0002_first.revision
    raise ConfigError(_name(connection) + newer(revision))


def newer(revision: object) -> str:
    """What there is to say of a database that this Shoal cannot read."""
    return (
        f"its schema is version {revision}, this Shoal reads up to {newest()}: use the Shoal that "
        "wrote it"
    )


def upgrade(url: str) -> tuple[str, str]:
    """Migrate a database to the newest revision; one that is not there is made. Returns the
    revisions before and after.

    Raises:
        ConfigError: it cannot be opened, was written by a newer Shoal, or a migration failed: then
        it is as it was.
    """
    engine = make_engine(url)
    try:
        with engine.begin() as connection:
            _lock(connection)
            before = revision_of(connection)
            if before != newest():
                migrate(connection, MIGRATIONS)
                log.info("%sschema %s, it was %s", _name(connection), newest(), before or "empty")
    except (SQLAlchemyError, OSError) as error:
        raise ConfigError(
            f"database {database_name(url)}: {str(error).splitlines()[0]}; nothing was changed"
        ) from None
    finally:
        engine.dispose()
    return before, newest()


def prepare(connection: sql.Connection) -> None:
    """Make the tables of an empty database.

    Raises:
        ConfigError: it has another schema than this Shoal writes.
    """
    revision = revision_of(connection)
    if not revision:
        _lock(connection)
        revision = revision_of(connection)  # somebody else may have made them meanwhile
    if not revision:
        migrate(connection, MIGRATIONS)
    elif revision != newest():
        told = f"its schema is version {revision}, this Shoal writes {newest()}"
        raise ConfigError(
            f"{_name(connection)}{told}: stop the service that uses it, then `shoal database "
            "upgrade`, or `shoal serve`"
        )


def current(url: str) -> str:
    """The revision of a database, which is only read; empty where there is none.

    Raises:
        ConfigError: it cannot be opened, or was written by a newer Shoal.
    """
    engine = make_engine(url)
    try:
        if (file := sqlite_file(engine)) is not None and not (
            file.exists() and file.stat().st_size
        ):
            return ""  # SQLite would make it
        with engine.connect() as connection:
            return revision_of(connection)
    except (SQLAlchemyError, OSError) as error:
        raise ConfigError(f"database {database_name(url)}: {str(error).splitlines()[0]}") from None
    finally:
        engine.dispose()


def has_leases(revision: str) -> bool:
    """Whether two services may share a database of this revision."""
    return revision not in ("", r0002_first.revision)


def migrate(connection: sql.Connection, folder: Path) -> None:
    """Run the migrations of a folder that the database has not had, in the connection's
    transaction."""
    config = Config()
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    config.attributes["connection"] = connection
    r0002_first.create(connection)
    command.upgrade(config, "head")


def _lock(connection: sql.Connection) -> None:
    """Begin to write: two that start at a time must not both migrate."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    else:
        connection.execute(sql.select(sql.func.pg_advisory_xact_lock(_LOCK)))


def _name(connection: sql.Connection) -> str:
    return f"database {connection.engine.url.render_as_string()}: "
