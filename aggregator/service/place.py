"""Where a service keeps its campaigns, and how it shares them with the service that may take its
place."""

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
    """By campaign its charter, and the digests of its bundle's files."""

    def all(self) -> dict[str, tuple[Charter, dict[str, str]]]:
        """Every campaign, by name: its charter, and its files' digests by their names.

        Raises:
            StorageFailed: they cannot be read.
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
        """Write a campaign's row in place of the one before.

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
class Place:
    """Where a service keeps its campaigns, and what all of them have in common."""

    folder: Path
    database: str
    """SQLAlchemy URL."""
    trust: Trust
    blobs: str = ""
    """Folder or bucket of the blobs; in the service's folder when empty."""
    lease: FleetLease | None = None

    def fence(self) -> Fence | None:
        """What has to hold in every transaction that writes."""
        return self.lease.fence if self.lease is not None else None

    def may_delete(self) -> bool:
        """Whether this service may still delete blobs."""
        return self.lease is None or self.lease.holds()

    def share(self, charter: Charter) -> None:
        """Let the other services of this database know a campaign of this folder, where there may
        be others.

        Raises:
            StorageFailed: they cannot know it.
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
        """Bring this folder the campaigns that another service of this database has started, and
        share those that it did not. Returns the charters of the folder.

        Raises:
            ConfigError: one cannot be read or written.
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
