"""Tokens, enrolled devices and bans in an SQL database, by SQLAlchemy: SQLite in a file of its own,
``enrolment.db``, by default. Several processes may use it: the service, and the commands of whoever
runs it."""

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

T = TypeVar("T")

FILE = "enrolment.db"


class TokenRow(msgspec.Struct, frozen=True):
    """A token. `hash`: of its secret, which is nowhere. `used_key`: the digest of the key that has
    used it; empty until then."""

    hash: str
    made_at_s: float
    expires_at_s: float
    device_id: str = ""
    tags: tuple[str, ...] = ()
    approve: bool = False
    used_key: str = ""
    used_by: str = ""


class DeviceRow(msgspec.Struct, frozen=True):
    """A device. `state`: waiting, approved, rejected or enrolled. `key` and `previous_key`: digests
    of its public key, and of the one that it had before the last renewal."""

    device_id: str
    state: str
    key: str
    previous_key: str = ""
    certificate: str = ""
    not_after_s: float = 0.0
    token: str = ""
    tags: tuple[str, ...] = ()
    since_s: float = 0.0


class AuditRow(msgspec.Struct, frozen=True):
    """What was done, when, for which device, by which token."""

    at_s: float
    what: str
    device_id: str
    token: str
    detail: str


_TABLES: dict[type, sql.Table] = {TokenRow: TOKENS, DeviceRow: ENROLLED, AuditRow: AUDIT}


@dataclass(frozen=True)
class Transaction:
    """Rows that are read and written together, or not at all."""

    connection: sql.Connection

    def tokens(self, hash: str = "") -> list[TokenRow]:
        """Return every token, the oldest first, or the one of this hash."""
        chosen = sql.select(TOKENS).order_by(TOKENS.c.made_at_s)
        return self._rows(chosen.where(TOKENS.c.hash == hash) if hash else chosen, TokenRow)

    def put(self, row: TokenRow | DeviceRow | AuditRow) -> None:
        """Add a row, in place of an earlier one of the same device."""
        if isinstance(row, DeviceRow):
            self.drop_device(row.device_id)
        values = msgspec.structs.asdict(row)
        if not isinstance(row, AuditRow):
            values["tags"] = ",".join(row.tags)
        self.connection.execute(_TABLES[type(row)].insert().values(**values))

    def use_token(self, hash: str, key: str, device_id: str) -> bool:
        """Bind a token to the key and device that use it; false if another key did so before."""
        unused = sql.and_(TOKENS.c.hash == hash, TOKENS.c.used_key.in_(["", key]))
        return bool(
            self.connection.execute(
                TOKENS.update().where(unused).values(used_key=key, used_by=device_id)
            ).rowcount
        )

    def drop_tokens(
        self,
        prefix: str = "",
        *,
        unused: bool = False,
        used_by: str | None = None,
        before_s: float | None = None,
    ) -> int:
        """Forget tokens, and return their number: those whose hash begins so, that nobody has used,
        that a device has used, or that expired before a second. What is given has to hold all."""
        conditions = [TOKENS.c.hash.startswith(prefix, autoescape=True)]
        if unused:
            conditions.append(TOKENS.c.used_key == "")
        if used_by is not None:
            conditions.append(TOKENS.c.used_by == used_by)
        if before_s is not None:
            conditions.append(TOKENS.c.expires_at_s < before_s)
        return int(self.connection.execute(TOKENS.delete().where(*conditions)).rowcount)

    def device(self, device_id: str) -> DeviceRow | None:
        """Return a device that has enrolled, or wants to."""
        chosen = sql.select(ENROLLED).where(ENROLLED.c.device_id == device_id)
        return next(iter(self._rows(chosen, DeviceRow)), None)

    def devices(self) -> list[DeviceRow]:
        """Return every device, by id."""
        return self._rows(sql.select(ENROLLED).order_by(ENROLLED.c.device_id), DeviceRow)

    def drop_device(self, device_id: str) -> None:
        """Forget a device."""
        self.connection.execute(ENROLLED.delete().where(ENROLLED.c.device_id == device_id))

    def bans(self) -> dict[str, bool]:
        """Return every device that was ever banned, each with True while it is."""
        rows = self.connection.execute(sql.select(BANS.c.device_id, BANS.c.lifted)).all()
        return {str(device_id): not lifted for device_id, lifted in rows}

    def put_ban(self, device_id: str, lifted: bool, at_s: float) -> None:
        """Ban a device, or lift its ban."""
        self.connection.execute(BANS.delete().where(BANS.c.device_id == device_id))
        self.connection.execute(BANS.insert().values(device_id=device_id, lifted=lifted, at_s=at_s))

    def audit(self, most: int) -> list[AuditRow]:
        """Return the last lines of the audit, the oldest first."""
        columns = [column for column in AUDIT.c if column.name != "number"]
        chosen = sql.select(*columns).order_by(AUDIT.c.number.desc()).limit(most)
        return self._rows(chosen, AuditRow)[::-1]

    def _rows(self, chosen: "sql.Select[Any]", kind: type[T]) -> list[T]:
        mappings = self.connection.execute(chosen).mappings()
        rows = [{str(name): value for name, value in row.items()} for row in mappings]
        for row in rows:
            if "tags" in row:
                row["tags"] = row["tags"].split(",") if row["tags"] else []
        return msgspec.convert(rows, list[kind])  # type: ignore[valid-type]


class EnrolmentStore(Database):
    """The database of enrolment. Any thread may use it."""

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """
        Raises:
            StorageFailed: the database cannot be read or written; nothing was.
        """
        with self._transaction() as connection:
            if self._engine.dialect.name == "sqlite":
                connection.exec_driver_sql(
                    "BEGIN IMMEDIATE"
                )  # no other process writes between what is read here and what is written
            yield Transaction(connection)


def open_enrolments(folder: Path, database: str = "") -> EnrolmentStore:
    """The database of enrolment of a service's folder; `database` as `shoal serve --database`.

    Raises:
        ConfigError: it cannot be opened.
    """
    if not database and not folder.is_dir():
        raise ConfigError(f"folder {folder}: there is no such folder; `shoal init --tls` makes it")
    return EnrolmentStore(database or sqlite_url(folder / FILE))
