"""Rows in which two fleets differ, and the statements that write them."""

from collections.abc import Iterator, Set
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sql
from immutables import Map
from sqlalchemy.dialects import postgresql, sqlite

from aggregator.fleet.records import Campaign, Fleet
from aggregator.storage.schema import (
    CAMPAIGN_PARTS,
    DEVICE_RECORDS,
    MEMBERS,
    RELEASES,
    ROLLOUTS,
)

ROWS = ("members", "updates")
"""Fields of a campaign with one row per device."""
PARTS = (
    *("settings", "next_settings", "version", "history"),
    *("norms", "distances", "made_by", "default", "trends", "standstills"),
)
"""Fields of a campaign with a row of their own, since they are large and change seldom."""
SCALARS = tuple(name for name in Campaign.__struct_fields__ if name not in (*ROWS, *PARTS))
"""Fields of a campaign that share one row."""
TOGETHER = "scalars"
"""Name of the part with `SCALARS`."""
NOTHING: Map[str, Any] = Map()

Row = dict[str, Any]


class Numbers(msgspec.Struct, frozen=True):
    """Fields of a fleet that are not in the rows of other records."""

    epoch: int
    at_s: float
    serial: int
    campaigns: tuple[str, ...]
    """Names of the campaigns, in the order of their starts."""
    away_s: tuple[float, float] = (0.0, 0.0)


class Changes(NamedTuple):
    """Rows of a table to write, and keys of rows to delete."""

    table: sql.Table
    rows: list[Row]
    gone: list[Row]


def changes(before: Fleet, after: Fleet, changed: Set[str]) -> Iterator[Changes]:
    """Yield, table by table, the rows in which two fleets differ."""
    yield _device_rows(before, after, changed)
    yield _member_rows(before, after, changed)
    yield _part_rows(before, after)
    yield _by_number(RELEASES, "number", before.releases, after.releases)
    yield _by_number(
        ROLLOUTS, "place", dict(enumerate(before.rollouts)), dict(enumerate(after.rollouts))
    )


def _device_rows(before: Fleet, after: Fleet, changed: Set[str]) -> Changes:
    changes = Changes(DEVICE_RECORDS, [], [])
    for device_id in sorted(changed):
        was, now = before.devices.get(device_id), after.devices.get(device_id)
        key = {"device_id": device_id}
        if now is None:
            if was is not None:
                changes.gone.append(key)
            continue
        record = now.stored()
        if was is None or was.stored() != record:
            changes.rows.append(key | {"record": encode(record)})
    return changes


def _member_rows(before: Fleet, after: Fleet, changed: Set[str]) -> Changes:
    changes = Changes(MEMBERS, [], [])
    for name in {**before.campaigns, **after.campaigns}:
        was, now = _tables(before.campaigns.get(name)), _tables(after.campaigns.get(name))
        if all(one is other for one, other in zip(was, now, strict=True)):
            continue
        both = name in before.campaigns and name in after.campaigns
        for device_id in sorted(changed if both else {*was[0], *was[1], *now[0], *now[1]}):
            old = [table.get(device_id) for table in was]
            member, received = new = [table.get(device_id) for table in now]
            if new == old:
                continue
            key = {"campaign": name, "device_id": device_id}
            if member is None and received is None:
                changes.gone.append(key)
            else:
                records = {"member": _maybe(member), "received": _maybe(received)}
                changes.rows.append(key | records)
    return changes


def _tables(campaign: Campaign | None) -> tuple[Map[str, Any], Map[str, Any]]:
    """Return the members and the updates of a campaign."""
    return (NOTHING, NOTHING) if campaign is None else (campaign.members, campaign.updates)


def _part_rows(before: Fleet, after: Fleet) -> Changes:
    changes = Changes(CAMPAIGN_PARTS, [], [])
    for name, now in after.campaigns.items():
        was = before.campaigns.get(name)
        if was is now:
            continue
        scalars, others = _scalars(now), was and _scalars(was)
        if scalars != others:
            row = {"campaign": name, "part": TOGETHER, "record": encode(scalars)}
            changes.rows.append(row)
        for part in PARTS:
            if was is None or getattr(was, part) is not getattr(now, part):
                row = {"campaign": name, "part": part, "record": encode(getattr(now, part))}
                changes.rows.append(row)
    for name in before.campaigns.keys() - after.campaigns.keys():
        changes.gone.extend({"campaign": name, "part": part} for part in (TOGETHER, *PARTS))
    return changes


def _scalars(campaign: Campaign) -> Row:
    return {name: getattr(campaign, name) for name in SCALARS}


def _by_number(
    table: sql.Table, key: str, before: dict[int, Any], after: dict[int, Any]
) -> Changes:
    """Return the changes of records with numbers. An unchanged record is the same object."""
    changes = Changes(table, [], [])
    if before is not after:
        changes.rows.extend(
            {key: number, "record": encode(record)}
            for number, record in after.items()
            if before.get(number) is not record
        )
        changes.gone.extend({key: number} for number in before.keys() - after.keys())
    return changes


def encode(value: Any) -> bytes:
    return msgspec.json.encode(value, enc_hook=dict)


def _maybe(value: Any) -> bytes | None:
    return None if value is None else encode(value)


def insert_into(connection: sql.Connection, table: sql.Table) -> Any:
    dialect: Any = postgresql if connection.dialect.name == "postgresql" else sqlite
    return dialect.insert(table)


def write(connection: sql.Connection, changes: Changes) -> None:
    """Write rows, replacing those with the same keys, and delete the rows of `changes.gone`."""
    table, keys = changes.table, list(changes.table.primary_key.columns)
    if changes.gone:
        same = (key == sql.bindparam(f"the_{key.name}") for key in keys)
        gone = [{f"the_{name}": value for name, value in row.items()} for row in changes.gone]
        connection.execute(table.delete().where(*same), gone)
    if changes.rows:
        insert = insert_into(connection, table)
        values = {c.name: insert.excluded[c.name] for c in table.columns if not c.primary_key}
        connection.execute(
            insert.on_conflict_do_update(index_elements=keys, set_=values), changes.rows
        )
