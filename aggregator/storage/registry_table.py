"""The registry of devices in an SQL database: a row for each device."""

from collections.abc import Iterable, Mapping

import msgspec
import sqlalchemy as sql
from sqlalchemy.exc import SQLAlchemyError

from aggregator.core.ports import StorageFailed
from aggregator.core.registry import Entry
from aggregator.storage.engine import database_name, make_engine
from aggregator.storage.schema import prepare
from aggregator.storage.sql_store import Fence
from aggregator.storage.tables import DEVICES
from wire.errors import ConfigError


def read_registry(url: str) -> dict[str, Entry]:
    """Every device's entry, by id; none where the database has no registry. Nothing is made.

    Raises:
        ConfigError: the database cannot be opened.
        StorageFailed: it cannot be read.
    """
    try:
        engine = make_engine(url)
        try:
            with engine.connect() as connection:
                return (
                    _entries(connection) if sql.inspect(connection).has_table(DEVICES.name) else {}
                )
        finally:
            engine.dispose()
    except SQLAlchemyError as error:
        raise ConfigError(f"database of the registry: {str(error).splitlines()[0]}") from None


def has_entry(url: str, device_id: str) -> bool:
    """Whether a service's registry knows a device.

    Raises:
        ConfigError: the database cannot be opened.
        StorageFailed: it cannot be read.
    """
    engine = make_engine(url)
    try:
        with engine.connect() as connection:
            known = sql.select(DEVICES.c.device_id).where(DEVICES.c.device_id == device_id)
            return (
                sql.inspect(connection).has_table(DEVICES.name)
                and connection.scalar(known) is not None
            )
    except SQLAlchemyError as error:
        raise StorageFailed(f"the registry cannot be read: {str(error).splitlines()[0]}") from None
    finally:
        engine.dispose()


def _entries(connection: sql.Connection) -> dict[str, Entry]:
    rows = connection.execute(sql.select(DEVICES.c.device_id, DEVICES.c.entry)).all()
    try:
        return {device_id: msgspec.json.decode(payload, type=Entry) for device_id, payload in rows}
    except msgspec.MsgspecError as error:
        raise StorageFailed(f"a row of the registry cannot be read: {error}") from None


class RegistryTable:
    """An `aggregator.core.ports.RegistryStore` in the database of a service. What a method wrote is
    safe when it returns."""

    def __init__(self, url: str, fence: Fence | None = None) -> None:
        """`fence`: what has to hold in every transaction that writes.

        Raises:
            ConfigError: the database cannot be opened.
        """
        self._engine, self._fence = make_engine(url), fence
        try:
            with self._engine.begin() as connection:
                prepare(connection)
        except SQLAlchemyError as error:
            raise ConfigError(
                f"database {database_name(url)}: {str(error).splitlines()[0]}"
            ) from None

    def load(self) -> dict[str, Entry]:
        try:
            with self._engine.connect() as connection:
                return _entries(connection)
        except SQLAlchemyError as error:
            raise StorageFailed(
                f"the registry cannot be read: {str(error).splitlines()[0]}"
            ) from None

    def save(self, entries: Mapping[str, Entry], gone: Iterable[str] = ()) -> None:
        rows = [
            {"device_id": device_id, "entry": msgspec.json.encode(entry)}
            for device_id, entry in entries.items()
        ]
        removed = [{"key": device_id} for device_id in {*entries, *gone}]
        try:
            with self._engine.begin() as connection:
                if self._fence is not None:
                    self._fence(connection)
                if removed:
                    connection.execute(
                        DEVICES.delete().where(DEVICES.c.device_id == sql.bindparam("key")), removed
                    )
                if rows:
                    connection.execute(DEVICES.insert(), rows)
        except SQLAlchemyError as error:
            raise StorageFailed(
                f"the registry cannot be written: {str(error).splitlines()[0]}"
            ) from None

    def scrub(self) -> None:
        """Overwrite what deleted rows of the database held, in SQLite; another kind of database
        does so in its own time."""
        if self._engine.dialect.name != "sqlite":
            return
        try:
            with self._engine.connect().execution_options(
                isolation_level="AUTOCOMMIT"
            ) as connection:
                connection.execute(sql.text("VACUUM"))
                connection.execute(sql.text("PRAGMA wal_checkpoint(TRUNCATE)"))
        except SQLAlchemyError as error:
            raise StorageFailed(
                f"deleted rows cannot be overwritten: {str(error).splitlines()[0]}"
            ) from None

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()
