"""A runner under test, with two devices in its first round."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np

from aggregator.core.ports import Blobs, Store
from aggregator.core.settings import ADMIT_ALL, RunSettings
from aggregator.core.state import RunState
from aggregator.service.campaign import Observer
from aggregator.service.runner import Runner
from aggregator.storage.memory import MemoryBlobs, MemoryStore
from aggregator.transfer.fleet import Fleet
from algorithms.composition import make_algorithm, read_algorithm
from algorithms.core.contract import Mean
from algorithms.core.probe import make_probe
from export.describe import describe_bundle
from simulation.datasets.windows import FleetData
from simulation.engine.messages import VirtualClock
from simulation.objective import objective_for_fleet
from wire import messages as m
from wire.codec import decode, encode, encode_update
from wire.links.in_process import InProcessBroker
from wire.links.port import Delivery
from wire.topics import Topics


class Bench:
    """A runner with two devices in its first round, and what it answers."""

    def __init__(
        self,
        fleet: FleetData,
        store: Store | None = None,
        blobs: Blobs | None = None,
        deadline_s: float = 100.0,
        settings: Mapping[str, Any] = MappingProxyType({}),
        mean: Mean | None = None,
        algorithm: str = "fedavg",
        observe: Observer = lambda _state, _event: None,
        **changes: Any,
    ) -> None:
        """`settings`: other fields of `RunSettings`; `mean`: in place of the algorithm's; `observe`
        as in `Campaign`; `changes`: other arguments of `Runner`."""
        self.topics, broker = Topics("f"), InProcessBroker()
        self.device = broker.connect("tester")
        self.device.subscribe("shoal/1/f/device/+/reply", "shoal/1/f/device/+/plan")
        objective = objective_for_fleet(fleet, read_algorithm("fedavg"), 0)
        bundle = describe_bundle(
            objective, name=fleet.name, classes=fleet.classes, window=fleet.window
        )
        self.store, self.blobs, self.clock = (
            store or MemoryStore(),
            blobs or MemoryBlobs(),
            VirtualClock(),
        )
        link = Fleet(broker.connect("aggregator"), self.topics, "boot")
        probe = make_probe(objective.model, fleet.window.shape)
        made = make_algorithm(read_algorithm(algorithm))
        made = replace(made, mean=mean or made.mean)
        self.link, self.parts, self.changes, self.observe = (
            link,
            (made, bundle, probe),
            changes,
            observe,
        )
        layout = bundle.manifest.reported("step")
        chosen = RunSettings(
            run_id="r",
            algorithm="fedavg",
            data="x",
            bundle=bundle.digest,
            rounds=5,
            min_devices=2,
            deadline_s=deadline_s,
            grace_s=1.0,
            reported={"step": layout},
            responses={"evaluate": ()},
            max_update_norm=100.0,
            **ADMIT_ALL,
        )
        self.start(msgspec.structs.replace(chosen, **settings), self.store, self.blobs)
        self.tensors = {name: np.zeros(shape, dtype) for name, dtype, shape in layout}
        for device_id in ("a", "b"):
            self.send(device_id, "check-in", encode(m.CheckIn(device_id, 10, 4)))
        plan = next(p for p in self.answers() if isinstance(p, m.Plan) and p.device_id == "a")
        self.update = m.Update(
            "r", 1, 1, 0, "a", plan.model, 10, 2, m.Metrics(4, 1.0, 2), m.Metrics(10, 2.0, 5)
        )

    def start(self, settings: RunSettings, store: Store, blobs: Blobs, **changes: Any) -> None:
        """Start a service with this campaign, which goes on where it is in the store."""
        self.runner = Runner(self.link, self.clock, **self.changes, **changes)
        self.campaign = self.runner.add(settings, *self.parts, store, blobs, observe=self.observe)

    def send(self, device_id: str, kind: Any, payload: bytes) -> None:
        self.runner.handle(Delivery(self.topics.device(device_id, kind), payload))

    def answers(self) -> list[Any]:
        found = []
        while (event := self.device.receive(timeout_s=0)) is not None:
            if isinstance(event, Delivery):
                found.append(decode(event.payload, m.Plan | m.Reply))
        return found

    @property
    def state(self) -> RunState:
        return self.campaign.state

    def payload(self, device_id: str, **changes: Any) -> bytes:
        """An update of this device that is as it should be, but for changes of its message."""
        update = msgspec.structs.replace(
            self.update, device_id=device_id, round=self.state.round, **changes
        )
        return encode_update(
            msgspec.structs.replace(update, model=self.state.models[self.state.cohort[device_id]]),
            self.tensors,
        )

    def close(self, **updates: tuple[float, int]) -> Mapping[str, Any]:
        """Send the updates of these devices, which end the round: by device, the Euclidean norm of
        its change, and how many of four test windows the received model had right. Returns the
        notes of the round."""
        number = self.state.round
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
        assert self.state.round == number + 1, "the round is over"
        return next(record.notes for record in self.store.rounds() if record.round == number)

    def verdict(self, payload: bytes, device_id: str = "a") -> Any:
        self.answers()
        self.send(device_id, "update", payload)
        return self.answers()[-1]
