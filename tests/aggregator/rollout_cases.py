"""A fleet whose releases are rolled out, without a service: devices that take what they are given
as SPEC.md says, and what they answer."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from aggregator.core.release.releases import Draft
from aggregator.core.release.rollout import step
from aggregator.core.release.state import (
    Begun,
    CheckedIn,
    FleetEvent,
    FleetState,
    Gate,
    Give,
    Made,
    RolloutStep,
    Said,
    Ticked,
)
from aggregator.leadership.identity import own_secret, service_signer
from aggregator.releases.orders import (
    release_handlers,
)
from aggregator.releases.policy import ReleasePolicy, group_of
from aggregator.releases.rollouts import Rollouts
from aggregator.service_settings import RolloutSettings
from aggregator.storage.blob_folder import BlobFolder
from aggregator.storage.engine import sqlite_url
from aggregator.storage.memory import MemoryBlobs
from aggregator.storage.sql_store import FLEET, SqlStore
from aggregator.transfer.fleet import Fleet
from simulation.datasets.windows import FleetData
from simulation.engine.messages import VirtualClock
from tests.aggregator.bench import Bench
from wire import messages as m
from wire.codec import decode, digest
from wire.identity.keys import new_key
from wire.links.in_process import InProcessBroker
from wire.links.port import Delivery
from wire.messages import InUse, Metrics, Release
from wire.topics import Topics

STEPS = (RolloutStep(0.1), RolloutStep(0.5), RolloutStep(1.0))
GATE = Gate(patience_s=100.0)


def draft(group: str = "0", model: str = "first", campaign: str = "c") -> Draft:
    return Draft(
        group=group,
        bundle="b" * 64,
        model=digest(f"{group}.{model}".encode()),
        run_id="r",
        campaign=campaign,
        round=1,
        algorithm="fedavg",
        devices=2,
    )


def metrics(accuracy: float, windows: int = 100) -> Metrics:
    return Metrics(windows, 1.0, round(accuracy * windows))


@dataclass
class Rig:
    """The machine, with a log of its events; and what each device has, if it obeys SPEC.md."""

    state: FleetState = field(default_factory=FleetState)
    log: list[FleetEvent] = field(default_factory=list)
    has: dict[str, list[int]] = field(default_factory=dict)
    """By device, what it was given, in order; numbers that are not greater than the one before are
    ignored."""
    at_s: float = 0.0

    def feed(self, event: FleetEvent) -> list[Give]:
        self.log.append(event)
        self.state, gives = step(self.state, event)
        for give in gives:
            had = self.has.setdefault(give.device_id, [])
            if not had or give.number > had[-1]:
                had.append(give.number)
        return gives

    def check_in(
        self, *device_ids: str, group: str = "0", tags: tuple[str, ...] = ()
    ) -> list[Give]:
        return [
            give
            for device_id in device_ids
            for give in self.feed(CheckedIn(self.at_s, device_id, group, tags))
        ]

    def release(
        self,
        *drafts: Draft,
        steps: tuple[RolloutStep, ...] = STEPS,
        gate: Gate = GATE,
        groups: dict[str, str] | None = None,
    ) -> list[Give]:
        """Make these releases, and begin to roll them out."""
        self.feed(Made(self.at_s, drafts))
        last = self.state.catalogue.last
        numbers = tuple(range(last - len(drafts) + 1, last + 1))
        known = (
            {d: holder.group for d, holder in self.state.devices.items()}
            if groups is None
            else groups
        )
        newcomers = drafts[0].group
        begun = Begun(
            at_s=self.at_s,
            campaign=drafts[0].campaign,
            numbers=numbers,
            steps=steps,
            gate=gate,
            groups=known,
            newcomers=newcomers,
        )
        return self.feed(begun)

    def answer(
        self,
        device_id: str,
        accuracy: float = 0.9,
        before: float = 0.9,
        problem: str = "",
        **more: float,
    ) -> list[Give]:
        """What a device says of the last release that it was given."""
        had = self.has.get(device_id, [0])
        number = (had[-2] if len(had) > 1 else 0) if problem else had[-1]
        said = InUse(
            device_id,
            number,
            had[-1],
            problem,
            metrics(accuracy),
            metrics(before),
            latency_ms=more.get("latency_ms", 1.0),
        )
        return self.feed(Said(self.at_s, said))

    def tick(self, seconds: float = 1.0) -> list[Give]:
        self.at_s += seconds
        return self.feed(Ticked(self.at_s))

    def finish(self, campaign: str = "c") -> None:
        """Let every device be content until the rollout is over."""
        for _ in range(len(self.state.rollouts[campaign].steps)):
            for device_id in self.has:
                self.answer(device_id)
            self.tick()
        assert self.state.rollouts[campaign].phase == "done", self.state.rollouts[campaign]

    def model(self, device_id: str) -> str:
        """The model that a device has if it took what it was given; empty if it was given none."""
        had = self.has.get(device_id)
        return self.state.catalogue.releases[had[-1]].model if had else ""


class Heard:
    """Releases as far as a runner knows them."""

    def __init__(self) -> None:
        self.said: list[m.InUse] = []

    def on_in_use(self, message: m.InUse) -> None:
        self.said.append(message)

    def forget(self, device_id: str) -> None:
        self.said = [message for message in self.said if message.device_id != device_id]


class Releasing:
    """A service of two devices, whose campaign is trained by `Bench`, and its releases."""

    def __init__(
        self, fleet: FleetData, folder: Path, when: Any = "auto", every: int = 0, rounds: int = 2
    ) -> None:
        self.rollouts: Rollouts | None = None
        self.bench = Bench(
            fleet,
            settings={"rounds": rounds, "name": "run-1"},
            observe=self.observe,
            rollouts=Heard(),
        )
        link = Fleet(InProcessBroker().connect("aggregator"), Topics("f"), "boot")
        self.rollouts = Rollouts(
            SqlStore(sqlite_url(folder / "shoal.db"), "f", log=FLEET),
            BlobFolder(folder / "releases"),
            link,
            self.bench.clock,
            lambda: 1,
            online=lambda _: True,
            group=lambda device_id: group_of(self.bench.state, device_id),
            settings=RolloutSettings(steps=(RolloutStep(0.5), RolloutStep(1.0)), gate=Gate()),
        )
        self.policy = ReleasePolicy(self.rollouts, lambda _name: self.bench.blobs, when, every)
        for device_id in ("a", "b"):
            self.rollouts.on_check_in(device_id)
        self.handlers = release_handlers(self.policy, lambda: {"run-1": self.bench.state})

    def observe(self, state: Any, event: Any) -> None:
        if self.rollouts is not None:
            self.policy.observe(state, event)

    def round(self) -> None:
        self.bench.close(a=(1.0, 2), b=(1.0, 2))
        self.policy.tick()

    def finish(self) -> None:
        for device_id in ("a", "b"):
            self.bench.tensors = {}
            self.bench.send(
                device_id, "update", self.bench.payload(device_id, evaluated=m.Metrics(4, 1.0, 3))
            )
        assert self.bench.state.phase == "finished"
        self.policy.tick()

    @property
    def made(self) -> list[tuple[int, int, str]]:
        assert self.rollouts is not None
        return [
            (n, r.round, r.group) for n, r in sorted(self.rollouts.state.catalogue.releases.items())
        ]

    def order(self, order: str, **fields: Any) -> str:
        return self.handlers[order](**fields)


ALL = RolloutSettings(steps=(RolloutStep(1.0),), gate=Gate(patience_s=0.0))


class Service:
    """Releases of a fleet whose service is started, and killed by being left alone."""

    def __init__(self, folder: Path, settings: RolloutSettings = ALL, fleet: str = "f") -> None:
        self.folder, self.settings, self.fleet = folder, settings, fleet
        self.broker, self.topics, self.clock = InProcessBroker(), Topics("f"), VirtualClock()
        self.devices = self.broker.connect("devices")
        self.devices.subscribe("shoal/1/f/device/+/release", "shoal/1/f/blob/+")
        self.online: set[str] = set()
        self.source = MemoryBlobs()
        self.starts = 0
        self.start()

    def start(self) -> None:
        self.starts += 1
        self.store = SqlStore(sqlite_url(self.folder / "shoal.db"), self.fleet, log=FLEET)
        fleet = Fleet(self.broker.connect("aggregator"), self.topics, f"boot-{self.starts}")
        self.rollouts = Rollouts(
            self.store,
            BlobFolder(self.folder / "releases"),
            fleet,
            self.clock,
            lambda: self.starts,
            online=lambda device_id: device_id in self.online,
            settings=self.settings,
        )

    def check_in(self, *device_ids: str) -> None:
        for device_id in device_ids:
            self.online.add(device_id)
            self.rollouts.on_check_in(device_id)

    def release(self, name: str, *, roll_out: bool = True, **groups: str) -> tuple[int, ...]:
        bundle, model = self.source.put(b"bundle", name.encode())
        made = replace(draft(), bundle=bundle, model=model)
        return self.rollouts.release(
            [made], self.source, groups or dict.fromkeys(self.online, "0"), "0", roll_out
        )

    def tick(self, seconds: float = 2.0) -> None:
        self.clock.now_s += seconds
        self.rollouts.tick()

    def say(self, release: Release, problem: str = "", accuracy: float = 0.9) -> None:
        number = 0 if problem else release.number
        self.rollouts.on_in_use(
            InUse(
                release.device_id, number, release.number, problem, metrics(accuracy), metrics(0.9)
            )
        )

    def sent(self) -> list[Any]:
        """The releases that were published since the last call, and the digests of blobs."""
        found: list[Any] = []
        while (event := self.devices.receive(timeout_s=0)) is not None:
            if isinstance(event, Delivery):
                kind = self.topics.parse(event.topic).kind
                found.append(
                    decode(event.payload, Release) if kind == "release" else digest(event.payload)
                )
        return found


ROOT = new_key()


def service_with_releases(fleet: FleetData, folder: Path, name: str = "f") -> Service:
    """A service with a run, and two releases, of which the second is on its way to two devices."""
    folder.mkdir(parents=True)
    own_secret(folder / "secret.key")
    service_signer(folder, "f", (ROOT.public_key(),), ROOT, time.time())
    store = SqlStore(sqlite_url(folder / "shoal.db"), "run-1")
    service = Service(folder, fleet=name)
    bench = Bench(fleet, store, BlobFolder(folder / "blobs" / "run-1"))
    bench.close(a=(1.0, 2), b=(1.0, 2))
    service.check_in("a", "b")
    service.release("first")
    for device_id in ("a", "b"):
        service.rollouts.on_in_use(InUse(device_id, 1, 1, evaluated=Metrics(10, 1.0, 9)))
    service.tick()
    service.release("second")
    service.rollouts.on_in_use(InUse("a", 1, 2, "no graph", Metrics(), Metrics()))
    service.rollouts.take_in()
    return service
