"""Properties of rollouts over random histories."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aggregator.core.steps import Step
from aggregator.fleet import events as e
from aggregator.fleet.desired import group_of, releases_for
from aggregator.fleet.reconcile import Turn
from aggregator.fleet.records import Fleet, Rollout
from aggregator.fleet.rollouts import tally_of
from aggregator.view.fleet import FleetView
from aggregator.view.progress import needed_releases, offered_releases, release_states
from tests.fleet.histories import MANY, RANDOM, check_replay
from tests.fleet.rollout_cases import Rollouts, place
from wire.messages import InUse, Metrics

DEVICES = ("d0", "d1", "d2", "d3", "d4")
GROUPS = ("0", "1")
SHARES = ((0.3, 1.0), (0.1, 0.5, 1.0), (1.0,))
KINDS: dict[str, tuple[int, Callable[[random.Random], Any]]] = {
    "arrive": (6, lambda rng: rng.choice((*DEVICES, "new"))),
    "leave": (2, lambda rng: rng.choice(DEVICES)),
    "regroup": (1, lambda rng: (campaign(rng), rng.randrange(2**5))),
    "release": (4, lambda rng: (campaign(rng), rng.choice(SHARES), rng.randint(1, 2))),
    "candidate": (1, lambda rng: campaign(rng)),
    "content": (4, lambda rng: rng.choice((*DEVICES, "new"))),
    "all content": (6, lambda _: None),
    "worse": (2, lambda rng: rng.choice(DEVICES)),
    "claim": (2, lambda rng: claim(rng)),
    "tick": (6, lambda rng: rng.choice((1.0, 200.0))),
    "start": (1, lambda rng: campaign(rng)),
    "pause": (1, lambda rng: campaign(rng)),
    "resume": (1, lambda rng: campaign(rng)),
    "end": (1, lambda rng: campaign(rng)),
    "promote": (2, lambda rng: (campaign(rng), rng.randint(0, 2))),
    "return": (1, lambda rng: (rng.randint(0, 12), rng.choice(GROUPS))),
    "crash": (1, lambda _: None),
    "forget": (1, lambda rng: rng.choice(DEVICES)),
}
"""Frequency and target of each kind of action."""


def campaign(rng: random.Random) -> str:
    return rng.choice(("c", "later"))


def claim(rng: random.Random) -> InUse:
    """A report that may be of anything that a service admits."""
    used, offered = rng.randint(0, 40), rng.randint(0, 40)
    sums = [Metrics(n, rng.choice((0.0, 1e300)), rng.randint(0, n)) for n in (0, 20)]
    problem, latency_ms = rng.choice(("", "broken")), rng.choice((0.0, 1.0, 100.0))
    rng.shuffle(sums)
    device_id, (evaluated, before) = rng.choice((*DEVICES, "stranger")), sums
    return InUse(device_id, used, offered, problem, evaluated, before, latency_ms)


def history(rng: random.Random, count: int) -> list[tuple[str, Any]]:
    """Return so many random actions."""
    kinds = [kind for kind, (weight, _) in KINDS.items() for _ in range(weight)]
    return [(kind, KINDS[kind][1](rng)) for kind in (rng.choice(kinds) for _ in range(count))]


class Checked(Rollouts):
    """A fleet in which every event and its commands are checked."""

    def feed(self, event: e.Event) -> list[e.Command]:
        """Have something happen, and check what follows."""
        before = self.fleet
        commands = super().feed(event)
        check_offers(before, self.fleet, [c for c in commands if isinstance(c, e.OfferRelease)])
        assert {number: self.fleet.releases[number] for number in before.releases} == (
            before.releases
        ), "a release never changes"
        return commands


def play(fleet: Rollouts, kind: str, value: Any, count: int) -> None:
    """Do one thing of a history."""
    match kind:
        case "arrive":
            fleet.arrive(value)
        case "leave":
            fleet.leave(value)
        case "regroup":
            name, bits = value
            groups = {d: GROUPS[bits >> i & 1] for i, d in enumerate(DEVICES)}
            fleet.regroup(groups, name)
        case "release":
            name, shares, groups = value
            steps = tuple(Step(share) for share in shares)
            own: dict[str, Any] = {"salt": f"{count:x}", "steps": steps}
            fleet.roll_out(f"{name}{count}", GROUPS[:groups], name, **own)
        case "candidate":
            fleet.roll_out(f"{value}{count}", campaign=value, begin=False)
        case "content" | "worse" if value in fleet.clients:
            fleet.answer(value, accuracy=0.9 if kind == "content" else 0.1)
        case "all content":
            for device_id in fleet.clients:
                fleet.answer(device_id)
        case "claim":
            fleet.do(e.UsesRelease(at_s=fleet.now_s, device_id=value.device_id, in_use=value))
        case "tick":
            fleet.tick(value)
        case "start" | "pause" | "resume" | "end":
            fleet.steer(kind, campaign=value)
        case "promote":
            name, number = value
            fleet.steer("promote", number, name)
        case "return" if value[0] in fleet.fleet.releases:
            number, group = value
            fleet.return_to(number, group, fleet.fleet.releases[number].campaign)
        case "crash":
            fleet.crash()
            fleet.ring()
        case "forget":
            fleet.leave(value)
            fleet.do(e.Forgotten(at_s=fleet.now_s, device_id=value))


RETURN: list[tuple[str, Any]] = [
    *(
        act
        for name in ("c", "later")
        for act in [
            ("release", (name, (1.0,), 2)),
            *(("content", device_id) for device_id in DEVICES),
            ("tick", 200.0),
        ]
    ),
    ("release", ("later", (0.3, 1.0), 2)),
    ("return", (1, "0")),
]
"""An operator returns behind what the devices had, while they are given something new."""


@example(RETURN)
@settings(MANY, max_examples=20)
@given(st.builds(history, RANDOM, st.integers(0, 60)))
def test_any_history_keeps_what_is_promised(actions: list[tuple[str, Any]]) -> None:
    check(actions)


@pytest.mark.parametrize("seed", range(10))
def test_long_histories_do_too(seed: int) -> None:
    check(history(random.Random(seed), 200))


def check(actions: list[tuple[str, Any]]) -> None:
    """Check all that is promised through a history."""
    groups = {d: GROUPS[i % 2] for i, d in enumerate(DEVICES)}
    fleet = Checked(*DEVICES, groups=groups)
    fleet.campaign("later", groups)
    for count, (kind, value) in enumerate(actions):
        play(fleet, kind, value, count)
        check_counts(fleet.fleet)
        check_failed(fleet.fleet)
        check_needed(fleet.fleet)
        if all(at_s > fleet.now_s for at_s in fleet.timers.values()):
            fleet.check_settled()
    check_replay(fleet, 5)


def check_offers(before: Fleet, after: Fleet, offers: list[e.OfferRelease]) -> None:
    """Check that an offer has a greater serial than any before it or that the device knows, or is
    the last one again; and that nobody outside of its share is offered what is on its way."""
    states = release_states(after)
    for offer in offers:
        now, was = after.devices[offer.device_id], before.devices.get(offer.device_id)
        if was is not None and offer.serial == was.last_offer.serial:
            assert offer.release == was.last_offer.release
            continue
        known = was.in_use.offered if was is not None and was.in_use is not None else 0
        assert offer.serial > max(was.last_offer.serial if was is not None else 0, known)
        assert (now.last_offer.serial, now.last_offer.release) == (offer.serial, offer.release)
        if was is not None and was.last_offer.release == offer.release:
            continue  # it has reported a greater serial, as after a return to an old backup
        assert states[offer.release] != "superseded"
        if states[offer.release] == "canary":
            rollout = next(r for r in after.rollouts if offer.release in r.releases.values())
            assert rollout.phase == "running"
            assert place(offer.device_id, rollout.salt) < rollout.share
            assert offer.release == due(after, rollout, offer.device_id)


def check_counts(fleet: Fleet) -> None:
    """Check that the progress of a rollout counts every device that was offered one of its releases
    last, and that a step is judged by the same numbers."""
    for rollout in fleet.rollouts:
        numbers = set(rollout.releases.values())
        others = (r.releases.values() for r in fleet.rollouts if r is not rollout)
        if rollout.phase not in ("running", "paused") or numbers & {n for v in others for n in v}:
            continue
        progress = next(p for p in FleetView(fleet).rollouts if p.campaign == rollout.campaign)
        having = [d for d, device in fleet.devices.items() if device.last_offer.release in numbers]
        assert sum(step.offered for step in progress.steps) == len(having)
        assert all(sum(step.reasons.values()) == step.failed for step in progress.steps)
        tally = tally_of(Turn(fleet), rollout)
        for name in ("confirmed", "failed"):
            counted = sum(getattr(step, name) for step in progress.steps)
            assert getattr(tally, name) <= counted, name
            if all(has_what_is_wanted(fleet, device_id) for device_id in having):
                assert getattr(tally, name) == counted, name


def has_what_is_wanted(fleet: Fleet, device_id: str) -> bool:
    """Return True if a device was last offered what it should hold. One that is away, or has lost
    the tag by which it was reached, may have been offered something else."""
    device = fleet.devices[device_id]
    wanted = (r for _, r, is_reached in releases_for(fleet, device_id, device) if is_reached)
    return next((release.number for release in wanted), None) == device.last_offer.release


def check_failed(after: Fleet) -> None:
    """Check that no online device has a release of a rollout that has failed, unless there is no
    other; and that it has that of its group by the last rollout that is done, where none goes
    on."""
    states = release_states(after)
    is_over = {r.phase for r in after.rollouts} <= {"done", "failed", "candidate"}
    for device_id, device in after.devices.items():
        if not device.online or not device.last_offer.release:
            continue
        done = (r for r in reversed(after.rollouts) if r.phase == "done")
        usual = next((n for r in done if (n := due(after, r, device_id))), None)
        if states[device.last_offer.release] == "withdrawn":
            assert usual is None, "it keeps one that has failed if there is no other"
        if is_over and usual is not None:
            assert device.last_offer.release == usual


def check_needed(fleet: Fleet) -> None:
    """Check that what devices have or would return to is kept."""
    needed = needed_releases(fleet, offered_releases(fleet))
    offered = {device.last_offer.release for device in fleet.devices.values()}
    current = {n for n, state in release_states(fleet).items() if state in ("released", "canary")}
    assert (offered - {0}) | current <= needed


def due(fleet: Fleet, rollout: Rollout, device_id: str) -> int | None:
    """Return the release of a rollout for a device: its group's, or that of newcomers."""
    campaign, device = fleet.campaigns[rollout.campaign], fleet.devices[device_id]
    numbers = rollout.releases
    number = numbers.get(group_of(campaign, device_id, device))
    if number is None and device.last_offer.release in numbers.values():
        return device.last_offer.release
    return number or numbers.get(rollout.newcomers)
