"""An inbox under test, with the machine behind it and two devices in the first round."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np

from aggregator.core.settings import ADMIT_ALL, RunSettings
from aggregator.fleet import events as e
from aggregator.fleet.records import Assignment, Campaign, Device, Fleet, Version
from aggregator.fleet.step import step
from aggregator.service.inbox import FleetInbox, Reading
from aggregator.service.telemetry import Telemetry
from algorithms.composition import read_algorithm
from algorithms.core.contract import USUAL_PASSES
from algorithms.core.keys import NEWCOMER, UNLABELLED
from export.describe import describe_bundle
from simulation.datasets.windows import FleetData
from simulation.objective import objective_for_fleet
from wire import messages as m
from wire.arrays.tensors import encode_tensors
from wire.codec import digest, encode, encode_update
from wire.links.port import Delivery
from wire.topics import Topics

VERBS: tuple[m.Verb, ...] = (m.Evaluate(), m.Train(32, USUAL_PASSES))


class Watch:
    """A clock that is set."""

    def __init__(self, now_s: float = 100.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


class InboxBench:
    """An inbox whose events change a fleet at once, as if they were stored."""

    def __init__(
        self,
        data: FleetData,
        settings: dict[str, Any] | None = None,
        clock: Watch | None = None,
        **changes: Any,
    ) -> None:
        """`settings`: other fields of `RunSettings`; `changes`: other arguments of `FleetInbox`."""
        objective = objective_for_fleet(data, read_algorithm("fedavg"), 0)
        self.bundle = describe_bundle(
            objective, name=data.name, classes=data.classes, window=data.window
        )
        layout = self.bundle.manifest.reported("step")
        self.tensors = {name: np.zeros(shape, dtype) for name, dtype, shape in layout}
        self.initial = self.bundle.initial
        payload = encode_tensors(self.initial)
        self.blobs, self.topics = {digest(payload): payload}, Topics("f")
        self.clock = clock or Watch()
        self.telemetry = changes.pop("telemetry", None) or Telemetry(None, self.clock)
        parts = (self.topics, self.clock, self.blobs.__getitem__, self.telemetry)
        self.inbox = FleetInbox(*parts, **changes)
        self.inbox.admit_updates_of(self.bundle.manifest)
        self.fleet, self.commands = Fleet(), list[e.Command]()
        chosen = RunSettings(
            run_id="r",
            algorithm="fedavg",
            data="x",
            bundle=self.bundle.digest,
            rounds=5,
            min_devices=2,
            min_updates=2,
            grace_s=1.0,
            reported={"step": layout},
            responses={"evaluate": ()},
            max_update_norm=100.0,
            **{**ADMIT_ALL, "deadline_s": 100.0},
        )
        self.start(msgspec.structs.replace(chosen, **settings or {}), digest(payload))
        for device_id in ("a", "b"):
            self.send(device_id, "check-in", encode(m.CheckIn(device_id, 10, 4)))
        self.update = m.Update(
            "r",
            1,
            1,
            work.serial if (work := self.device("a").assignment) else 0,
            "a",
            digest(payload),
            10,
            2,
            m.Metrics(4, 1.0, 2),
            m.Metrics(10, 2.0, 5),
        )

    def start(self, settings: RunSettings, model: str) -> None:
        """Start a campaign with this model."""
        programs: dict[str, tuple[m.Verb, ...]] = {
            "": VERBS,
            "closing": (m.Evaluate(),),
            UNLABELLED: (),
        }
        version = Version(
            round=0, models={NEWCOMER: model}, memory="", programs=programs, newcomers=NEWCOMER
        )
        record = Campaign(settings=settings, next_settings=settings, version=version)
        self.take(e.Started(at_s=self.clock(), campaign=settings.name, record=record))

    def take(self, *events: e.Event) -> list[e.Command]:
        """Take in events, and those of timers that are due at once."""
        commands = list[e.Command]()
        for event in events:
            self.fleet, found = step(self.fleet, event)
            commands += found
        while self.fleet.sweep:
            self.fleet, found = step(self.fleet, e.Tick(at_s=self.clock(), keys=("",)))
            commands += found
        self.commands += commands
        return commands

    def read(self, device_id: str, kind: Any, payload: bytes, retained: bool = False) -> Reading:
        """Read a message, and do nothing of what follows."""
        topic = self.topics.device(device_id, kind)
        return self.inbox.read(Delivery(topic, payload, retained=retained), self.fleet)

    def send(self, device_id: str, kind: Any, payload: bytes, retained: bool = False) -> list[Any]:
        """Read a message, and take in what follows. Return the answers."""
        reading = self.read(device_id, kind, payload, retained)
        if reading.update is not None:
            self.blobs[digest(reading.update)] = reading.update
        return [*self.take(*reading.events), *reading.replies]

    def verdict(self, payload: bytes, device_id: str = "a") -> Any:
        """Return the answer to an update."""
        answers = self.send(device_id, "update", payload)
        for answer in answers:
            if isinstance(answer, m.Acknowledge | m.Refuse):
                return answer
            if isinstance(answer, e.AcknowledgeUpdate):
                return m.Acknowledge(answer.device_id, answer.blob)
        raise AssertionError(f"no answer: {answers}")

    def payload(self, device_id: str, **changes: Any) -> bytes:
        """Return an update of a device as it should be, but for changes of its message."""
        work = self.work(device_id)
        own = {"device_id": device_id, "round": work.round, "attempt": work.serial}
        update = msgspec.structs.replace(self.update, **{**own, "model": work.model, **changes})
        return encode_update(update, self.tensors)

    def device(self, device_id: str) -> Device:
        """Return the record of a device."""
        return self.fleet.devices[device_id]

    def work(self, device_id: str) -> Assignment:
        """Return the assignment of a device."""
        work = self.device(device_id).assignment
        assert work is not None
        return work

    @property
    def campaign(self) -> Campaign:
        """The campaign."""
        return next(iter(self.fleet.campaigns.values()))

    @property
    def received(self) -> dict[str, Any]:
        """Updates that count in the open round."""
        return dict(self.campaign.updates)

    @contextmanager
    def is_unchanged(self) -> Iterator[None]:
        """Check that a block changes nothing of updates that count."""
        before = self.campaign.updates
        yield
        assert self.campaign.updates == before
