"""A service with two campaigns."""

from typing import Any

import msgspec

from aggregator.aggregation.inherit import TrainedModels
from aggregator.fleet.events import Directed
from aggregator.fleet.records import Campaign
from aggregator.ports import Blobs
from aggregator.storage.memory import MemoryBlobs
from tests.aggregator.bench import Bench
from wire import messages as m
from wire.codec import encode

SECOND = "run-2"
"""Name of the second campaign."""


class Campaigns(Bench):
    """A bench on which a second campaign can be started."""

    def start_second(
        self, source: TrainedModels | None = None, blobs: Blobs | None = None, **settings: Any
    ) -> None:
        """Start it, with the settings of the first but for these."""
        chosen = {"run_id": "r2", "name": SECOND, **settings}
        own = (self.algorithm, self.exported, blobs or MemoryBlobs(), source)
        self.runner.open(msgspec.structs.replace(self.settings, **chosen), *own)
        self.tick()

    @property
    def second(self) -> Campaign:
        """The second campaign."""
        return self.runner.fleet.campaigns[SECOND]

    def direct(self, order: Any, campaign: str = SECOND) -> None:
        """Pause, resume or abort a campaign by an operator's order."""
        self.runner.order(Directed(at_s=self.clock(), campaign=campaign, order=order))
        self.tick()

    def plans(self) -> list[tuple[str, str]]:
        """Return the run and the device of each plan since the last look at the answers."""
        return [
            (plan.run_id, plan.device_id) for plan in self.answers() if isinstance(plan, m.Plan)
        ]

    def working(self, campaign: str) -> list[str]:
        """Return the devices that have an assignment of a campaign."""
        works = {d: device.assignment for d, device in self.runner.fleet.devices.items()}
        return sorted(d for d, w in works.items() if w and not w.lapsed and w.campaign == campaign)

    def payload(self, device_id: str, **changes: Any) -> bytes:
        """Return an update of a device for the campaign that it works for."""
        run = self.runner.fleet.campaigns[self.work(device_id).campaign].settings.run_id
        return super().payload(device_id, **{"run_id": run, **changes})

    def check_in(self, *device_ids: str) -> None:
        """Have these devices check in."""
        for device_id in device_ids:
            self.send(device_id, "check-in", encode(m.CheckIn(device_id, 10, 4)))

    def answer(self, *device_ids: str) -> None:
        """Have these devices send the updates of their assignments."""
        for device_id in device_ids:
            self.send(device_id, "update", self.payload(device_id))
