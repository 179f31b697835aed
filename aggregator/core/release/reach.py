"""Which devices a rollout has reached, and which releases are still needed. Pure."""

import hashlib
from collections.abc import Iterator
from functools import lru_cache

from aggregator.core.release.state import GOING, FleetState, Holder, Rollout


@lru_cache(100_000)
def place_of(device_id: str, salt: str) -> float:
    """Where a device stands between 0 and 1 in the rollout with this salt, always the same: a share
    reaches those below it."""
    return int.from_bytes(hashlib.sha256(f"{salt}{device_id}".encode()).digest()[:8]) / 2**64


def reached_by(rollout: Rollout, device_id: str, holder: Holder) -> int | None:
    """The first step of a rollout that reaches a device, up to the one it is at; None if none
    does."""
    if holder.group not in rollout.releases:
        return None
    if device_id == rollout.first:
        return 0
    place = place_of(device_id, rollout.salt)
    for number, chosen in enumerate(rollout.steps[: rollout.step + 1]):
        if place < chosen.share or not set(chosen.tags).isdisjoint(holder.tags):
            return number
    return None


def members(state: FleetState, rollout: Rollout) -> Iterator[tuple[str, Holder, int]]:
    """The devices that a rollout has reached, each with the step that did."""
    for device_id, holder in state.devices.items():
        if (number := reached_by(rollout, device_id, holder)) is not None:
            yield device_id, holder, number


def going(state: FleetState, group: str) -> tuple[str, Rollout] | None:
    """The rollout that is not over and has a release of this group, with its campaign."""
    for campaign, rollout in state.rollouts.items():
        if rollout.phase in GOING and group in rollout.releases:
            return campaign, rollout
    return None


def group_of(state: FleetState, holder: Holder) -> str:
    """The group whose model a device was given last, or is to be given first."""
    had = state.catalogue.releases.get(holder.given)
    return had.group if had is not None else holder.group


def needed(state: FleetState, keep: int) -> set[int]:
    """The releases whose models are still needed, by number: those that devices have or may return
    to, those of groups and of rollouts that are not over, and of the others the last `keep` of each
    group."""
    found = {
        number
        for holder in state.devices.values()
        for number in (holder.given, holder.settled)
        if number
    }
    found |= set(state.catalogue.released.values())
    found |= {
        number
        for rollout in state.rollouts.values()
        if rollout.phase in GOING
        for number in rollout.releases.values()
    }
    left: dict[str, int] = {}
    for number in sorted(state.catalogue.releases, reverse=True):
        release = state.catalogue.releases[number]
        if left.setdefault(release.group, keep) > 0 or release.state == "candidate":
            left[release.group] -= 1
            found.add(number)
    return found & set(state.catalogue.releases)
