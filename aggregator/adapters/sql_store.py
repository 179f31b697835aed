"""A run in an SQL database, by SQLAlchemy: SQLite in a file by default.

Events are the log of the run and are never changed; the snapshot only shortens a start. SQLite is put in WAL mode with
synchronous=FULL: what `append` wrote is on the disk when it returns.
"""

from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sql
from sqlalchemy.exc import SQLAlchemyError

from aggregator.core.record import RoundRecord
from aggregator.core.round import step
from aggregator.core.state import Event, RunState
from wire.errors import ConfigError

SCHEMA_VERSION = 1

_metadata = sql.MetaData()
_schema = sql.Table("schema_version", _metadata, sql.Column("version", sql.Integer, primary_key=True))
_events = sql.Table(
    "events",
    _metadata,
    sql.Column("seq", sql.Integer, primary_key=True, autoincrement=True),
    sql.Column("run_id", sql.String(64), nullable=False, index=True),
    sql.Column("event", sql.LargeBinary, nullable=False),
)
_snapshots = sql.Table(
    "snapshots",
    _metadata,
    sql.Column("run_id", sql.String(64), primary_key=True),
    sql.Column("seq", sql.Integer, nullable=False),
    sql.Column("state", sql.LargeBinary, nullable=False),
)
_rounds = sql.Table(
    "rounds",
    _metadata,
    sql.Column("run_id", sql.String(64), primary_key=True),
    sql.Column("round", sql.Integer, primary_key=True),
    sql.Column("record", sql.LargeBinary, nullable=False),
)


def sqlite_url(path: Path) -> str:
    """The database URL of an SQLite file."""
    return f"sqlite:///{path}"


class SqlStore:
    """An `aggregator.core.ports.Store` for one run of a database. Any thread may read it."""

    def __init__(self, url: str, run_id: str) -> None:
        """
        Raises:
            ConfigError: the database cannot be opened, or was written by another version of Shoal.
        """
        self._run_id = run_id
        try:
            self._engine = sql.create_engine(url)
            if self._engine.dialect.name == "sqlite":
                sql.event.listen(self._engine, "connect", _configure_sqlite)
            _metadata.create_all(self._engine)
            with self._engine.begin() as connection:
                version = connection.scalar(sql.select(_schema.c.version))
                if version is None:
                    connection.execute(_schema.insert().values(version=SCHEMA_VERSION))
        except (SQLAlchemyError, sql.exc.ArgumentError) as error:
            raise ConfigError(f"database {url}: {str(error).splitlines()[0]}") from None
        if version not in (None, SCHEMA_VERSION):
            raise ConfigError(f"database {url}: its schema is version {version}, this Shoal reads version {SCHEMA_VERSION}")

    def append(self, event: Event) -> None:
        with self._engine.begin() as connection:
            connection.execute(_events.insert().values(run_id=self._run_id, event=msgspec.json.encode(event)))

    def load(self) -> RunState | None:
        with self._engine.connect() as connection:
            row = connection.execute(sql.select(_snapshots.c.seq, _snapshots.c.state).where(_snapshots.c.run_id == self._run_id)).first()
            state = msgspec.json.decode(row.state, type=RunState) if row else None
            later = sql.select(_events.c.event).where(_events.c.run_id == self._run_id, _events.c.seq > (row.seq if row else 0))
            for (payload,) in connection.execute(later.order_by(_events.c.seq)):
                state, _ = step(state, msgspec.json.decode(payload, type=Event))
        return state

    def snapshot(self, state: RunState) -> None:
        with self._engine.begin() as connection:
            seq = connection.scalar(sql.select(sql.func.max(_events.c.seq)).where(_events.c.run_id == self._run_id)) or 0
            self._replace(connection, _snapshots, {"run_id": self._run_id}, {"seq": seq, "state": msgspec.json.encode(state)})

    def put_round(self, record: RoundRecord) -> None:
        with self._engine.begin() as connection:
            key = {"run_id": self._run_id, "round": record.round}
            self._replace(connection, _rounds, key, {"record": msgspec.json.encode(record)})

    def rounds(self) -> list[RoundRecord]:
        chosen = sql.select(_rounds.c.record).where(_rounds.c.run_id == self._run_id).order_by(_rounds.c.round)
        with self._engine.connect() as connection:
            return [msgspec.json.decode(payload, type=RoundRecord) for (payload,) in connection.execute(chosen)]

    def runs(self) -> list[str]:
        """The runs in this database, in the order they were started."""
        chosen = sql.select(_events.c.run_id).group_by(_events.c.run_id).order_by(sql.func.min(_events.c.seq))
        with self._engine.connect() as connection:
            return list(connection.scalars(chosen))

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    @staticmethod
    def _replace(connection: sql.Connection, table: sql.Table, key: dict[str, Any], values: dict[str, Any]) -> None:
        connection.execute(table.delete().where(*(table.c[name] == value for name, value in key.items())))
        connection.execute(table.insert().values(**key, **values))


def _configure_sqlite(connection: Any, _record: object) -> None:
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA busy_timeout=10000")
