"""Tokens, enrolled devices and bans in an SQL database, by SQLAlchemy: SQLite in a file of its own,
``enrolment.db``, by default. Several processes may use it: the service, and the commands of whoever
runs it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sql

from aggregator.core.ports import StorageFailed
from aggregator.storage.engine import sqlite_url, using
from aggregator.storage.schema import AUDIT, BANS, ENROLLED, TOKENS, opened
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


class Transaction:
    """What is read and written together, or not at all."""

    def __init__(self, connection: sql.Connection) -> None:
        self._connection = connection

    def token(self, hash: str) -> TokenRow | None:
        """The token of this hash."""
        return next(
            iter(
                _rows(self._connection, sql.select(TOKENS).where(TOKENS.c.hash == hash), TokenRow)
            ),
            None,
        )

    def tokens(self) -> list[TokenRow]:
        """Every token, the oldest first."""
        return _rows(self._connection, sql.select(TOKENS).order_by(TOKENS.c.made_at_s), TokenRow)

    def add_token(self, token: TokenRow) -> None:
        """Add a token."""
        self._connection.execute(TOKENS.insert().values(**_values(token)))

    def use_token(self, hash: str, key: str, device_id: str) -> bool:
        """Bind a token to the key and device that use it; false if another key did so before."""
        unused = sql.and_(TOKENS.c.hash == hash, TOKENS.c.used_key.in_(["", key]))
        return bool(
            self._connection.execute(
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
        return int(self._connection.execute(TOKENS.delete().where(*conditions)).rowcount)

    def device(self, device_id: str) -> DeviceRow | None:
        """A device that has enrolled, or wants to."""
        return next(
            iter(
                _rows(
                    self._connection,
                    sql.select(ENROLLED).where(ENROLLED.c.device_id == device_id),
                    DeviceRow,
                )
            ),
            None,
        )

    def devices(self) -> list[DeviceRow]:
        """Every device, by id."""
        return _rows(
            self._connection, sql.select(ENROLLED).order_by(ENROLLED.c.device_id), DeviceRow
        )

    def put_device(self, device: DeviceRow) -> None:
        """Add a device, or replace what is known of it."""
        self._connection.execute(ENROLLED.delete().where(ENROLLED.c.device_id == device.device_id))
        self._connection.execute(ENROLLED.insert().values(**_values(device)))

    def drop_device(self, device_id: str) -> None:
        """Forget a device."""
        self._connection.execute(ENROLLED.delete().where(ENROLLED.c.device_id == device_id))

    def bans(self) -> dict[str, bool]:
        """Every device that was ever banned, and whether it is so now."""
        found = self._connection.execute(sql.select(BANS.c.device_id, BANS.c.lifted)).all()
        return {str(device_id): not lifted for device_id, lifted in found}

    def is_banned(self, device_id: str) -> bool:
        """Whether a device is banned."""
        return (
            self._connection.scalar(sql.select(BANS.c.lifted).where(BANS.c.device_id == device_id))
            is False
        )

    def put_ban(self, device_id: str, lifted: bool, at_s: float) -> None:
        """Ban a device, or lift its ban."""
        self._connection.execute(BANS.delete().where(BANS.c.device_id == device_id))
        self._connection.execute(
            BANS.insert().values(device_id=device_id, lifted=lifted, at_s=at_s)
        )

    def note(self, audit: AuditRow) -> None:
        """Add a line to the audit."""
        self._connection.execute(AUDIT.insert().values(**msgspec.structs.asdict(audit)))

    def audit(self, most: int) -> list[AuditRow]:
        """The last lines of the audit, the oldest first."""
        columns = [column for column in AUDIT.c if column.name != "number"]
        return _rows(
            self._connection,
            sql.select(*columns).order_by(AUDIT.c.number.desc()).limit(most),
            AuditRow,
        )[::-1]


class EnrolmentStore:
    """The database of enrolment. Any thread may use it."""

    def __init__(self, url: str) -> None:
        """
        Raises:
            ConfigError: the database cannot be opened.
        """
        self._engine, self._url = opened(url), url

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """
        Raises:
            StorageFailed: the database cannot be read or written; nothing was.
        """
        with using(self._url, StorageFailed), self._engine.begin() as connection:
            if self._engine.dialect.name == "sqlite":
                connection.exec_driver_sql(
                    "BEGIN IMMEDIATE"
                )  # no other process writes between what is read here and what is written
            yield Transaction(connection)

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()


def open_enrolments(folder: Path, database: str = "") -> EnrolmentStore:
    """The database of enrolment of a service's folder; `database` as `shoal serve --database`.

    Raises:
        ConfigError: it cannot be opened.
    """
    if not database and not folder.is_dir():
        raise ConfigError(f"folder {folder}: there is no such folder; `shoal init --tls` makes it")
    return EnrolmentStore(database or sqlite_url(folder / FILE))


def _values(row: TokenRow | DeviceRow) -> dict[str, Any]:
    return {**msgspec.structs.asdict(row), "tags": ",".join(row.tags)}


def _rows(connection: sql.Connection, chosen: "sql.Select[Any]", kind: type[T]) -> list[T]:
    found = connection.execute(chosen).mappings()
    rows = [{str(name): value for name, value in row.items()} for row in found]
    for row in rows:
        if "tags" in row:
            row["tags"] = row["tags"].split(",") if row["tags"] else []
    return msgspec.convert(rows, list[kind])  # type: ignore[valid-type]
