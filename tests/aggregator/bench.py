"""A runner under test, with two devices in the first round."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np

from aggregator.aggregation.orders import rolled_back
from aggregator.core.settings import ADMIT_ALL, RunSettings
from aggregator.fleet.events import Directed
from aggregator.fleet.records import Assignment, Campaign, Device
from aggregator.leadership.rivals import Rivals
from aggregator.ports import Blobs
from aggregator.service.inbox import FleetInbox
from aggregator.service.runner import Runner
from aggregator.service.start import Exported
from aggregator.service.telemetry import Telemetry
from aggregator.service.trainer import Trainer
from aggregator.storage.memory import MemoryBlobs, MemoryStore
from aggregator.transfer.fleet import FleetLink
from algorithms.composition import make_algorithm, read_algorithm
from algorithms.core.contract import Mean
from algorithms.core.probe import make_probe
from export.describe import describe_bundle
from simulation.datasets.windows import FleetData
from simulation.engine.messages import VirtualClock
from simulation.objective import objective_for_fleet
from wire import messages as m
from wire.codec import decode, encode, encode_update
from wire.identity.signed import Verifier
from wire.links.in_process import InProcessBroker
from wire.links.port import Delivery
from wire.topics import Topics


class Bench:
    """A runner with two devices in the first round of a campaign, and its answers."""

    def __init__(
        self,
        fleet: FleetData,
        store: Any = None,
        blobs: Blobs | None = None,
        settings: Mapping[str, Any] = MappingProxyType({}),
        mean: Mean | None = None,
        algorithm: str = "fedavg",
        silence_s: float = float("inf"),
        verifier: Verifier | None = None,
        **changes: Any,
    ) -> None:
        """`settings`: other fields of `RunSettings`; `mean`: in place of the algorithm's;
        `verifier`: verifies plans that devices show; `changes`: other arguments of `Runner`."""
        self.topics, self.broker, self.clock = Topics("f"), InProcessBroker(), VirtualClock()
        self.device = self.broker.connect("tester")
        self.device.subscribe("shoal/1/f/device/+/reply", "shoal/1/f/device/+/plan")
        objective = objective_for_fleet(fleet, read_algorithm("fedavg"), 0)
        bundle = describe_bundle(
            objective, name=fleet.name, classes=fleet.classes, window=fleet.window
        )
        self.store, self.blobs = store or MemoryStore(), blobs or MemoryBlobs()
        self.link = FleetLink(self.broker.connect("aggregator"), self.topics, "boot")
        made = make_algorithm(read_algorithm(algorithm))
        self.algorithm = replace(made, mean=mean or made.mean)
        self.exported = Exported(bundle, make_probe(objective.model, fleet.window.shape))
        self.changes, self.silence_s, self.verifier = changes, silence_s, verifier
        layout = bundle.manifest.reported("step")
        chosen = RunSettings(
            run_id="r",
            algorithm="fedavg",
            data="x",
            bundle=bundle.digest,
            rounds=5,
            min_devices=2,
            min_updates=2,
            deadline_s=100.0,
            grace_s=1.0,
            reported={"step": layout},
            responses={"evaluate": ()},
            max_update_norm=100.0,
            **ADMIT_ALL,
        )
        self.tensors = {name: np.zeros(shape, dtype) for name, dtype, shape in layout}
        self.settings = msgspec.structs.replace(chosen, **settings)
        self.start()
        for device_id in ("a", "b"):
            self.send(device_id, "check-in", encode(m.CheckIn(device_id, 10, 4)))
        work = self.work("a")
        self.update = m.Update(
            "r",
            1,
            1,
            work.serial,
            "a",
            work.model,
            10,
            2,
            m.Metrics(4, 1.0, 2),
            m.Metrics(10, 2.0, 5),
        )

    def start(self, epoch: int = 1, **settings: Any) -> None:
        """Start a service, which goes on from the store; with these other settings."""
        telemetry = Telemetry(None, self.clock)
        parts = (self.topics, self.clock, self.link.offered, telemetry)
        inbox = FleetInbox(*parts, silence_s=self.silence_s)
        rivals = Rivals(self.verifier, self.clock, inbox.count)
        own = (self.store, self.link, inbox, telemetry, rivals, self.clock)
        self.runner = Runner(*own, **self.changes)
        self.settings = msgspec.structs.replace(self.settings, **settings)
        self.runner.open(self.settings, self.algorithm, self.exported, self.blobs)
        self.runner.begin(epoch)
        self.tick()

    def send(self, device_id: str, kind: Any, payload: bytes, retained: bool = False) -> None:
        """Have the runner handle a message, and ring the timers that are due."""
        topic = self.topics.device(device_id, kind)
        self.runner.handle(Delivery(topic, payload, retained=retained))
        self.tick()

    def tick(self) -> None:
        """Ring the timers that are due."""
        self.runner.tick()
        for _ in range(100):
            if self.runner.next_s() > self.clock():
                return
            self.runner.tick()
        raise AssertionError("timers ring for ever")

    def resume(self) -> None:
        """Have the campaign go on by an operator's order."""
        self.trainer.try_to_go_on(resumed=True)
        self.runner.order(Directed(at_s=self.clock(), campaign=self.settings.name, order="resume"))
        self.tick()

    def roll_back(self, to: int) -> None:
        """Return to the models that a round made, by an operator's order."""
        own = (self.campaign, to, self.algorithm, self.blobs, self.clock())
        event = rolled_back(*own)
        self.trainer.end_stop()
        self.runner.order(event)
        self.tick()

    def answers(self) -> list[Any]:
        """Return the messages to devices since the last call."""
        found = []
        while (event := self.device.receive(timeout_s=0)) is not None:
            if isinstance(event, Delivery):
                found.append(decode(event.payload, m.Plan | m.Reply))
        return found

    @property
    def campaign(self) -> Campaign:
        """The campaign."""
        return self.runner.fleet.campaigns[self.settings.name]

    @property
    def epoch(self) -> int:
        """The epoch of the service."""
        return self.runner.fleet.epoch

    @property
    def trainer(self) -> Trainer:
        """The campaign's trainer."""
        return self.runner.trainers[self.settings.name]

    @property
    def received(self) -> dict[str, Any]:
        """Updates that count in the open round."""
        return dict(self.campaign.updates)

    def known(self, device_id: str) -> Device:
        """Return the record of a device."""
        return self.runner.fleet.devices[device_id]

    def work(self, device_id: str) -> Assignment:
        """Return the assignment of a device."""
        work = self.known(device_id).assignment
        assert work is not None
        return work

    def payload(self, device_id: str, **changes: Any) -> bytes:
        """Return an update of a device as it should be, but for changes of its message."""
        work = self.work(device_id)
        own = {"round": work.round, "attempt": work.serial, "model": work.model}
        update = msgspec.structs.replace(self.update, device_id=device_id, **{**own, **changes})
        return encode_update(update, self.tensors)

    def close(self, **updates: tuple[float, int]) -> Mapping[str, Any]:
        """Send the updates of these devices, which end the round: by device, the Euclidean norm of
        its change, and how many of four test windows the received model had right. Return the notes
        of the round."""
        number = self.campaign.round
        for device_id, (norm, right) in updates.items():
            total = sum(
                array.size for name, array in self.tensors.items() if name.startswith("delta/")
            )
            fill = np.float32(norm / total**0.5)
            self.tensors = {
                n: np.full_like(a, fill) if n.startswith("delta/") else a
                for n, a in self.tensors.items()
            }
            self.verdict(self.payload(device_id, evaluated=m.Metrics(4, 1.0, right)), device_id)
        assert self.campaign.round == number + 1, "the round is over"
        records = self.store.rounds(self.settings.name)
        return next(record.notes for record in records if record.round == number)

    def verdict(self, payload: bytes, device_id: str = "a") -> Any:
        """Return the answer to an update."""
        self.answers()
        self.send(device_id, "update", payload)
        kinds = m.Acknowledge | m.Refuse | m.Busy
        answers = [a for a in self.answers() if isinstance(a, kinds) and a.device_id == device_id]
        return answers[-1]
