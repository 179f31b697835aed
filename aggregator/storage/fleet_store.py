"""Fleet in an SQL database: SQLite in a file by default, or PostgreSQL.

A commit writes the rows that changed in one transaction, under the next commit number. After a lost
answer, `load` must read the database before the next commit. `standing.py` derives the rest.
"""

from collections.abc import Iterable, Iterator, Sequence, Set

import msgspec
import sqlalchemy as sql

from aggregator.fleet.events import Event, Forgotten
from aggregator.fleet.records import Fleet
from aggregator.ports import StorageFailed
from aggregator.storage.engine import database_name, make_engine
from aggregator.storage.fleet_reading import derived, read_records, row, snapshot
from aggregator.storage.fleet_writing import (
    Changes,
    Numbers,
    changes,
    encode,
    insert_into,
    write,
)
from aggregator.storage.schema import (
    DEVICE_RECORDS,
    FLEET,
    JOURNAL,
    ROUND_RECORDS,
    Database,
    Fence,
    reading,
)
from aggregator.view.round_record import RoundRecord

LARGEST_ROUND = 2**31 - 1
"""Largest number that a column of rounds holds in every database."""
JOURNALLED = 2_000
"""Number of latest commits whose events are in the journal."""


class FleetStore(Database):
    """Store of a fleet, its rounds' records and a journal of its last events.

    Each record has a row: a device, its membership of a campaign, a part of a campaign, a release,
    a rollout. So the cost of a commit follows the number of changed records. A commit is on the
    disk when it returns (`aggregator.storage.engine`). Any thread may read the store.
    """

    def __init__(self, url: str, fence: Fence | None = None) -> None:
        """Open the database.

        `fence`: condition that is checked in every transaction that writes.

        Raises:
            ConfigError: the database cannot be opened, or has another schema.
        """
        super().__init__(url, fence)
        self._commits: int | None = None
        """Number of commits so far; None while it is unknown."""

    def commit(
        self,
        before: Fleet,
        after: Fleet,
        changed: Set[str],
        events: Sequence[Event] = (),
        records: Sequence[tuple[str, RoundRecord]] = (),
    ) -> None:
        """Replace the stored fleet `before` by `after`: all of it, or nothing.

        `changed`: devices whose record, member or update differs or is gone. `events`: the events
        that led from `before` to `after`, for the journal. `records`: records of rounds by
        campaign, which replace earlier records of the same rounds.

        Raises:
            StorageFailed: the store does not know that anything was written. If an answer was lost,
            everything may have been written. The store refuses further commits until `load` has
            read its contents.
        """
        every = list(changes(before, after, changed))
        closed = [
            {"campaign": name, "round": r.round, "views": r.views, "record": encode(r)}
            for name, r in records
        ]
        every.append(Changes(ROUND_RECORDS, closed, []))
        order = tuple(after.campaigns)
        numbers = Numbers(after.epoch, after.at_s, after.serial, order, after.away_s)
        forgotten = {event.device_id for event in events if isinstance(event, Forgotten)}
        journalled = _without([encode(event) for event in events], forgotten)
        self._check_file()
        commits, self._commits = self._commits, None
        with self._transaction(writes=True) as connection:
            if commits is None or not _counted(connection, commits, encode(numbers)):
                raise StorageFailed(
                    f"database {database_name(self._url)}: the fleet has to be read before it is "
                    "written"
                )
            for table in every:
                write(connection, table)
            if forgotten:
                _forget(connection, forgotten)
            if journalled:
                row = {"number": commits + 1, "events": _listed(journalled)}
                connection.execute(JOURNAL.insert(), row)
            connection.execute(JOURNAL.delete().where(JOURNAL.c.number <= commits + 1 - JOURNALLED))
        self._commits = commits + 1

    def load(self) -> Fleet:
        """Return the fleet after the last commit, or a new one before the first. No timer is set.

        Raises:
            StorageFailed: the fleet cannot be read.
        """
        with snapshot(self._engine, self._url) as connection:
            fleet, commits = read_records(connection)
        fleet = derived(fleet, self._url)
        self._commits = commits
        return fleet

    def rounds(self, campaign: str, after: int = 0, until: int | None = None) -> list[RoundRecord]:
        """Return the records of a campaign's rounds, by round.

        They are the rounds after `after`, up to and including `until` (None: up to the last).

        Raises:
            StorageFailed: they cannot be read.
        """
        with self._transaction() as connection:
            return read_rounds(connection, campaign, after, until)

    def views(self, campaign: str) -> set[str]:
        """Return the digests of the distance matrices in the records of a campaign's rounds.

        Raises:
            StorageFailed: they cannot be read.
        """
        table = ROUND_RECORDS.c
        views = sql.select(table.views).where(table.campaign == campaign, table.views != "")
        with self._transaction() as connection:
            return set(connection.scalars(views))

    def journal(self) -> Iterator[tuple[int, bytes]]:
        """Yield number and events (JSON array) of each of the latest commits that had events.

        Raises:
            StorageFailed: they cannot be read.
        """
        rows = sql.select(JOURNAL.c.number, JOURNAL.c.events).order_by(JOURNAL.c.number)
        with self._transaction() as connection:
            yield from ((number, payload) for number, payload in connection.execute(rows).all())


def load_fleet(url: str) -> Fleet | None:
    """Return the fleet of a database, or None if there is none. Nothing is written.

    Raises:
        ConfigError: the database cannot be opened.
        StorageFailed: the fleet cannot be read.
    """
    with reading(url) as connection:
        if connection is None:
            return None
    engine = make_engine(url)
    try:
        with snapshot(engine, url) as connection:
            fleet, commits = read_records(connection)
    finally:
        engine.dispose()
    return derived(fleet, url) if commits else None


def has_device(url: str, device_id: str) -> bool:
    """Return True if the fleet of a database has a device.

    Raises:
        ConfigError: the database has another schema.
        StorageFailed: it cannot be read.
    """
    ids = DEVICE_RECORDS.c.device_id
    with reading(url, StorageFailed) as connection:
        return (
            connection is not None
            and connection.scalar(sql.select(ids).where(ids == device_id)) is not None
        )


def read_rounds(
    connection: sql.Connection, campaign: str, after: int = 0, until: int | None = None
) -> list[RoundRecord]:
    """Return the records of a campaign's rounds `after` + 1 to `until` (None: the last), by round.

    Raises:
        StorageFailed: a record is damaged.
    """
    last = LARGEST_ROUND if until is None else min(until, LARGEST_ROUND)
    chosen = sql.select(ROUND_RECORDS.c.round, ROUND_RECORDS.c.record).where(
        ROUND_RECORDS.c.campaign == campaign,
        ROUND_RECORDS.c.round > min(after, LARGEST_ROUND),
        ROUND_RECORDS.c.round <= last,
    )
    records = list[RoundRecord]()
    for number, payload in connection.execute(chosen.order_by(ROUND_RECORDS.c.round)):
        with row(connection, f"campaign '{campaign}', record of round {number}"):
            records.append(msgspec.json.decode(payload, type=RoundRecord))
    return records


def _counted(connection: sql.Connection, commits: int, record: bytes) -> bool:
    """Write the fleet's numbers and the next commit number.

    Return False if the stored number of commits is not `commits`; nothing is written then.
    """
    if commits:
        update = FLEET.update().where(FLEET.c.commits == commits)
        result = connection.execute(update.values(commits=commits + 1, record=record))
    else:
        first = insert_into(connection, FLEET).values(number=1, commits=1, record=record)
        counted = {"preserve_rowcount": True}
        result = connection.execute(first.on_conflict_do_nothing(), execution_options=counted)
    return result.rowcount == 1


def _forget(connection: sql.Connection, device_ids: set[str]) -> None:
    """Delete the events of the journal that name one of these devices."""
    rows = connection.execute(sql.select(JOURNAL.c.number, JOURNAL.c.events)).all()
    journal = Changes(JOURNAL, [], [])
    for number, payload in rows:
        if not _names(payload, device_ids):
            continue
        events = [bytes(raw) for raw in msgspec.json.decode(payload, type=list[msgspec.Raw])]
        if others := _without(events, device_ids):
            journal.rows.append({"number": number, "events": _listed(others)})
        else:
            journal.gone.append({"number": number})
    write(connection, journal)


def _without(events: list[bytes], device_ids: set[str]) -> list[bytes]:
    """Return the events that name none of these devices."""
    return [event for event in events if not _names(event, device_ids)]


def _names(payload: bytes, device_ids: Iterable[str]) -> bool:
    forms = (form for device_id in device_ids for form in (f'"{device_id}"', f':{device_id}"'))
    return any(form.encode() in payload for form in forms)


def _listed(events: list[bytes]) -> bytes:
    return b"[" + b",".join(events) + b"]"
