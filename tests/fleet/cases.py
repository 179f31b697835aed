"""Small steps of the examples: devices of a world, whom a campaign has asked, orders."""

from typing import Any

from msgspec.structs import replace

from aggregator.fleet import events as e
from aggregator.fleet.records import Ban, Campaign
from tests.fleet.world import Client, World


def world_of(*device_ids: str, **facts: Any) -> World:
    """A service with these devices."""
    world = World()
    for device_id in device_ids:
        world.clients[device_id] = Client(**facts)
        world.check_in(device_id)
    return world


def run(world: World, name: str = "run") -> Campaign:
    return world.fleet.campaigns[name]


def asked(world: World, kind: str = "train") -> list[str]:
    """The devices that are at work on this."""
    kinds = ("train", "beside") if kind == "train" else (kind,)
    marks = {
        d: {mark.split("/")[0] for mark in device.marks}
        for d, device in world.fleet.devices.items()
    }
    return sorted(d for d in marks if not marks[d].isdisjoint(kinds))


def all_work(world: World, *device_ids: str) -> None:
    """These devices, or all that have a plan, do it."""
    world.carry_out()
    for device_id in device_ids or sorted(world.clients):
        world.work(device_id)
    world.carry_out()
    world.ring()


def configure(world: World, name: str = "run", **changes: Any) -> None:
    if "min_devices" in changes:
        changes["min_updates"] = changes["min_devices"]
    settings = replace(run(world, name).next_settings, **changes)
    world.feed(e.Configured(at_s=world.now_s, campaign=name, settings=settings))
    world.ring()


def direct(world: World, order: Any, name: str = "run") -> None:
    world.feed(e.Directed(at_s=world.now_s, campaign=name, order=order))
    world.ring()


def ban(world: World, device_id: str, ends: bool = False) -> None:
    world.feed(e.Banned(at_s=world.now_s, device_id=device_id, ban=None if ends else Ban(1.0, "")))


def forget(world: World, device_id: str) -> None:
    """Forget a device, as an operator orders."""
    world.feed(e.Forgotten(at_s=world.now_s, device_id=device_id))
