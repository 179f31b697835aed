"""Connections to the service's database by SQLAlchemy: an SQLite file, or PostgreSQL by psycopg."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sql
from sqlalchemy.exc import SQLAlchemyError

from wire.errors import ConfigError, ShoalError

RESTORE = (
    "the file is damaged: stop the service, and put a backup in the place of its folder with "
    "`shoal restore`. `shoal doctor` says more"
)
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

TIMEOUT_S = 10
"""Time after which a silent connection to PostgreSQL is given up (s)."""
_PATIENCE = {
    "connect_timeout": TIMEOUT_S,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": TIMEOUT_S * 1000,
    "application_name": "shoal",
}
_SQLITE: tuple[str, ...] = (
    "PRAGMA busy_timeout=10000",
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",
)
_POSTGRESQL = (
    "SET synchronous_commit = on",  # a commit is on the disk when it returns
    "SET statement_timeout = '60s'",
    "SET lock_timeout = '10s'",
    # a process that was stopped in a transaction must not block others
    "SET idle_in_transaction_session_timeout = '5s'",
)


def sqlite_url(path: Path) -> str:
    """Return the database URL of an SQLite file."""
    return f"sqlite:///{path}"


def database_name(url: str) -> str:
    """Return a database URL without its password, for people."""
    try:
        return sql.make_url(url).render_as_string(hide_password=True)
    except (sql.exc.ArgumentError, ValueError):
        return re.sub(":.*@", ":***@", url)


def is_server(url: str) -> bool:
    """Return True if several machines can use the database."""
    return url.startswith(("postgresql", "postgres:"))


def make_engine(url: str) -> sql.Engine:
    """Return SQLAlchemy's engine for a database.

    Raises:
        ConfigError: `url` is not a URL, names another kind of database, or the driver is not
        installed.
    """
    try:
        parsed = sql.make_url(url)
        kind = parsed.get_backend_name()
        if kind == "sqlite":
            engine, statements = sql.create_engine(parsed), _SQLITE
        elif not is_server(url):
            raise ConfigError(
                f"database {database_name(url)}: expected sqlite:///PATH or "
                "postgresql://USER@HOST/NAME"
            )
        else:
            engine, statements = (
                sql.create_engine(
                    parsed.set(drivername="postgresql+psycopg"),
                    pool_pre_ping=True,
                    connect_args=_PATIENCE,
                ),
                _POSTGRESQL,
            )
    except ImportError as error:
        raise ConfigError(
            f"database {database_name(url)} needs the package {error.name}: pip install "
            "'shoal[postgres]'"
        ) from None
    except (sql.exc.ArgumentError, ValueError):
        raise ConfigError(
            f"database {database_name(url)}: expected sqlite:///PATH or postgresql://USER@HOST/NAME"
        ) from None

    def configure(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        for statement in statements:
            cursor.execute(statement)
        cursor.close()
        connection.commit()

    sql.event.listen(engine, "connect", configure)
    return engine


@contextmanager
def using(url: str, kind: type[ShoalError]) -> Iterator[None]:
    """Convert database errors in the context to errors of this kind."""
    try:
        yield
    except (SQLAlchemyError, OSError) as error:
        cause = error.__cause__ or error
        code = getattr(cause, "sqlite_errorcode", 0) & 0xFF
        problem = str(getattr(error, "orig", None) or error).splitlines()[0]
        raise kind(
            f"database {database_name(url)}: not read or written: {problem}"
            + (f"; {RESTORE}" if code in DAMAGED else "")
        ) from None
    except msgspec.MsgspecError as error:
        raise kind(
            f"database {database_name(url)}: a row cannot be read: {error}; {RESTORE}"
        ) from None


def sqlite_file(engine: sql.Engine) -> Path | None:
    """Return the path of an SQLite file, or None for any other database."""
    name = engine.url.database if engine.dialect.name == "sqlite" else None
    return Path(name) if name and name != ":memory:" and not name.startswith("file:") else None
