"""A fleet's releases and rollouts in the service's database: a log of events since the last
snapshot, as for runs."""

from collections.abc import Sequence

import msgspec
import sqlalchemy as sql

from aggregator.core.ports import StorageFailed
from aggregator.core.release.rollout import step
from aggregator.core.release.state import FleetEvent, FleetState, decode_fleet
from aggregator.core.state import encode_state
from aggregator.storage.engine import RESTORE, database_name
from aggregator.storage.schema import RELEASE_EVENTS, RELEASE_SNAPSHOTS, Database, Fence

FLEET_NAMES = sql.union(
    *(sql.select(table.c.fleet) for table in (RELEASE_SNAPSHOTS, RELEASE_EVENTS))
)
"""Selects the fleets that have releases in a database."""
SNAPSHOT_EVERY = 1000
"""After so many events the state itself is written, and they are forgotten."""


class ReleaseStore(Database):
    """Keeps the releases of one fleet. What `commit` wrote is safe when it returns."""

    def __init__(self, url: str, fleet: str, fence: Fence | None = None) -> None:
        """`fence`: what has to hold in every transaction that writes.

        Raises:
            ConfigError: the database cannot be opened.
        """
        super().__init__(url, fence)
        self._fleet, self._since_snapshot = fleet, 0

    def commit(self, events: Sequence[FleetEvent], state: FleetState) -> None:
        """Add events to the log: all, or nothing. `state` is the one after them.

        Raises:
            StorageFailed: nothing was written.
        """
        with self._transaction(writes=True) as connection:
            if self._since_snapshot + len(events) >= SNAPSHOT_EVERY:
                for table in (RELEASE_EVENTS, RELEASE_SNAPSHOTS):
                    connection.execute(table.delete().where(table.c.fleet == self._fleet))
                connection.execute(
                    RELEASE_SNAPSHOTS.insert().values(fleet=self._fleet, state=encode_state(state))
                )
            else:
                rows = [
                    {"fleet": self._fleet, "event": msgspec.json.encode(event)} for event in events
                ]
                connection.execute(RELEASE_EVENTS.insert(), rows)
        self._since_snapshot = (self._since_snapshot + len(events)) % SNAPSHOT_EVERY

    def load(self) -> FleetState:
        """Return the state after every event in the log.

        Raises:
            StorageFailed: it cannot be read.
        """
        with self._transaction() as connection:
            state, self._since_snapshot = read_fleet(connection, self._fleet)
            return state


def read_fleet(connection: sql.Connection, fleet: str) -> tuple[FleetState, int]:
    """Return the state of a fleet's releases after every event in their log, and the number of
    events since the last snapshot.

    Raises:
        StorageFailed: the log cannot be replayed.
    """
    snapshot = connection.scalar(
        sql.select(RELEASE_SNAPSHOTS.c.state).where(RELEASE_SNAPSHOTS.c.fleet == fleet)
    )
    log = sql.select(RELEASE_EVENTS.c.event).where(RELEASE_EVENTS.c.fleet == fleet)
    events = list(connection.scalars(log.order_by(RELEASE_EVENTS.c.seq)))
    state = decode_fleet(snapshot) if snapshot is not None else FleetState()
    for payload in events:
        event = msgspec.json.decode(payload, type=FleetEvent)
        try:
            state, _ = step(state, event)
        except (LookupError, ValueError) as error:
            raise StorageFailed(
                f"database {database_name(str(connection.engine.url))}: the releases of fleet "
                f"{fleet}: their log cannot be replayed: {type(error).__name__}: {error}; {RESTORE}"
            ) from None
    return state, len(events)
