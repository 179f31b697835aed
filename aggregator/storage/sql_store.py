"""Runs, and the releases of fleets, in an SQL database, by SQLAlchemy: SQLite in a file by default,
or PostgreSQL.

Events are the log of the run since its last snapshot, and are never changed. What `commit` wrote is
on the disk when it returns (`aggregator.storage.engine`). A commit whose answer is lost may have
been carried out. So each has a number: after one that failed, the store writes nothing before
`load` has told what there is, and no commit is written after another that this store does not know
of.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sql

from aggregator.core.ports import StorageFailed
from aggregator.core.record import RoundRecord
from aggregator.core.release import rollout
from aggregator.core.release.state import FleetEvent, FleetState
from aggregator.core.round import machine
from aggregator.core.state import Event, RunState, decode_state, encode_state
from aggregator.storage.engine import RESTORE, database_name, sqlite_file, using
from aggregator.storage.schema import (
    CHECKS,
    EVENTS,
    ROUNDS,
    RUNS,
    SNAPSHOTS,
    Database,
    Fence,
    reading,
)
from wire.errors import ConfigError

LARGEST_ROUND = 2**31 - 1
"""What a column of rounds can hold, and be compared with, in every database."""


class Log(NamedTuple):
    """A kind of log: how one is replayed."""

    step: Callable[[Any, Any], tuple[Any, Any]]
    event: Any
    state: type[Any]
    first: Any
    """The state before the first event."""
    row: str
    """The name of its rows, by that of the run or the fleet."""
    title: str


RUN = Log(machine.step, Event, RunState, None, "{}", "run {}: its log")
FLEET = Log(
    rollout.step,
    FleetEvent,
    FleetState,
    FleetState(),
    "fleet/{}",
    "the releases of fleet {}: their log",
)
RUN_NAMES = sql.select(RUNS.c.run).where(~RUNS.c.run.contains("/")).order_by(RUNS.c.number)
"""Selects the runs of a database, in the order they were started."""
FLEET_NAMES = sql.union(
    *(
        sql.select(sql.func.substr(table.c.run, len("fleet/") + 1)).where(table.c.run.contains("/"))
        for table in (SNAPSHOTS, EVENTS)
    )
)
"""Selects the fleets that have releases in a database."""


def load_run(url: str, run: str) -> RunState | None:
    """Return the state of a run; None where the database has none of this name. Nothing is written.

    Raises:
        ConfigError: the database cannot be opened or read.
        StorageFailed: the run's log cannot be replayed.
    """
    with reading(url) as connection:
        state: RunState | None = None
        if connection is not None:
            state, _ = replay(connection, run)
        return state


def run_names(url: str) -> list[str]:
    """Return the runs in a database, in the order they were started. Nothing is written.

    Raises:
        ConfigError: the database cannot be opened.
    """
    with reading(url) as connection:
        return list(connection.scalars(RUN_NAMES)) if connection is not None else []


def replay(connection: sql.Connection, name: str, log: Log = RUN) -> tuple[Any, int]:
    """Return the state of a run, or of a fleet's releases, after its last snapshot and every event
    in its log, and the number of these events.

    Raises:
        StorageFailed: the log cannot be replayed.
    """
    row = log.row.format(name)
    encoded = connection.scalar(sql.select(SNAPSHOTS.c.state).where(SNAPSHOTS.c.run == row))
    later = sql.select(EVENTS.c.event).where(EVENTS.c.run == row).order_by(EVENTS.c.seq)
    state, count = decode_state(encoded, log.state) if encoded is not None else log.first, 0
    for payload in connection.scalars(later):
        event = msgspec.json.decode(payload, type=log.event)
        count += 1
        try:
            state, _ = log.step(state, event)
        except (LookupError, ValueError) as error:
            raise StorageFailed(
                f"database {database_name(str(connection.engine.url))}: {log.title.format(name)} "
                f"cannot be replayed: {type(error).__name__}: {error}; {RESTORE}"
            ) from None
    return state, count


def read_rounds(
    connection: sql.Connection, run: str, after: int = 0, until: int = LARGEST_ROUND
) -> list[RoundRecord]:
    """Return the records of a run's rounds with a greater number than `after` and at most `until`,
    by round."""
    chosen = sql.select(ROUNDS.c.record).where(
        ROUNDS.c.run == run,
        ROUNDS.c.round > min(after, LARGEST_ROUND),
        ROUNDS.c.round <= min(until, LARGEST_ROUND),
    )
    return [
        msgspec.json.decode(payload, type=RoundRecord)
        for payload in connection.scalars(chosen.order_by(ROUNDS.c.round))
    ]


class SqlStore(Database):
    """An `aggregator.core.ports.Store` for one run of a database, or the same for the releases of
    one fleet. Any thread may read it."""

    def __init__(self, url: str, run: str, fence: Fence | None = None, log: Log = RUN) -> None:
        """`fence`: what has to hold in every transaction that writes.

        Raises:
            ConfigError: the database cannot be opened, or has another schema.
        """
        super().__init__(url, fence)
        self._name, self._log, self._run = run, log, log.row.format(run)
        self.num_events = 0
        """Number of events since the last snapshot."""
        with using(url, ConfigError):
            with self._engine.begin() as connection:
                self._commits: int | None = connection.scalar(
                    sql.select(RUNS.c.commits).where(RUNS.c.run == self._run)
                )
                if self._commits is None:
                    connection.execute(RUNS.insert().values(run=self._run))
                    self._commits = 0
            self._file = sqlite_file(self._engine)
            self._identity = _identity(self._file)

    def commit(
        self,
        events: Sequence[Any],
        records: Sequence[RoundRecord] = (),
        snapshot: Any = None,
    ) -> None:
        rows = [{"run": self._run, "event": msgspec.json.encode(event)} for event in events]
        self._check_file()
        commits, self._commits = self._commits, None
        with self._transaction(writes=True) as connection:
            row = (RUNS.c.run == self._run, RUNS.c.commits == commits)
            if (
                commits is None
                or connection.execute(
                    RUNS.update().where(*row).values(commits=commits + 1)
                ).rowcount
                != 1
            ):
                raise StorageFailed(
                    f"database {database_name(self._url)}: run {self._run}: what was written last "
                    "is not known, it has to be read again"
                )
            if snapshot is None and rows:
                connection.execute(EVENTS.insert(), rows)
            for record in records:
                connection.execute(
                    ROUNDS.delete().where(ROUNDS.c.run == self._run, ROUNDS.c.round == record.round)
                )
                connection.execute(
                    ROUNDS.insert().values(
                        run=self._run, round=record.round, record=msgspec.json.encode(record)
                    )
                )
            if snapshot is not None:
                for table in (EVENTS, SNAPSHOTS):
                    connection.execute(table.delete().where(table.c.run == self._run))
                connection.execute(
                    SNAPSHOTS.insert().values(run=self._run, state=encode_state(snapshot))
                )
        self._commits = commits + 1
        self.num_events = 0 if snapshot is not None else self.num_events + len(rows)

    def load(self) -> Any:
        with self._transaction() as connection:
            commits = connection.scalar(
                sql.select(RUNS.c.commits).where(RUNS.c.run == self._run)
            )  # first: what comes later is not known
            state, self.num_events = replay(connection, self._name, self._log)
        self._commits = commits
        return state

    def rounds(self, after: int = 0, until: int | None = None) -> list[RoundRecord]:
        with self._transaction() as connection:
            return read_rounds(
                connection, self._run, after, LARGEST_ROUND if until is None else until
            )

    def check(self) -> None:
        self._check_file()
        with self._transaction() as connection:
            connection.execute(CHECKS.delete())
            connection.execute(CHECKS.insert().values(filler=bytes(2**14)))

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
            raise StorageFailed(f"database {database_name(self._url)}: {told}")


def _identity(file: Path | None) -> tuple[int, int] | None:
    """By what the file of a name is told from another that takes its place.

    Raises:
        OSError: it is not there.
    """
    if file is None:
        return None
    found = file.stat()
    return found.st_dev, found.st_ino
