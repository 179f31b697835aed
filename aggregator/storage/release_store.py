"""A fleet's releases and rollouts in the service's database: a log of events since the last
snapshot, as for runs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
import sqlalchemy as sql
from sqlalchemy.exc import SQLAlchemyError

from aggregator.core.ports import StorageFailed
from aggregator.core.release.rollout import step
from aggregator.core.release.state import FleetEvent, FleetState, decode_fleet, encode_fleet
from aggregator.storage.engine import database_name, make_engine
from aggregator.storage.schema import prepare
from aggregator.storage.sql_store import Fence
from aggregator.storage.tables import RELEASE_EVENTS, RELEASE_SNAPSHOTS
from wire.errors import ConfigError

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
            with self._engine.begin() as connection:
                prepare(connection)
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
                rows = [
                    {"fleet": self._fleet, "event": msgspec.json.encode(event)} for event in events
                ]
                connection.execute(RELEASE_EVENTS.insert(), rows)
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
            encoded = connection.scalar(
                sql.select(RELEASE_SNAPSHOTS.c.state).where(
                    RELEASE_SNAPSHOTS.c.fleet == self._fleet
                )
            )
            log = (
                sql.select(RELEASE_EVENTS.c.event)
                .where(RELEASE_EVENTS.c.fleet == self._fleet)
                .order_by(RELEASE_EVENTS.c.seq)
            )
            events = list(connection.scalars(log))
            self._since_snapshot = len(events)
            return replayed(encoded, events)

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    def _snapshot(self, connection: sql.Connection, state: FleetState) -> None:
        for table in (RELEASE_EVENTS, RELEASE_SNAPSHOTS):
            connection.execute(table.delete().where(table.c.fleet == self._fleet))
        connection.execute(
            RELEASE_SNAPSHOTS.insert().values(fleet=self._fleet, state=encode_fleet(state))
        )

    @contextmanager
    def _transaction(self) -> Iterator[sql.Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except (SQLAlchemyError, OSError) as error:
            raise StorageFailed(f"database {self._name}: {str(error).splitlines()[0]}") from None
        except (msgspec.MsgspecError, LookupError) as error:
            told = (
                f"the log of fleet {self._fleet}'s releases cannot be read: {error}; `shoal "
                "doctor` says more"
            )
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
