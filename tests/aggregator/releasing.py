"""A service of two devices whose campaign is trained by `Bench`, and its releases."""

import time
from pathlib import Path
from typing import Any

from aggregator.core.steps import Gate, Step
from aggregator.fleet.records import ModelRelease
from aggregator.leadership.identity import own_secret, service_signer
from aggregator.operator.release_orders import release_handlers
from aggregator.releases import ReleaseMaker, When
from aggregator.storage.blob_folder import BlobFolder
from aggregator.storage.engine import sqlite_url
from aggregator.storage.fleet_store import FleetStore
from simulation.datasets.windows import FleetData
from tests.aggregator.bench import Bench
from wire import messages as m
from wire.codec import encode
from wire.identity.keys import new_key

STEPS = (Step(0.5), Step(1.0))
NAME = "run-1"


class Releasing:
    """A service whose campaign `run-1` makes releases, in a folder."""

    def __init__(
        self,
        fleet: FleetData,
        folder: Path,
        when: When = "auto",
        every: int = 0,
        steps: tuple[Step, ...] = STEPS,
        **settings: Any,
    ) -> None:
        """`settings`: fields of `RunSettings`."""
        self.folder, releases = folder, BlobFolder(folder / "releases")
        self.bench = Bench(
            fleet,
            FleetStore(sqlite_url(folder / "shoal.db")),
            BlobFolder(folder / "blobs" / NAME),
            settings={"rounds": 2, "name": NAME, **settings},
            releases=releases,
        )
        blobs_of = self.bench.blobs
        self.maker = ReleaseMaker(
            when, steps, Gate(), releases, lambda _name: blobs_of, self.bench.clock, every
        )
        self.handlers = release_handlers(self.bench.runner, self.maker)

    def release(self) -> None:
        """Make the releases that are due, as a service does after every change."""
        for event in self.maker.due(self.bench.runner.fleet):
            self.bench.runner.order(event)
        self.bench.tick()

    def round(self) -> None:
        """Train for a round."""
        self.bench.close(a=(1.0, 2), b=(1.0, 2))
        self.release()

    def finish(self) -> None:
        """Have both devices evaluate the models of the last round."""
        for device_id in ("a", "b"):
            self.bench.tensors = {}
            payload = self.bench.payload(device_id, evaluated=m.Metrics(4, 1.0, 3))
            self.bench.send(device_id, "update", payload)
        assert self.bench.campaign.phase == "finished"
        self.release()

    def order(self, order: str, **fields: Any) -> str:
        """Carry out an order to releases."""
        text = self.handlers[order](**fields)
        self.bench.tick()
        return text

    def report(self, device_id: str, problem: str = "") -> None:
        """Have a device report the release that it was offered last; with a problem, as not in
        use."""
        record = self.bench.known(device_id)
        number, metrics = record.last_offer.serial, m.Metrics(10, 1.0, 9)
        used = record.settled.serial if problem else number
        report = m.InUse(device_id, used, number, problem, metrics, metrics, latency_ms=1.0)
        self.bench.send(device_id, "in-use", encode(report))

    @property
    def releases(self) -> dict[int, ModelRelease]:
        """Releases by number."""
        return dict(self.bench.runner.fleet.releases)


def service_with_releases(fleet: FleetData, folder: Path) -> Releasing:
    """Return a service with two releases, of which the second is on its way to two devices."""
    folder.mkdir(parents=True, exist_ok=True)
    own_secret(folder / "secret.key")
    root = new_key()
    service_signer(folder, "f", (root.public_key(),), root, time.time())
    service = Releasing(fleet, folder, "manual", steps=(Step(1.0),), rounds=9)
    service.round()
    service.order("make-releases", campaign=NAME)
    for device_id in ("a", "b"):
        service.report(device_id)
    service.round()
    service.order("make-releases", campaign=NAME)
    service.report("a", "no graph")
    return service
