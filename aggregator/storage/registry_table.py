"""The registry of devices in an SQL database: a row for each device."""

from collections.abc import Iterable, Mapping

import msgspec
import sqlalchemy as sql

from aggregator.core.ports import StorageFailed
from aggregator.core.registry import Entry
from aggregator.storage.engine import using
from aggregator.storage.schema import DEVICES, Database, reading


def read_registry(url: str) -> dict[str, Entry]:
    """Return every device's entry, by id. Nothing is written.

    Raises:
        ConfigError: the database cannot be opened or read.
    """
    with reading(url) as connection:
        return read_entries(connection) if connection is not None else {}


def has_entry(url: str, device_id: str) -> bool:
    """Return true if a service's registry knows a device.

    Raises:
        ConfigError: the database has another schema.
        StorageFailed: it cannot be read.
    """
    known = sql.select(DEVICES.c.device_id).where(DEVICES.c.device_id == device_id)
    with reading(url, StorageFailed) as connection:
        return connection is not None and connection.scalar(known) is not None


def read_entries(connection: sql.Connection) -> dict[str, Entry]:
    """Return every device's entry, by id."""
    rows = connection.execute(sql.select(DEVICES.c.device_id, DEVICES.c.entry)).all()
    return {device_id: msgspec.json.decode(payload, type=Entry) for device_id, payload in rows}


class RegistryTable(Database):
    """Keeps the registry of devices in the database of a service. What a method wrote is safe when
    it returns; each raises `StorageFailed` if the database cannot be read or written."""

    def load(self) -> dict[str, Entry]:
        """Return every device's entry, by id."""
        with self._transaction() as connection:
            return read_entries(connection)

    def save(self, entries: Mapping[str, Entry], gone: Iterable[str] = ()) -> None:
        """Write these entries, in place of earlier ones of the same devices, and delete those of
        `gone`: all, or nothing."""
        rows = [
            {"device_id": device_id, "entry": msgspec.json.encode(entry)}
            for device_id, entry in entries.items()
        ]
        removed = [{"key": device_id} for device_id in {*entries, *gone}]
        with self._transaction(writes=True) as connection:
            if removed:
                connection.execute(
                    DEVICES.delete().where(DEVICES.c.device_id == sql.bindparam("key")), removed
                )
            if rows:
                connection.execute(DEVICES.insert(), rows)

    def scrub(self) -> None:
        """Overwrite what deleted rows of the database held, in SQLite; another kind of database
        does so in its own time."""
        if self._engine.dialect.name != "sqlite":
            return
        with (
            using(self._url, StorageFailed),
            self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        ):
            connection.execute(sql.text("VACUUM"))
            connection.execute(sql.text("PRAGMA wal_checkpoint(TRUNCATE)"))
