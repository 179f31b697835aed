"""The charters of campaigns in a database that several services share."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import msgspec
import sqlalchemy as sql
from sqlalchemy.exc import SQLAlchemyError

from aggregator.core.ports import StorageFailed
from aggregator.storage.charter import Charter
from aggregator.storage.engine import database_name, make_engine
from aggregator.storage.schema import prepare
from aggregator.storage.sql_store import Fence
from aggregator.storage.tables import CHARTERS


class CharterTable:
    """By campaign its charter, and the digests of its bundle's files."""

    def __init__(self, url: str, fence: Fence | None = None) -> None:
        """`fence`: what has to hold in every transaction that writes.

        Raises:
            ConfigError: the database cannot be opened, or has another schema.
        """
        self._engine, self._name, self._fence = make_engine(url), database_name(url), fence

    def all(self) -> dict[str, tuple[Charter, dict[str, str]]]:
        """Every campaign, by name: its charter, and its files' digests by their names.

        Raises:
            StorageFailed: they cannot be read.
        """
        with self._transaction() as connection:
            rows = connection.execute(
                sql.select(CHARTERS.c.run, CHARTERS.c.charter, CHARTERS.c.files)
            ).all()
            return {name: (_charter(charter), _files(files)) for name, charter, files in rows}

    def files(self, name: str) -> dict[str, str]:
        """The digests of a campaign's files, by their names; empty where the campaign is not known.

        Raises:
            StorageFailed: they cannot be read.
        """
        with self._transaction() as connection:
            found = connection.scalar(sql.select(CHARTERS.c.files).where(CHARTERS.c.run == name))
            return _files(found) if found is not None else {}

    def put(self, charter: Charter, files: Mapping[str, str]) -> None:
        """Write a campaign's row in place of the one before.

        Raises:
            StorageFailed: nothing was written.
        """
        name, row = (
            charter.settings.name,
            {"charter": msgspec.json.encode(charter), "files": msgspec.json.encode(files).decode()},
        )
        with self._transaction() as connection:
            if self._fence is not None:
                self._fence(connection)
            connection.execute(CHARTERS.delete().where(CHARTERS.c.run == name))
            connection.execute(CHARTERS.insert().values(run=name, **row))

    def __enter__(self) -> "CharterTable":
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.dispose()

    @contextmanager
    def _transaction(self) -> Iterator[sql.Connection]:
        try:
            with self._engine.begin() as connection:
                prepare(connection)
                yield connection
        except (SQLAlchemyError, OSError, msgspec.MsgspecError) as error:
            raise StorageFailed(
                f"charters in database {self._name}: {str(error).splitlines()[0]}"
            ) from None


def _charter(payload: bytes) -> Charter:
    return msgspec.json.decode(payload, type=Charter)


def _files(text: str) -> dict[str, str]:
    return msgspec.json.decode(text, type=dict[str, str])
