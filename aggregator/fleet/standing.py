"""Pools and marks of devices: where rounds find them, and under which names they are counted.

Both follow from the records and are not stored. `rebuilt` computes them when a fleet is loaded.
"""

import math
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from sys import intern
from typing import NamedTuple

from immutables import Map
from msgspec.structs import replace

from aggregator.core.pool import DevicePool
from aggregator.fleet.desired import Desired, Records, releases_for, rests_until, takes, wanted
from aggregator.fleet.gate import answer_marks
from aggregator.fleet.records import Device, Fleet

NO_MARKS: tuple[str, ...] = ()
PLACES = ("train", "beside", "survey", "evaluate", "personalise")
"""Kinds of pools, and of marks of devices at work, in the order in which pools are drawn from."""
DRIFT = ("moved", "unmoved")
"""Kinds of marks of devices for a campaign that awaits drift."""


class Standing(NamedTuple):
    """Pool, marks and next examination of a device, which follow from its record and the time."""

    pool: str
    marks: tuple[str, ...]
    look_s: float
    """Time at which something may change without an event; infinite if nothing will."""


def standing(fleet: Records, device_id: str, device: Device, now_s: float) -> Standing:
    """Return a device's pool and marks, and when to examine it again."""
    work = device.assignment
    pool, marks, look_s = "", NO_MARKS, math.inf
    if work is not None and not work.lapsed:
        grace_s = math.inf
        if not device.online:
            campaign = fleet.campaigns.get(work.campaign)
            grace_s = device.seen_s + (campaign.settings.grace_s if campaign else 0.0)
        if now_s < grace_s:
            marks = work_marks("beside" if work.beside else work.kind, work.campaign, work.round)
            look_s = grace_s
        if now_s < work.deadline_s < look_s:
            look_s = work.deadline_s
    elif (task := wanted(fleet, device_id, device, now_s)) is not None:
        pool = pool_of(device, task)
    elif device.online and not device.barred:
        paces = (c.settings.pace_s for c in fleet.campaigns.values() if c.settings.pace_s)
        times = (rests_until(fleet, device), *(device.asked_s + pace_s for pace_s in paces))
        look_s = min((at_s for at_s in times if at_s > now_s), default=math.inf)
    if fleet.rollouts:
        marks = (*marks, *map(intern, _marks(fleet, device_id, device)))
    if device.facts is not None and not device.barred:
        for campaign in fleet.campaigns.values():
            if campaign.awaits_drift and takes(fleet, campaign, device_id, device):
                marks = (*marks, pool_name(DRIFT[not device.moved], campaign.name))
    return Standing(pool, marks, look_s)


def pool_of(device: Device, task: Desired) -> str:
    """Return the name of the pool in which a device waits for this assignment."""
    place = "beside" if device.failures and task.kind == "train" else task.kind
    return pool_name(place, task.campaign)


@lru_cache(10_000)
def pool_name(place: str, campaign: str) -> str:
    """Return the name of a campaign's pool, or of a mark for it."""
    return intern(f"{place}/{campaign}")


@lru_cache(10_000)
def work_marks(place: str, campaign: str, number: int) -> tuple[str, ...]:
    """Return the marks of a device at work: one of its campaign, one of the round."""
    return intern(f"{place}/{campaign}"), intern(f"{place}/{campaign}/{number}")


def _marks(fleet: Records, device_id: str, device: Device) -> Iterator[str]:
    """Yield the marks under which a device is counted for its release."""
    for rollout, release, is_reached in releases_for(fleet, device_id, device):
        if not is_reached:
            yield f"missed/{release.number}"
        else:
            if not rollout.direct and release.number == device.last_offer.release:
                yield from answer_marks(device)
            return


def rebuilt(fleet: Fleet) -> Fleet:
    """Return the fleet with everything that follows from its records: pools, marks, counts, order.

    No timer is set. The event `Resumed` sets the timers.
    """
    devices, pools = fleet.devices.mutate(), dict[str, list[str]]()
    counts, marked = Counter[str](), dict[tuple[str, ...], int]()
    for device_id, device in fleet.devices.items():
        pool, marks, _ = standing(fleet, device_id, device, fleet.at_s)
        if pool or marks or device.wake_s or device.pool or device.marks:
            devices[device_id] = replace(device, wake_s=0.0, pool=pool, marks=marks)
        marked[marks] = marked.get(marks, 0) + 1
        if pool:
            pools.setdefault(pool, []).append(device_id)
    for marks, number in marked.items():
        for mark in marks:
            counts[mark] += number
    return replace(
        fleet,
        devices=devices.finish(),
        wake_s=0.0,
        sweep=0,
        order=DevicePool(fleet.devices),
        pools={pool: DevicePool(device_ids) for pool, device_ids in pools.items()},
        counts=Map(counts),
    )
