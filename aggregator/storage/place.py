"""Where a service keeps its campaigns, and how it shares them with the service that may take its
place."""

from dataclasses import dataclass
from pathlib import Path

from aggregator.core.ports import Blobs
from aggregator.leadership.fleet_lease import FleetLease
from aggregator.service.start import Trust
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
from aggregator.storage.charter_table import CharterTable
from aggregator.storage.choice import open_blobs
from aggregator.storage.engine import is_server
from aggregator.storage.sql_store import Fence


@dataclass(frozen=True)
class Place:
    """Where a service keeps its campaigns, and what all of them have in common."""

    folder: Path
    database: str
    """SQLAlchemy URL."""
    trust: Trust
    blobs: str = ""
    """As in `aggregator.storage.choice.open_blobs`."""
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
        with CharterTable(self.database, self.fence()) as table:
            files = table.files(charter.settings.name)
            if not files:
                here = campaign_folder(self.folder, charter.settings.name)
                digests = self._bundles().put(*((here / name).read_bytes() for name in FILES))
                files = dict(zip(FILES, digests, strict=True))
            table.put(charter, files)

    def keep(self, charter: Charter) -> None:
        """Put a charter in place of the one before.

        Raises:
            ConfigError, StorageFailed: it cannot be written; what there was stays.
        """
        self.share(charter)
        write_charter(self.folder, charter)

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
        with CharterTable(self.database, self.fence()) as table:
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
