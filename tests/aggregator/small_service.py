"""The folder of a small service, for tests of what reads one: a campaign of two devices whose
models are made-up bytes."""

from pathlib import Path
from typing import Any

from aggregator.fleet import events as e
from aggregator.fleet.reconcile import Turn
from aggregator.fleet.records import AdmittedUpdate, Campaign, Version
from aggregator.fleet.step import take_in
from aggregator.storage.blob_folder import BlobFolder
from aggregator.storage.engine import sqlite_url
from aggregator.storage.fleet_store import FleetStore
from aggregator.transfer.offered import needed
from tests.fleet.world import CLOSING, TRAIN, settings_of
from wire.messages import CheckIn, Metrics

BUNDLE = b"a bundle" * 1000


def checked_in(device_id: str, at_s: float, num_train: int = 5) -> e.CheckedIn:
    """A check-in."""
    return e.CheckedIn(at_s=at_s, device_id=device_id, facts=CheckIn(device_id, num_train, 2))


class SmallService:
    """Keeps the fleet of a folder, as a service does."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder, self.now_s, self.made = folder, 1.0, 0
        self.blobs = BlobFolder(folder / "blobs" / "run-1")
        self.store = FleetStore(sqlite_url(folder / "shoal.db"))
        self.fleet = self.store.load()
        (bundle,) = self.blobs.put(BUNDLE)
        common = {"name": "run-1", "bundle": bundle, "min_devices": 2, "where": "id = a or id = b"}
        chosen = settings_of(**common, **settings)
        record = Campaign(settings=chosen, next_settings=chosen, version=self._version(0))
        self.feed(
            checked_in("a", self.now_s),
            checked_in("b", self.now_s),
            e.Started(at_s=self.now_s, campaign="run-1", record=record),
            e.Tick(at_s=self.now_s, keys=("",)),
        )

    @property
    def campaign(self) -> Campaign:
        """The campaign."""
        return self.fleet.campaigns["run-1"]

    @property
    def memory(self) -> str:
        """Digest of the algorithm's memory."""
        return self.campaign.version.memory

    def feed(self, *events: e.Event) -> None:
        """Take in events, and store what follows."""
        turn = Turn(self.fleet)
        for event in events:
            take_in(turn, event)
        after = turn.fleet()
        self.store.commit(self.fleet, after, turn.changed, events)
        self.fleet = after

    def send(self, device_id: str) -> None:
        """Take in an update of a device's assignment."""
        work = self.fleet.devices[device_id].assignment
        assert work is not None
        self.made += 1
        (blob,) = self.blobs.put(f"update {self.made} ".encode() * 99)
        numbers: dict[str, Any] = {"bytes_up": 1, "bytes_down": 1, "num_train": 5, "num_steps": 1}
        metrics: dict[str, Any] = {"evaluated": Metrics(), "trained": Metrics()}
        update = AdmittedUpdate(blob=blob, start=work.start, **numbers, **metrics)
        own: dict[str, Any] = {"device_id": device_id, "serial": work.serial}
        self.feed(e.Updated(at_s=self.now_s, **own, update=update))

    def close_round(self) -> None:
        """Have both devices send an update, and aggregate the round."""
        self.now_s += 1
        for device_id in "ab":
            if device_id not in self.campaign.updates:
                self.send(device_id)
        number = self.campaign.round
        own: dict[str, Any] = {"campaign": "run-1", "round": number}
        self.feed(
            e.Aggregated(at_s=self.now_s, **own, version=self._version(number)),
            e.Tick(at_s=self.now_s, keys=("",)),
        )
        self.blobs.keep(needed(self.campaign, self.fleet))

    def close(self) -> None:
        """Stop the service."""
        self.store.close()

    def _version(self, number: int) -> Version:
        model, memory = self.blobs.put(
            f"model {number} ".encode() * 999, f"memory {number} ".encode() * 99
        )
        programs: dict[str, Any] = {"": (TRAIN,), "closing": CLOSING}
        return Version(
            round=number, models={"0": model}, memory=memory, programs=programs, newcomers="0"
        )
