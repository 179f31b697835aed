"""Reading of a fleet from its rows."""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from sys import intern
from typing import Any

import msgspec
import sqlalchemy as sql
from immutables import Map
from msgspec.structs import force_setattr, replace

from aggregator.fleet.records import (
    SHARED,
    AdmittedUpdate,
    Campaign,
    Device,
    Fleet,
    Member,
    ModelRelease,
    Rollout,
)
from aggregator.fleet.standing import rebuilt
from aggregator.ports import StorageFailed
from aggregator.storage.engine import RESTORE, database_name, using
from aggregator.storage.fleet_writing import ROWS, TOGETHER, Numbers, Row
from aggregator.storage.schema import (
    CAMPAIGN_PARTS,
    DEVICE_RECORDS,
    FLEET,
    MEMBERS,
    RELEASES,
    ROLLOUTS,
)

STREAMED = 2_000
"""Number of rows that are read at a time."""


@contextmanager
def snapshot(engine: sql.Engine, url: str) -> Iterator[sql.Connection]:
    """Open a transaction that sees the database as of one moment."""
    with using(url, StorageFailed), engine.begin() as connection:
        if engine.dialect.name == "sqlite":  # Python's driver begins one only to write
            connection.exec_driver_sql("BEGIN")
        else:
            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        yield connection


@contextmanager
def row(connection: sql.Connection, name: str) -> Iterator[None]:
    """Convert a decoding error in the context to an error that names the row."""
    try:
        yield
    except msgspec.MsgspecError as error:
        raise _damaged(
            str(connection.engine.url), f"{name}: the row cannot be read: {error}"
        ) from None


def _damaged(url: str, problem: str) -> StorageFailed:
    return StorageFailed(f"database {database_name(url)}: {problem}; {RESTORE}")


def read_records(connection: sql.Connection) -> tuple[Fleet, int]:
    """Return the stored fields of a fleet and its number of commits; a new fleet and 0 if none.

    Raises:
        StorageFailed: a row is damaged or missing.
    """
    head = connection.execute(sql.select(FLEET.c.commits, FLEET.c.record)).one_or_none()
    if head is None:
        return Fleet(), 0
    with row(connection, "the fleet's numbers"):
        numbers = msgspec.json.decode(head.record, type=Numbers)
    with _uncollected():
        fleet = Fleet(
            epoch=numbers.epoch,
            at_s=numbers.at_s,
            serial=numbers.serial,
            away_s=numbers.away_s,
            devices=_read_devices(connection),
            campaigns=_read_campaigns(connection, numbers.campaigns),
            releases=dict(_read_by_number(connection, RELEASES, "release", ModelRelease)),
            rollouts=tuple(r for _, r in _read_by_number(connection, ROLLOUTS, "rollout", Rollout)),
        )
    for rollout in fleet.rollouts:
        if missing := set(rollout.releases.values()) - fleet.releases.keys():
            raise _damaged(
                str(connection.engine.url),
                f"rollout of campaign '{rollout.campaign}': the row of its release {min(missing)} "
                "is missing",
            )
    return fleet, head.commits


def derived(fleet: Fleet, url: str) -> Fleet:
    """Return a fleet completed with the fields that are derived from its records.

    Raises:
        StorageFailed: the records contradict each other.
    """
    try:
        with _uncollected():
            return rebuilt(fleet)
    except (LookupError, ValueError) as error:
        problem = f"the fleet's records contradict each other: {type(error).__name__}: {error}"
        raise _damaged(url, problem) from None


@contextmanager
def _uncollected() -> Iterator[None]:
    """Pause Python's garbage collection while millions of lasting records are made."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _streamed(
    connection: sql.Connection, *columns: sql.Column[Any], campaign: str = ""
) -> Iterator[Any]:
    """Yield rows in the order of their keys, a batch at a time; of one campaign if it is named."""
    table = columns[0].table
    rows = sql.select(*columns).order_by(*table.primary_key.columns)
    if campaign:
        rows = rows.where(table.c.campaign == campaign)
    yield from connection.execute(rows.execution_options(yield_per=STREAMED))


def _read_devices(connection: sql.Connection) -> Map[str, Device]:
    devices, common = Map[str, Device]().mutate(), Common()
    decode, table = msgspec.json.Decoder(Device).decode, DEVICE_RECORDS.c
    device_id = ""
    try:
        for device_id, record in _streamed(connection, table.device_id, table.record):
            device_id = intern(device_id)
            devices[device_id] = common.device(device_id, decode(record))
    except msgspec.MsgspecError as error:
        problem = f"device '{device_id}': the row cannot be read: {error}"
        raise _damaged(str(connection.engine.url), problem) from None
    return devices.finish()


def _read_campaigns(connection: sql.Connection, names: Sequence[str]) -> dict[str, Campaign]:
    parts: dict[str, Row] = {name: {} for name in names}
    table = CAMPAIGN_PARTS.c
    for name, part, record in _streamed(connection, table.campaign, table.part, table.record):
        with row(connection, f"campaign '{name}', part '{part}'"):
            if name not in parts:
                raise msgspec.ValidationError("the fleet does not name this campaign")
            if part == TOGETHER:
                parts[name] |= msgspec.json.decode(record, type=Row)
            else:
                parts[name][part] = msgspec.json.decode(record)
    members = {name: _read_members(connection, name) for name in names}
    campaigns = dict[str, Campaign]()
    for name in names:
        with row(connection, f"campaign '{name}'"):
            tables = dict(zip(ROWS, members[name], strict=True))
            campaigns[name] = replace(msgspec.convert(parts[name], Campaign), **tables)
    return campaigns


def _read_members(
    connection: sql.Connection, campaign: str
) -> tuple[Map[str, Member], Map[str, AdmittedUpdate]]:
    members, updates = Map[str, Member]().mutate(), Map[str, AdmittedUpdate]().mutate()
    member_of = msgspec.json.Decoder(Member).decode
    received_of = msgspec.json.Decoder(AdmittedUpdate).decode
    common, table = Common(), MEMBERS.c
    chosen = (table.device_id, table.member, table.received)
    device_id = ""
    try:
        for device_id, member, received in _streamed(connection, *chosen, campaign=campaign):
            device_id = intern(device_id)
            if member is not None:
                members[device_id] = common.member(member_of(member))
            if received is not None:
                updates[device_id] = common.received(received_of(received))
    except msgspec.MsgspecError as error:
        problem = f"campaign '{campaign}', device '{device_id}': the row cannot be read: {error}"
        raise _damaged(str(connection.engine.url), problem) from None
    return members.finish(), updates.finish()


def _read_by_number(
    connection: sql.Connection, table: sql.Table, noun: str, kind: type[Any]
) -> Iterator[tuple[int, Any]]:
    for number, record in _streamed(connection, *table.columns):
        with row(connection, f"{noun} {number}"):
            yield number, msgspec.json.decode(record, type=kind)


class Common:
    """Values that many records share, so that each is in memory once."""

    def __init__(self) -> None:
        self._values: dict[Any, Any] = {}

    def device(self, device_id: str, device: Device) -> Device:
        """Return a device that was just read, with equal values replaced by shared ones."""
        share, values = force_setattr, self._values
        share(device, "campaign", intern(device.campaign))
        share(device, "tags", values.setdefault(device.tags, device.tags))
        share(device, "holds", values.setdefault(device.holds, device.holds))
        if (facts := device.facts) is not None:
            share(facts, "device_id", device_id)
            for name in SHARED:
                share(facts, name, intern(getattr(facts, name)))
            share(facts, "policy", values.setdefault(facts.policy, facts.policy))
            share(facts, "encodings", values.setdefault(facts.encodings, facts.encodings))
            models = values.setdefault(facts.personal_models, facts.personal_models)
            share(facts, "personal_models", models)
        if (work := device.assignment) is not None:
            share(work, "campaign", intern(work.campaign))
            share(work, "start", intern(work.start))
            share(work, "model", intern(work.model))
            verbs = values.setdefault(msgspec.json.encode(work.verbs), work.verbs)
            share(work, "verbs", verbs)
        return device

    def member(self, member: Member) -> Member:
        """Return a member that was just read, with equal values replaced by shared ones."""
        if member.survey is None:
            same: Member = self._values.setdefault(member, member)
            return same
        force_setattr(member, "placed", self._values.setdefault(member.placed, member.placed))
        return member

    def received(self, update: AdmittedUpdate) -> AdmittedUpdate:
        """Return an update that was just read, with equal values replaced by shared ones."""
        force_setattr(update, "start", intern(update.start))
        return update
