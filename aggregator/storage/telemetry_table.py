"""Telemetry of devices in an SQL database: a row for each device."""

from collections.abc import Iterable, Mapping

import msgspec
import sqlalchemy as sql

from aggregator.core.telemetry import DeviceTelemetry
from aggregator.storage.schema import TELEMETRY, Database


def telemetry_rows(connection: sql.Connection) -> dict[str, DeviceTelemetry]:
    """Return the telemetry of every device, by id."""
    rows = connection.execute(sql.select(TELEMETRY.c.device_id, TELEMETRY.c.record)).all()
    return {
        device_id: msgspec.json.decode(record, type=DeviceTelemetry) for device_id, record in rows
    }


class TelemetryTable(Database):
    """Table of the devices' telemetry in a service's database. Writes are durable on return.

    Each method raises `StorageFailed` if the database cannot be read or written.
    """

    def load(self) -> dict[str, DeviceTelemetry]:
        """Return the telemetry of every device, by id."""
        with self._transaction() as connection:
            return telemetry_rows(connection)

    def save(self, records: Mapping[str, DeviceTelemetry], gone: Iterable[str] = ()) -> None:
        """Replace the telemetry of these devices, and delete that of `gone`: all or nothing."""
        rows = [
            {"device_id": device_id, "record": msgspec.json.encode(record)}
            for device_id, record in records.items()
        ]
        removed = [{"key": device_id} for device_id in {*records, *gone}]
        with self._transaction(writes=True) as connection:
            if removed:
                connection.execute(
                    TELEMETRY.delete().where(TELEMETRY.c.device_id == sql.bindparam("key")), removed
                )
            if rows:
                connection.execute(TELEMETRY.insert(), rows)
