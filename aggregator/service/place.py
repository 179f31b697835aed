"""Storage of a service's campaigns, and its sharing with a service that may take over."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import msgspec
import sqlalchemy as sql

from aggregator.leadership.fleet_lease import FleetLease
from aggregator.ports import Blobs
from aggregator.service.start import Trust
from aggregator.storage.blob_bucket import open_blobs
from aggregator.storage.charter import (
    BUNDLES,
    FILES,
    Charter,
    accept,
    campaign_folder,
    charters,
    propose_files,
    write_charter,
)
from aggregator.storage.engine import is_server
from aggregator.storage.schema import CHARTERS, Database, Fence


class CharterTable(Database):
    """Table of charters: the charter of each campaign, and the digests of its bundle's files."""

    def all(self) -> dict[str, tuple[Charter, dict[str, str]]]:
        """Return the charter of every campaign and the digests of its files, by campaign name.

        Raises:
            StorageFailed: the table cannot be read.
        """
        with self._transaction() as connection:
            rows = connection.execute(
                sql.select(CHARTERS.c.run, CHARTERS.c.charter, CHARTERS.c.files)
            ).all()
            return {
                name: (
                    msgspec.json.decode(charter, type=Charter),
                    msgspec.json.decode(files, type=dict[str, str]),
                )
                for name, charter, files in rows
            }

    def put(self, charter: Charter, files: Mapping[str, str]) -> None:
        """Write the row of a campaign in place of its earlier row.

        Raises:
            StorageFailed: nothing was written.
        """
        name, row = (
            charter.settings.name,
            {"charter": msgspec.json.encode(charter), "files": msgspec.json.encode(files).decode()},
        )
        with self._transaction(writes=True) as connection:
            connection.execute(CHARTERS.delete().where(CHARTERS.c.run == name))
            connection.execute(CHARTERS.insert().values(run=name, **row))


@dataclass(frozen=True)
class ServiceStorage:
    """Folder, database and blobs of a service, which its campaigns have in common."""

    folder: Path
    database: str
    """SQLAlchemy URL."""
    trust: Trust
    blobs: str = ""
    """Folder or bucket of the blobs; empty for the service's folder."""
    lease: FleetLease | None = None

    def fence(self) -> Fence | None:
        """Return the condition of every writing transaction, or None if there is none."""
        return self.lease.fence if self.lease is not None else None

    def may_delete(self) -> bool:
        """Return True if this service may still delete blobs."""
        return self.lease is None or self.lease.holds()

    def share(self, charter: Charter) -> None:
        """Share a campaign of this folder with the other services of the database.

        Nothing happens for a database that only one service can use.

        Raises:
            StorageFailed: the campaign cannot be shared.
        """
        if not is_server(self.database):
            return
        with closing(CharterTable(self.database, self.fence())) as table:
            _, files = table.all().get(charter.settings.name, (None, {}))
            if not files:
                here = campaign_folder(self.folder, charter.settings.name)
                digests = self._bundles().put(*((here / name).read_bytes() for name in FILES))
                files = dict(zip(FILES, digests, strict=True))
            table.put(charter, files)

    def exchange(self) -> dict[str, Charter]:
        """Exchange campaigns between folder and database; return the folder's charters.

        Campaigns that another service has started are copied into the folder. Campaigns that only
        the folder has are shared.

        Raises:
            ConfigError: a charter cannot be read or written.
            StorageFailed: the database or the blobs cannot be read or written.
            BlobLost: a bundle is not among the blobs.
        """
        here = charters(self.folder)
        if not is_server(self.database):
            return here
        with closing(CharterTable(self.database, self.fence())) as table:
            shared = table.all()
        for name, (charter, files) in shared.items():
            if name not in here:
                blobs = self._bundles()
                propose_files(
                    self.folder,
                    charter,
                    {file: blobs.get(digest) for file, digest in files.items()},
                )
                accept(self.folder, name)
            elif here[name] != charter:
                write_charter(self.folder, charter)
        for name in here.keys() - shared.keys():
            self.share(here[name])
        return charters(self.folder)

    def _bundles(self) -> Blobs:
        return open_blobs(self.blobs or str(self.folder), self.folder, BUNDLES, self.may_delete)
