"""A fleet whose releases are rolled out, without a service: devices that take what they are given
as SPEC.md says, and what they answer."""

from dataclasses import dataclass, field

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
from wire.codec import digest
from wire.messages import InUse, Metrics

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
