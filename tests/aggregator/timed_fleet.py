"""The real runner and real agents over a broker inside the process, on a virtual clock, where each
device needs its own time to train."""

from collections.abc import Mapping
from typing import Any

from aggregator.core.settings import ADMIT_ALL, RunSettings
from aggregator.fleet.records import Campaign
from aggregator.leadership.rivals import Rivals
from aggregator.service.inbox import FleetInbox
from aggregator.service.runner import Runner
from aggregator.service.start import Exported
from aggregator.service.telemetry import Telemetry
from aggregator.storage.memory import MemoryBlobs, MemoryStore
from aggregator.transfer.fleet import FleetLink
from aggregator.view.round_record import RoundRecord
from algorithms.composition import make_algorithm, read_algorithm
from algorithms.core.probe import make_probe
from edge_client.agent.loop import Agent
from edge_client.storage.state import DeviceState
from export.describe import describe_bundle
from simulation.datasets.windows import FleetData
from simulation.engine.graphs.eager import EagerGraphs
from simulation.engine.messages import VirtualClock
from simulation.engine.workers.device_host import repeatable_secret
from simulation.objective import objective_for_fleet
from wire.arrays import names
from wire.arrays.tensors import Tensors
from wire.links.in_process import InProcessBroker, InProcessLink
from wire.links.port import Will
from wire.pieces import PacketLimit
from wire.topics import Topics


class Device:
    """An agent whose clock runs ahead while it trains: what it sends then is delivered when the
    others have got there."""

    def __init__(
        self, clock: VirtualClock, link: InProcessLink, graphs: EagerGraphs, examples_per_s: float
    ) -> None:
        self._clock, self._link, self._graphs, self._speed = clock, link, graphs, examples_per_s
        self.max_batch: int | None = None
        self.free_at_s = 0.0
        self._waiting: list[tuple[str, bytes, bool]] = []
        self.subscribe, self.unsubscribe, self.confirm, self.close = (
            link.subscribe,
            link.unsubscribe,
            link.confirm,
            link.close,
        )
        self.receive = link.receive

    def now_s(self) -> float:
        return max(self._clock(), self.free_at_s)

    def run(self, graph: str, inputs: Tensors) -> Tensors:
        if graph == "step":
            self.free_at_s = self.now_s() + len(inputs[names.X]) / self._speed
        return self._graphs.run(graph, inputs)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        self._waiting.append((topic, payload, retain))
        self.deliver()

    @property
    def limit(self) -> PacketLimit:
        return self._link.limit

    @property
    def is_free(self) -> bool:
        return self.free_at_s <= self._clock()

    def deliver(self) -> None:
        """Publish what it has sent, unless it is ahead of the others."""
        if self.is_free:
            for topic, payload, retain in self._waiting:
                self._link.publish(topic, payload, retain=retain)
            self._waiting.clear()


class TimedFleet:
    """A campaign with a device for each of `speeds`, in training examples a second. `settings`:
    other fields of `RunSettings`."""

    def __init__(
        self,
        data: FleetData,
        speeds: Mapping[str, float],
        algorithm: str = "fedavg",
        **settings: Any,
    ) -> None:
        spec = read_algorithm(algorithm)
        objective = objective_for_fleet(data, spec, 0)
        bundle = describe_bundle(
            objective, name=data.name, classes=data.classes, window=data.window
        )
        self.clock, self._store, topics = VirtualClock(), MemoryStore(), Topics("f")
        broker = InProcessBroker()
        link, telemetry = (
            FleetLink(broker.connect("aggregator"), topics, "0"),
            Telemetry(None, self.clock),
        )
        inbox = FleetInbox(topics, self.clock, link.offered, telemetry)
        rivals = Rivals(None, self.clock, inbox.count)
        self.runner = Runner(self._store, link, inbox, telemetry, rivals, self.clock)
        manifest = bundle.manifest
        chosen: dict[str, Any] = {
            **ADMIT_ALL,
            "rounds": 4,
            "deadline_s": 1e4,
            "grace_s": 60.0,
            "min_devices": len(speeds),
            "batch_size": 16,
        } | settings
        chosen |= {"reported": {g: manifest.reported(g) for g in manifest.graphs}}
        chosen |= {"responses": {g: manifest.responses(g) for g in manifest.graphs}}
        made = RunSettings(
            run_id="r", algorithm=algorithm, data=data.name, bundle=bundle.digest, **chosen
        )
        exported = Exported(bundle, make_probe(objective.model, data.window.shape))
        self.runner.open(made, make_algorithm(spec), exported, MemoryBlobs())
        self.runner.begin(1)
        graphs = EagerGraphs(objective)
        self.devices: dict[str, tuple[Device, Agent]] = {}
        for device_id, speed in speeds.items():
            own = broker.connect(device_id, Will(topics.device(device_id, "status"), b""))
            device = Device(self.clock, own, graphs, speed)
            agent = Agent(
                device_id,
                topics,
                device,
                data.devices[device_id],
                DeviceState(),
                lambda _, device=device: device,  # type: ignore[misc]  # each its own
                clock=device.now_s,
                secret=repeatable_secret,
            )
            self.devices[device_id] = device, agent

    @property
    def campaign(self) -> Campaign:
        """The campaign."""
        return self.runner.fleet.campaigns["run-1"]

    def rounds(self) -> list[RoundRecord]:
        """Return the records of its rounds of training."""
        return [r for r in self._store.rounds("run-1") if r.phase == "training"]

    def run(self) -> Campaign:
        """Let time pass until the campaign is over."""
        for _ in range(100_000):
            if not self._deliver():
                if self.runner.finished:
                    return self.campaign
                busy = [
                    device.free_at_s for device, _ in self.devices.values() if not device.is_free
                ]
                retries = [
                    agent.retry_at_s for device, agent in self.devices.values() if device.is_free
                ]
                self.clock.now_s = max(self.clock.now_s, min(self.runner.next_s(), *busy, *retries))
                self.runner.tick()
                for device, agent in self.devices.values():
                    device.deliver()
                    if device.is_free:
                        agent.tick()
        raise AssertionError(
            f"the campaign does not end: round {self.campaign.round} at {self.clock.now_s} s"
        )

    def _deliver(self) -> int:
        delivered = 0
        while (event := self.runner.link.receive(timeout_s=0)) is not None:
            self.runner.handle(event)
            delivered += 1
        for device, agent in self.devices.values():
            while device.is_free and (event := device.receive(timeout_s=0)) is not None:
                agent.handle(event)
                delivered += 1
        return delivered
