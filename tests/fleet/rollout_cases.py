"""A fleet whose campaigns are over, and whose releases are rolled out by order: devices take what
they are offered, and report when they are told to."""

from collections.abc import Iterable, Mapping
from typing import Any

from immutables import Map

from aggregator.core.pool import draw
from aggregator.core.steps import Gate, Step
from aggregator.fleet import events as e
from aggregator.fleet.records import Campaign, Member, ModelRelease, Rollout, Version
from aggregator.view.fleet import FleetView
from aggregator.view.progress import RolloutProgress
from algorithms.core.keys import NEWCOMER
from tests.fleet.world import CLOSING, World, digest_of, settings_of
from wire.messages import InUse, Metrics

STEPS = (Step(0.1), Step(0.5), Step(1.0))
GATE = Gate(patience_s=100.0)


def metrics(accuracy: float, windows: int = 100) -> Metrics:
    """Return metrics with this accuracy."""
    return Metrics(windows, 1.0, round(accuracy * windows))


def place(device_id: str, salt: str = "") -> float:
    """Return the place of a device in a rollout with this salt."""
    return draw(f"{salt} {device_id}", 2**53) / 2**53


class Rollouts(World):
    """A fleet with a campaign `c` that is over."""

    def __init__(self, *device_ids: str, groups: Mapping[str, str] | None = None) -> None:
        """`groups`: by device, its group in the campaign; others are newcomers, as all are without
        it, and get the releases of group `0`."""
        super().__init__()
        self.has: dict[str, list[int]] = {}
        """Releases that each device has taken, in order. It ignores an offer whose serial is not
        greater than that of the one before, as SPEC.md says."""
        self.offers: dict[str, int] = {}
        """Last offer of each device since the last call of `do`, `tick` or `arrive`."""
        self.campaign("c", groups or {})
        self.arrive(*device_ids)

    def feed(self, event: e.Event) -> list[e.Command]:
        """Have something happen, and devices take what they are offered."""
        commands = super().feed(event)
        for command in commands:
            if isinstance(command, e.OfferRelease):
                self.offers[command.device_id] = command.release
                client = self.clients[command.device_id]
                if client.online and command.serial > client.offered:
                    client.offered = command.serial
                    self.has.setdefault(command.device_id, []).append(command.release)
        self.outbox.clear()
        return commands

    def say_in_use(self, device_id: str) -> None:
        """Report nothing yet, see `answer`."""

    def campaign(self, name: str, groups: Mapping[str, str], **settings: Any) -> dict[str, int]:
        """Have a campaign in the fleet that is over. Return the offers that follow."""
        chosen = settings_of(name=name, run_id=name, **settings)
        version = Version(
            round=1,
            models={key: digest_of(f"{name}-{key}") for key in {NEWCOMER, "0", *groups.values()}},
            memory="",
            programs={"": (), "closing": CLOSING},
            newcomers=NEWCOMER,
        )
        record = Campaign(
            settings=chosen,
            next_settings=chosen,
            version=version,
            history=(version,),
            phase="finished",
            ended="rounds",
            ended_s=self.now_s,
            trained=1,
            members=Map({device_id: Member(group=group) for device_id, group in groups.items()}),
        )
        self.released[name] = (False, STEPS, GATE)
        return self.do(e.Started(at_s=self.now_s, campaign=name, record=record))

    def regroup(self, groups: Mapping[str, str], campaign: str = "c") -> dict[str, int]:
        """Have a campaign's devices in other groups. Return the offers that follow."""
        return self.do(e.RolledBack(at_s=self.now_s, campaign=campaign, to=1, groups=dict(groups)))

    def do(self, event: e.Event) -> dict[str, int]:
        """Have something happen. Return the offers that follow: by device, the release."""
        self.offers.clear()
        self.feed(event)
        self.ring()
        return dict(self.offers)

    def tick(self, seconds: float = 1.0) -> dict[str, int]:
        """Let time pass. Return the offers meanwhile."""
        self.offers.clear()
        self.pass_time(seconds)
        return dict(self.offers)

    def arrive(self, *device_ids: str) -> dict[str, int]:
        """Have devices check in. Return the offers that follow."""
        self.offers.clear()
        for device_id in device_ids:
            self.check_in(device_id)
        self.ring()
        return dict(self.offers)

    def roll_out(
        self,
        model: str,
        groups: Iterable[str] = ("0",),
        campaign: str = "c",
        steps: tuple[Step, ...] = STEPS,
        gate: Gate = GATE,
        begin: bool = True,
        salt: str = "",
    ) -> dict[str, int]:
        """Make releases of these groups, and begin to roll them out. Return the offers that
        follow."""
        first = max(self.fleet.releases, default=0) + 1
        releases = tuple(
            ModelRelease(
                number=number,
                group=group,
                bundle="b" * 64,
                model=digest_of(f"{model}-{group}"),
                run_id=campaign,
                campaign=campaign,
                round=1,
                algorithm="fedavg",
                devices=2,
            )
            for number, group in enumerate(groups, first)
        )
        return self.do(
            e.Released(
                at_s=self.now_s,
                campaign=campaign,
                releases=releases,
                newcomers="0",
                steps=steps,
                gate=gate,
                salt=salt,
                roll_out=begin,
            )
        )

    def steer(self, order: Any, step: int | None = None, campaign: str = "c") -> dict[str, int]:
        """Carry out an operator's order to a rollout. Return the offers that follow."""
        return self.do(e.Steered(at_s=self.now_s, campaign=campaign, order=order, step=step))

    def return_to(self, release: int, group: str = "0", campaign: str = "c") -> dict[str, int]:
        """Return a group to an earlier release. Return the offers that follow."""
        own: dict[str, Any] = {"release": release, "group": group, "salt": ""}
        return self.do(e.Returned(at_s=self.now_s, campaign=campaign, **own))

    def answer(
        self,
        device_id: str,
        accuracy: float = 0.9,
        before: float = 0.9,
        problem: str = "",
        latency_ms: float = 1.0,
        alone: str = "",
        windows: int = 100,
    ) -> dict[str, int]:
        """Have a device report the release that it was offered last; with a problem, as one that
        it cannot use. Return the offers that follow."""
        client = self.clients[device_id]
        if not problem:
            client.serial = client.offered
        report = InUse(
            device_id,
            client.serial,
            client.offered,
            problem,
            metrics(accuracy, windows),
            metrics(before, windows),
            latency_ms=latency_ms,
            alone=alone,
        )
        return self.do(e.UsesRelease(at_s=self.now_s, device_id=device_id, in_use=report))

    def finish(self, campaign: str = "c") -> None:
        """Have every device confirm what it is offered until the rollout is over."""
        for _ in range(20):  # a share that reaches nobody is widened meanwhile
            if self.rollout(campaign).phase != "running":
                break
            for device_id in self.has:
                self.answer(device_id)
            self.tick()
        assert self.rollout(campaign).phase == "done", self.rollout(campaign)

    def rollout(self, campaign: str = "c") -> Rollout:
        """Return the last rollout of a campaign."""
        return next(r for r in reversed(self.fleet.rollouts) if r.campaign == campaign)

    def progress(self, campaign: str = "c") -> RolloutProgress:
        """Return its progress, as readers see it."""
        return next(p for p in FleetView(self.fleet).rollouts if p.campaign == campaign)

    def model(self, device_id: str) -> str:
        """Return the model that a device has; empty if it was offered none."""
        taken = self.has.get(device_id)
        return self.fleet.releases[taken[-1]].model if taken else ""
