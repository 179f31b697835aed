"""Database of enrolment: tokens, enrolled devices, bans and audit.

Several processes may use it: the service, and the commands of its operator.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sql

from aggregator.storage.engine import sqlite_url
from aggregator.storage.schema import AUDIT, BANS, ENROLLED, TOKENS, Database
from wire.errors import ConfigError

FILE = "enrolment.db"


class TokenRow(msgspec.Struct, frozen=True):
    """Enrolment token.

    `hash`: hash of its secret, which is not stored. `used_key`: digest of the key that used the
    token; empty until then.
    """

    hash: str
    made_at_s: float
    expires_at_s: float
    device_id: str = ""
    tags: tuple[str, ...] = ()
    approve: bool = False
    used_key: str = ""
    used_by: str = ""


class DeviceRow(msgspec.Struct, frozen=True):
    """Device that has enrolled, or wants to.

    `state`: waiting, approved, rejected or enrolled. `key` and `previous_key`: digests of its
    public key, and of the key before the last renewal.
    """

    device_id: str
    state: str
    key: str
    previous_key: str = ""
    certificate: str = ""
    not_after_s: float = 0.0
    token: str = ""
    tags: tuple[str, ...] = ()
    since_s: float = 0.0


class BanRow(msgspec.Struct, frozen=True):
    """Device that was banned at least once; it is banned now unless `lifted`."""

    device_id: str
    lifted: bool
    at_s: float


class AuditRow(msgspec.Struct, frozen=True):
    """One act of enrolment: time, act, device, token."""

    at_s: float
    what: str
    device_id: str
    token: str
    detail: str


Row = TokenRow | DeviceRow | BanRow | AuditRow
T = TypeVar("T", bound=Row)
_TABLES: dict[type[Any], tuple[sql.Table, sql.Column[Any]]] = {
    TokenRow: (TOKENS, TOKENS.c.made_at_s),
    DeviceRow: (ENROLLED, ENROLLED.c.device_id),
    BanRow: (BANS, BANS.c.device_id),
    AuditRow: (AUDIT, AUDIT.c.number),
}
"""Table of each kind of row, and the column by which its rows are sorted."""


@dataclass(frozen=True)
class Transaction:
    """Transaction: rows that are read and written together, or not at all."""

    connection: sql.Connection

    def rows(self, kind: type[T], most: int | None = None, **values: str) -> list[T]:
        """Return the rows of a kind that have these values, sorted.

        Tokens and audit lines are sorted by age, oldest first, other rows by device. `most`:
        maximum number of rows; the last ones are returned.
        """
        table, order = _TABLES[kind]
        chosen = sql.select(*(table.c[name] for name in kind.__struct_fields__)).where(
            *(table.c[name] == value for name, value in values.items())
        )
        maps = self.connection.execute(chosen.order_by(order.desc()).limit(most)).mappings().all()
        rows = [{str(name): value for name, value in row.items()} for row in reversed(maps)]
        for row in rows:
            if "tags" in row:
                row["tags"] = row["tags"].split(",") if row["tags"] else []
        return [msgspec.convert(row, kind) for row in rows]

    def device(self, device_id: str) -> DeviceRow | None:
        """Return a device that has enrolled or wants to, or None if there is none."""
        return next(iter(self.rows(DeviceRow, device_id=device_id)), None)

    def is_banned(self, device_id: str) -> bool:
        """Return True if a device is banned now."""
        return any(not row.lifted for row in self.rows(BanRow, device_id=device_id))

    def put(self, row: Row) -> None:
        """Add a row; a device or ban replaces the earlier row of the same device."""
        if isinstance(row, DeviceRow | BanRow):
            self.drop(type(row), device_id=row.device_id)
        values = msgspec.structs.asdict(row)
        if isinstance(row, TokenRow | DeviceRow):
            values["tags"] = ",".join(row.tags)
        self.connection.execute(_TABLES[type(row)][0].insert().values(**values))

    def use_token(self, hash: str, key: str, device_id: str) -> bool:
        """Bind a token to the key and device that use it; return False if another key used it."""
        unused = sql.and_(TOKENS.c.hash == hash, TOKENS.c.used_key.in_(["", key]))
        return bool(
            self.connection.execute(
                TOKENS.update().where(unused).values(used_key=key, used_by=device_id)
            ).rowcount
        )

    def drop(self, kind: type[Row], *conditions: sql.ColumnElement[bool], **values: str) -> int:
        """Delete the rows with these values that meet all conditions, and return their number."""
        table, _ = _TABLES[kind]
        equal = (table.c[name] == value for name, value in values.items())
        return int(self.connection.execute(table.delete().where(*conditions, *equal)).rowcount)


class EnrolmentStore(Database):
    """Database of enrolment. Any thread may use it."""

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Open a transaction.

        Raises:
            StorageFailed: the database cannot be read or written; nothing was changed.
        """
        with self._transaction() as connection:
            if self._engine.dialect.name == "sqlite":
                connection.exec_driver_sql(
                    "BEGIN IMMEDIATE"
                )  # no other process may write between our reads and writes
            yield Transaction(connection)


def open_enrolments(folder: Path, database: str = "") -> EnrolmentStore:
    """Return the enrolment database of a service's folder.

    `database`: value of `shoal serve --database`; empty: an SQLite file in the folder,
    ``enrolment.db``.

    Raises:
        ConfigError: it cannot be opened.
    """
    if not database and not folder.is_dir():
        raise ConfigError(f"No folder {folder}. `shoal init --tls` makes it.")
    return EnrolmentStore(database or sqlite_url(folder / FILE))
