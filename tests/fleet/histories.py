"""Random histories of a fleet, and what holds after each of them."""

import random
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from aggregator.core.steps import Step
from aggregator.fleet import events as e
from aggregator.fleet.records import Ban, Fleet
from aggregator.fleet.step import steps
from tests.fleet.world import Client, World, digest_of

POLICIES: list[dict[str, Any]] = [
    {},
    {"cohort": 2},
    {"cohort": 2, "over_select": 1.5, "quorum": 1.0},
    {"buffer": 2, "concurrency": 3},
    {"buffer": 1},
    {"quorum": 0.6},
    {"pace_s": 200.0},
    {"hours": "22:13-02:47"},
    {"where": "battery >= 50"},
    {"when": "drift:share=0.3"},
]


def chosen(rng: random.Random) -> dict[str, Any]:
    """Settings of a campaign."""
    return {
        "rounds": rng.randint(1, 5),
        "min_devices": rng.randint(1, 3),
        "deadline_s": rng.choice([100.0, 1000.0]),
        "surveys": rng.random() < 0.5,
        "keeps": rng.random() < 0.5,
        "auto": rng.random() < 0.7,
        "steps": rng.choice(
            [(Step(1.0),), (Step(0.1), Step(1.0)), (Step(tags=("canary",)), Step(0.5), Step(1.0))]
        ),
        "seed": rng.randint(0, 3),
    }


def device(rng: random.Random) -> str:
    return rng.choice("abcdef")


def name(rng: random.Random) -> str:
    return rng.choice(["one", "two"])


KINDS: dict[str, tuple[int, Callable[[random.Random], Any]]] = {
    "check in": (8, device),
    "leave": (3, device),
    "work": (20, device),
    "all work": (12, lambda _: None),
    "decline": (3, device),
    "carry out": (25, lambda rng: rng.randint(1, 20)),
    "lose": (2, lambda rng: rng.randint(1, 5)),
    "time": (8, lambda rng: rng.choice([0.0, 1.0, 40.0, 150.0, 2000.0, 50_000.0])),
    "start": (3, lambda rng: (name(rng), chosen(rng), rng.choice(POLICIES))),
    "configure": (2, lambda rng: (name(rng), chosen(rng), rng.random() < 0.3)),
    "abort": (1, name),
    "roll back": (1, lambda rng: (name(rng), rng.randint(0, 3))),
    "order": (
        1,
        lambda rng: (name(rng), rng.choice(["release", "resume", "pause", "end", "promote"])),
    ),
    "return": (1, lambda rng: (name(rng), rng.randint(1, 9))),
    "mark": (1, lambda rng: (device(rng), rng.random() < 0.3)),
    "withdraw": (1, device),
    "forget": (1, device),
    "exclude": (1, lambda rng: (name(rng), device(rng), rng.random() < 0.5)),
    "lose updates": (1, lambda rng: (name(rng), device(rng))),
    "revert": (1, lambda rng: rng.randint(0, 3)),
    "facts": (
        2,
        lambda rng: (
            device(rng),
            rng.choice([0, 10, 10]),
            rng.choice([20, 80, 80]),
            rng.random() < 0.3,
        ),
    ),
    "lose what is kept": (1, device),
    "spoil": (1, device),
    "crash": (1, lambda _: None),
}
"""Frequency and target of each kind of action."""


def history(rng: random.Random, count: int) -> list[tuple[str, Any]]:
    """Return so many random actions."""
    every = [kind for kind, (weight, _) in KINDS.items() for _ in range(weight)]
    return [(kind, KINDS[kind][1](rng)) for kind in (rng.choice(every) for _ in range(count))]


def act(world: World, kind: str, value: Any) -> None:
    """Have one thing happen."""
    at_s, campaigns = world.now_s, world.fleet.campaigns
    match kind, value:
        case "check in", device_id:
            world.check_in(device_id)
        case "leave", device_id:
            world.leave(device_id)
        case "work", device_id:
            world.work(device_id)
        case "all work", _:
            world.carry_out()
            for device_id in sorted(world.clients):
                world.work(device_id)
            world.ring()
        case "decline", device_id:
            world.decline(device_id)
        case "carry out", count:
            world.carry_out(count)
        case "lose", count:
            world.carry_out(count, lose=True)
        case "time", seconds:
            world.pass_time(seconds)
        case "start", (name, chosen, policy) if name not in campaigns:
            world.start(name, **chosen, **policy)
        case "configure", (name, chosen, paused) if name in campaigns:
            others = ("surveys", "keeps", "auto", "steps")
            changes = {key: value for key, value in chosen.items() if key not in others}
            changes["min_updates"] = changes["min_devices"]
            wanted = replace(campaigns[name].next_settings, **changes)
            world.feed(e.Configured(at_s=at_s, campaign=name, settings=wanted))
            directed = e.Directed(at_s=at_s, campaign=name, order="pause" if paused else "resume")
            world.feed(directed)
        case "abort", name if name in campaigns:
            world.feed(e.Directed(at_s=at_s, campaign=name, order="abort"))
        case "roll back", (name, to) if name in campaigns:
            groups = {d: m.group for d, m in campaigns[name].members.items()}
            world.feed(e.RolledBack(at_s=at_s, campaign=name, to=to, groups=groups))
        case "order", (name, "release") if name in campaigns and campaigns[name].trained:
            world.release(name)
        case "order", (name, order) if name in campaigns and order != "release":
            world.feed(e.Steered(at_s=at_s, campaign=name, order=order))
        case "return", (name, number) if number in world.fleet.releases:
            earlier = world.fleet.releases[number]
            own = {"campaign": earlier.campaign, "release": number, "group": earlier.group}
            world.feed(e.Returned(at_s=at_s, salt="s", **own))
        case "mark", (device_id, banned):
            world.clients.setdefault(device_id, Client())
            world.feed(e.Tagged(at_s=at_s, device_id=device_id, tags=("canary",)))
            ban = Ban(at_s, "") if banned else None
            world.feed(e.Banned(at_s=at_s, device_id=device_id, ban=ban))
        case "withdraw", device_id:
            world.leave(device_id, withdrawn=True)
        case "forget", device_id:
            world.leave(device_id)
            world.feed(e.Forgotten(at_s=at_s, device_id=device_id))
        case "exclude", (name, device_id, excluded) if name in campaigns:
            own = {"campaign": name, "device_id": device_id, "excluded": excluded}
            world.feed(e.Excluded(at_s=at_s, **own))
        case "lose updates", (name, device_id) if name in campaigns:
            world.feed(e.UpdatesLost(at_s=at_s, campaign=name, device_ids=(device_id,)))
        case "revert", number:
            pending = next((c for c in world.outbox if isinstance(c, e.Aggregate)), None)
            if pending is not None and any(
                version.round == number for version in campaigns[pending.campaign].history
            ):
                world.outbox.remove(pending)
                world.aggregate(pending, reverted_to=number)
        case "facts", (device_id, num_train, battery, moved) if device_id in world.clients:
            client = world.clients[device_id]
            client.num_train, client.battery, client.moved = num_train, battery, moved
        case "lose what is kept", device_id if device_id in world.clients:
            world.clients[device_id].kept.clear()
        case "spoil", device_id if device_id in world.clients:
            world.clients[device_id].spoils = digest_of("one-1-0")
        case "crash", _:
            world.crash()


def lived(history: list[tuple[str, Any]], world: World | None = None) -> World:
    """A world after all this."""
    world = world or World()
    for kind, value in history:
        act(world, kind, value)
        world.check_not_stalled()
        if not world.fleet.sweep and all(at_s > world.now_s for at_s in world.timers.values()):
            world.check_settled()
    return world


def check_replay(world: World, size: int) -> None:
    """Check that the same events give the same fleet, one after the other or in batches, and that
    it can be written and read."""
    assert world.replayed() == world.fleet
    fleet = Fleet()
    for first in range(0, len(world.events), size):
        fleet, _ = steps(fleet, world.events[first : first + size])
    assert fleet == world.fleet
    assert world.admitted <= world.acknowledged


def check_rest(world: World) -> None:
    """Check that once everybody is there and well everything comes to rest: campaigns end, and
    devices hold what is desired."""
    for campaign in world.fleet.campaigns.values():  # what an operator may have left undone
        least = {"min_devices": 1, "min_updates": 1, "quorum": 0.0, "where": "", "hours": ""}
        wanted = replace(campaign.next_settings, **least)
        world.feed(e.Configured(at_s=world.now_s, campaign=campaign.name, settings=wanted))
        world.feed(e.Directed(at_s=world.now_s, campaign=campaign.name, order="resume"))
        for device_id in campaign.members:
            own = {"campaign": campaign.name, "device_id": device_id}
            world.feed(e.Excluded(at_s=world.now_s, excluded=False, **own))
    for device_id, client in world.clients.items():
        client.num_train, client.moved = 10, True
        world.feed(e.Banned(at_s=world.now_s, device_id=device_id, ban=None))
    for _ in range(2):  # a device may have lost what it kept while an update was on its way
        for device_id in world.clients:
            world.check_in(device_id)
        world.settle()
    if world.clients:
        assert {campaign.phase for campaign in world.fleet.campaigns.values()} <= {"finished"}
        assert not world.timers, "nothing is left to wait for"
    for device_id in world.clients:
        assert world.holds_what_is_wanted(device_id), device_id
    world.check_settled()


def substance(fleet: Fleet) -> Any:
    """Return the essential state of a fleet, without the times and epochs of commands and the times
    of judgements of a rollout."""
    devices = {d: replace(device, sent_epoch=0, wake_s=0.0) for d, device in fleet.devices.items()}
    campaigns = {
        name: replace(campaign, command_epoch=0) for name, campaign in fleet.campaigns.items()
    }
    return (
        devices,
        campaigns,
        fleet.releases,
        [replace(rollout, judge_s=0.0) for rollout in fleet.rollouts],
        {name: set(pool) for name, pool in fleet.pools.items()},
        dict(fleet.counts),
    )


def check_again(world: World) -> None:
    """Check that having everything commanded again changes nothing, and commands what was commanded
    before."""
    for _ in range(20):
        world.ring()
        world.carry_out()
    if not world.outbox and not world.fleet.sweep:
        before, plans = substance(world.fleet), len(world.plans)
        world.crash()
        world.ring()
        assert substance(world.fleet) == before
        assert all(world.fleet.devices[d].assignment == work for _, d, work in world.plans[plans:])


MANY = settings(deadline=None, suppress_health_check=list(HealthCheck))
RANDOM, COUNT = st.randoms(use_true_random=False), st.integers(0, 80)
