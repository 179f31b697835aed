"""A fleet's releases and rollouts in the service's database: a log of events since the last snapshot, as for runs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
import sqlalchemy as sql
from sqlalchemy.exc import SQLAlchemyError

from aggregator.adapters.engine import database_name, make_engine
from aggregator.adapters.sql_store import Fence
from aggregator.adapters.tables import NUMBER
from aggregator.core.ports import StorageFailed
from aggregator.core.rollout import step
from aggregator.core.rollout_state import FleetEvent, FleetState, decode_fleet, encode_fleet
from wire.errors import ConfigError

METADATA = sql.MetaData()
_events = sql.Table(
    "release_events",
    METADATA,
    sql.Column("seq", NUMBER, primary_key=True, autoincrement=True),
    sql.Column("fleet", sql.String(64), nullable=False, index=True),
    sql.Column("event", sql.LargeBinary, nullable=False),
)
_snapshots = sql.Table(
    "release_snapshots",
    METADATA,
    sql.Column("fleet", sql.String(64), primary_key=True),
    sql.Column("state", sql.LargeBinary, nullable=False),
)
SNAPSHOT_EVERY = 1000
"""After so many events the state itself is written, and they are forgotten."""


class ReleaseStore:
    """Keeps the releases of one fleet. What `commit` wrote is safe when it returns."""

    def __init__(self, url: str, fleet: str, fence: Fence | None = None) -> None:
        """`fence`: what has to hold in every transaction that writes.

        Raises:
            ConfigError: the database cannot be opened.
        """
        self._fleet, self._name, self._fence = fleet, database_name(url), fence
        self._engine = make_engine(url)
        try:
            METADATA.create_all(self._engine)
        except SQLAlchemyError as error:
            raise ConfigError(f"database {self._name}: {str(error).splitlines()[0]}") from None
        self._since_snapshot = 0

    def commit(self, events: Sequence[FleetEvent], state: FleetState) -> None:
        """Add events to the log: all, or nothing. `state` is the one after them.

        Raises:
            StorageFailed: nothing was written.
        """
        with self._transaction() as connection:
            if self._fence is not None:
                self._fence(connection)
            if self._since_snapshot + len(events) >= SNAPSHOT_EVERY:
                self._snapshot(connection, state)
            else:
                connection.execute(_events.insert(), [{"fleet": self._fleet, "event": msgspec.json.encode(event)} for event in events])
        self._since_snapshot = (self._since_snapshot + len(events)) % SNAPSHOT_EVERY

    def replace(self, state: FleetState) -> None:
        """Write a state in place of all that there is.

        Raises:
            StorageFailed: nothing was written.
        """
        with self._transaction() as connection:
            if self._fence is not None:
                self._fence(connection)
            self._snapshot(connection, state)

    def load(self) -> FleetState:
        """The state after every event in the log.

        Raises:
            StorageFailed: it cannot be read.
        """
        with self._transaction() as connection:
            encoded = connection.scalar(sql.select(_snapshots.c.state).where(_snapshots.c.fleet == self._fleet))
            log = sql.select(_events.c.event).where(_events.c.fleet == self._fleet).order_by(_events.c.seq)
            events = list(connection.scalars(log))
            self._since_snapshot = len(events)
            return replayed(encoded, events)

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    def _snapshot(self, connection: sql.Connection, state: FleetState) -> None:
        for table in (_events, _snapshots):
            connection.execute(table.delete().where(table.c.fleet == self._fleet))
        connection.execute(_snapshots.insert().values(fleet=self._fleet, state=encode_fleet(state)))

    @contextmanager
    def _transaction(self) -> Iterator[sql.Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except (SQLAlchemyError, OSError) as error:
            raise StorageFailed(f"database {self._name}: {str(error).splitlines()[0]}") from None
        except (msgspec.MsgspecError, LookupError) as error:
            told = f"the log of fleet {self._fleet}'s releases cannot be read: {error}; `shoal doctor` says more"
            raise StorageFailed(f"database {self._name}: {told}") from None


def replayed(snapshot: bytes | None, events: Sequence[bytes]) -> FleetState:
    """The state after a snapshot and the events behind it.

    Raises:
        MsgspecError, LookupError: a row is not what it should be.
    """
    state = decode_fleet(snapshot) if snapshot is not None else FleetState()
    for payload in events:
        state, _ = step(state, msgspec.json.decode(payload, type=FleetEvent))
    return state
