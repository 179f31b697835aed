"""The real runner and real agents over a broker inside the process, on a virtual clock, where each
device needs its own time to train."""

from collections.abc import Mapping
from typing import Any

from aggregator.core.settings import ADMIT_ALL, RunSettings
from aggregator.core.state import RunState
from aggregator.service.runner import Runner
from aggregator.storage.memory import MemoryBlobs, MemoryStore
from aggregator.transfer.fleet import Fleet
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
        self.clock, self.store, topics, broker = (
            VirtualClock(),
            MemoryStore(),
            Topics("f"),
            InProcessBroker(),
        )
        self.runner = Runner(Fleet(broker.connect("aggregator"), topics, "boot"), self.clock)
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
        parts = make_algorithm(spec), bundle, make_probe(objective.model, data.window.shape)
        self.campaign = self.runner.add(made, *parts, self.store, MemoryBlobs())
        graphs = EagerGraphs(objective)
        self.devices: dict[str, tuple[Device, Agent]] = {}
        for device_id, speed in speeds.items():
            link = broker.connect(device_id, Will(topics.device(device_id, "status"), b""))
            device = Device(self.clock, link, graphs, speed)
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

    def run(self) -> RunState:
        """Let time pass until the campaign is over."""
        for _ in range(100_000):
            if not self._deliver():
                if self.runner.finished:
                    return self.campaign.state
                busy = [
                    device.free_at_s for device, _ in self.devices.values() if not device.is_free
                ]
                retries = [
                    agent.retry_at_s for device, agent in self.devices.values() if device.is_free
                ]
                self.clock.now_s = max(
                    self.clock.now_s, min(self.runner.next_deadline_s(), *busy, *retries)
                )
                self.runner.tick()
                for device, agent in self.devices.values():
                    device.deliver()
                    if device.is_free:
                        agent.tick()
        raise AssertionError(
            f"the run does not end: round {self.campaign.state.round} at {self.clock.now_s} s"
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
