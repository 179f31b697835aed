"""Whom a round may ask, and what is noted of devices that it asks. Pure."""

from collections.abc import Collection, Mapping
from typing import TypeVar

from msgspec.structs import replace

from aggregator.core.plan import NEW, can_train
from aggregator.core.state import Command, Device, Flight, Placed, RunState, SetDeadline
from algorithms.core.keys import NEWCOMER

T = TypeVar("T")
LOOK_S = 60.0
"""Seconds after which a round looks again that asks nobody, since too few devices may be asked
again."""
LONGEST_REST = 64
"""Rounds after which a device that failed again and again is asked again, at most."""


def may_be_asked(state: RunState, device: Device, at_s: float) -> bool:
    """Whether a device may get a plan of the latest round. One that was asked in a round of
    training what its inputs are like gets no other plan in that round: it would take both for the
    same."""
    if state.phase == "evaluating":
        return device.eligible
    is_paced = bool(device.asked_s) and device.asked_s + state.settings.pace_s > at_s
    return (
        device.eligible
        and not is_paced
        and can_train(state, device)
        and not 0 < device.inputs_in == state.round
    )


def paced_until_s(state: RunState, at_s: float) -> float:
    """When enough devices may be asked again, where that is not so now because they were asked too
    recently; a short time later it is looked again, since others may come."""
    pace_s = state.settings.pace_s
    if not pace_s or state.phase == "evaluating":
        return at_s
    able = (
        d
        for d in state.devices.values()
        if d.eligible and can_train(state, d) and is_awaited(state, d, at_s)
    )
    free_s = sorted(d.asked_s + pace_s if d.asked_s else 0.0 for d in able)
    missing = state.settings.min_updates - len(state.received)
    if missing <= 0 or len(free_s) < missing:
        return at_s
    return max(at_s, min(free_s[missing - 1], at_s + LOOK_S))


def note_asked(state: RunState, invited: Collection[str], at_s: float) -> RunState:
    """Remember when these devices were asked, if that is to be known."""
    if not state.settings.pace_s or state.phase == "evaluating":
        return state
    devices = state.devices.mutate()
    for device_id in invited:
        if device_id not in state.cohort:
            devices[device_id] = replace(devices[device_id], asked_s=at_s)
    return replace(state, devices=devices.finish())


def is_missing(state: RunState, device_id: str) -> bool:
    """Whether the device is in the cohort and its update has not been received."""
    return device_id in state.cohort and device_id not in state.received


def is_awaited(state: RunState, device: Device, at_s: float) -> bool:
    """Whether the device is online, or was lost so recently that it may come back."""
    return device.online or at_s < device.last_seen_s + state.settings.grace_s


def failed(state: RunState, device_id: str) -> Device:
    """The device after one more round without an update."""
    device = state.devices[device_id]
    return replace(
        device,
        failures=device.failures + 1,
        rests_until=state.round + min(LONGEST_REST, 2 ** min(device.failures, 10)),
    )


def absent(device: Device, at_s: float, grace_s: float) -> Device:
    """The device as one that no round waits for until it is heard."""
    return replace(device, online=False, last_seen_s=min(device.last_seen_s, at_s - grace_s))


def with_device(state: RunState, device_id: str, device: Device) -> RunState:
    state = without_count(state, device_id)
    counted = device.online and device.eligible
    return replace(
        state,
        devices=state.devices.set(device_id, device),
        num_online=state.num_online + counted,
        num_unlabelled=state.num_unlabelled + (counted and not can_train(state, device)),
    )


def without_count(state: RunState, device_id: str) -> RunState:
    """The state with numbers of devices in which this one is not counted."""
    device = state.devices.get(device_id)
    if device is None or not (device.online and device.eligible):
        return state
    return replace(
        state,
        num_online=state.num_online - 1,
        num_unlabelled=state.num_unlabelled - (not can_train(state, device)),
    )


def counted_anew(state: RunState) -> RunState:
    """The state with the number of devices that cannot train, where settings say anew how many
    labels that takes."""
    there = (device for device in state.devices.values() if device.online and device.eligible)
    return replace(state, num_unlabelled=sum(not can_train(state, device) for device in there))


def num_trainers(state: RunState) -> int:
    """How many devices are online, eligible and can train."""
    return state.num_online - state.num_unlabelled


def start_key(state: RunState, device_id: str) -> str:
    """The key of the model that is the device's own."""
    placed = placed_of(state, device_id)
    return placed.group if placed is not None else trained_key(state, device_id)


def trained_key(state: RunState, device_id: str) -> str:
    """The key of the model that the device trains from next."""
    return state.starts.get(device_id, state.starts.get("", NEWCOMER))


def placed_of(state: RunState, device_id: str) -> Placed | None:
    """Where a device belongs that cannot train, or that is in no group since its owner does not
    permit what would place it, or since training was over before it took part: nobody is left with
    the model from before training. None for any other, and where nobody knows yet."""
    device = state.devices.get(device_id)
    if device is None:
        return None
    if can_train(state, device):
        is_left = device.untold or state.phase in ("evaluating", "finished")
        return _held(state, "") if is_left and device_id not in state.starts else None
    return _held(state, device_id) or _held(state, "")


def _held(state: RunState, device_id: str) -> Placed | None:
    placed = state.placed.get(device_id)
    return placed if placed is not None and placed.group in state.models else None


def all_placed(state: RunState) -> dict[str, Placed]:
    """By device, where those belong that are in no group by their training (`placed_of`)."""
    if not state.placed:
        return {}
    found = {device_id: placed_of(state, device_id) for device_id in sorted(state.devices)}
    return {device_id: placed for device_id, placed in found.items() if placed is not None}


def groups_of(state: RunState, placed: Mapping[str, Placed]) -> dict[str, str]:
    """By device, the key of the model that it starts from next, for all that have been in a group
    and all that were `placed` (`all_placed`)."""
    grouped = {device_id: key for device_id, key in state.starts.items() if device_id}
    return grouped | {device_id: held.group for device_id, held in placed.items()}


def key_now(state: RunState, device_id: str) -> str:
    """The key of the model that the device starts from in the open round: in the evaluation, that
    of its last model; in a round of training as a newcomer, where its data have moved and newcomers
    do something of their own."""
    if state.phase == "evaluating":
        return start_key(state, device_id)
    is_new = state.phase == "training" and state.devices[device_id].moved and NEW in state.programs
    return NEWCOMER if is_new else trained_key(state, device_id)


def others(held: Mapping[str, T], key: str) -> dict[str, T]:
    """The entries under other keys."""
    return {other: value for other, value in held.items() if other != key}


def next_look(state: RunState, plans: Mapping[str, Flight], *times: float) -> list[Command]:
    """Return the command to look at these plans at the earliest of their deadlines and of these
    times; none where there is no plan and no time."""
    first = min((*(flight.deadline_at_s for flight in plans.values()), *times), default=None)
    return [] if first is None else [SetDeadline(state.round, first)]
