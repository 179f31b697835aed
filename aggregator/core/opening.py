"""What transitions of the round are made of: opening and closing it, and what is asked of its devices. Pure."""

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from aggregator.core.plan import NEW, plan_for
from aggregator.core.state import (
    Acknowledge,
    Aggregate,
    Command,
    Device,
    FinishRun,
    OpenPhase,
    Received,
    RunState,
    SendPlan,
    SetDeadline,
)
from algorithms.core.keys import NEWCOMER

LONGEST_REST = 64
"""Rounds after which a device that failed again and again is asked again, at most."""

Step = tuple[RunState, list[Command]]


def open_round(state: RunState, number: int, phase: OpenPhase, at_s: float) -> Step:
    """Open a round."""
    state = replace(state, phase=phase, round=number, attempt=0, received={}, opened_at_s=at_s)
    return _invite(state, _invited(state, at_s), at_s)


def open_again(state: RunState, received: dict[str, Received], at_s: float) -> Step:
    """Open the latest round again, as another attempt: its devices are asked again, but for those of these updates, and others too."""
    state = replace(state, attempt=state.attempt + 1, received=received)
    return _invite(state, sorted({*_invited(state, at_s), *state.cohort}), at_s)


def _invite(state: RunState, invited: Sequence[str], at_s: float) -> Step:
    """Send these devices their plans, but to those whose updates have been received, and set the deadlines."""
    cohort = {d: state.received[d].start if d in state.received else key_now(state, d) for d in invited}
    veterans = any(state.devices[d].accepted for d in cohort)
    state = replace(state, cohort=cohort, veterans=veterans, deadline_at_s=at_s + state.settings.deadline_s, newcomers_until_s=0.0)
    missing = [d for d in cohort if is_missing(state, d)]
    ends = (state.devices[d].last_seen_s + state.settings.grace_s for d in missing if not state.devices[d].online)
    times = (state.deadline_at_s, *(end_s for end_s in ends if end_s > at_s))
    return state, [*(SetDeadline(state.round, s) for s in times), *(SendPlan(plan_for(state, d)) for d in missing)]


def _invited(state: RunState, at_s: float) -> list[str]:
    """The devices that are asked in this round: those that are awaited and do not rest (in the evaluation nobody does); where there are
    none, all that are awaited; where there are none of these either, all."""
    devices = state.devices
    awaited = sorted(d for d in devices if _is_awaited(state, devices[d], at_s))
    rested = [d for d in awaited if devices[d].rests_until <= state.round or state.phase == "evaluating"]
    return rested or awaited or sorted(devices)


def close_if_full(state: RunState, at_s: float) -> Step:
    """Close the round if there are enough updates and no more is awaited; set a time for newcomers once only they are awaited."""
    if not state.received or (state.phase != "evaluating" and lacks_updates(state)):
        return state, []
    missing = (state.devices[d] for d in state.cohort if is_missing(state, d))
    awaited = (device for device in missing if _is_awaited(state, device, at_s))
    first = next(awaited, None)
    if first is None:
        return close(state, at_s)
    if not state.veterans or first.accepted or any(device.accepted for device in awaited):
        return state, []
    if state.newcomers_until_s:
        return close(state, at_s) if at_s >= state.newcomers_until_s else (state, [])
    until_s = state.opened_at_s + max(state.settings.grace_s, 2 * (at_s - state.opened_at_s))
    return replace(state, newcomers_until_s=until_s), [SetDeadline(state.round, until_s)]


def close(state: RunState, at_s: float) -> Step:
    if state.phase != "evaluating":
        return replace(state, phase="aggregating"), [Aggregate(state.round)]
    if state.trained < state.settings.rounds:  # the operator has asked for more of them meanwhile
        return open_round(state, state.round + 1, next_phase(state), at_s)
    state = replace(state, phase="finished")
    return state, finish_commands(state)


def next_phase(state: RunState) -> OpenPhase:
    return "preparing" if state.preparing else "training"


def lacks_updates(state: RunState) -> bool:
    return len(state.received) < state.settings.min_updates


def is_short(state: RunState, at_s: float) -> bool:
    """Whether the round has, or may still get, fewer updates than it needs."""
    hoped = sum(1 for d in state.cohort if d in state.received or _is_awaited(state, state.devices[d], at_s))
    return hoped < state.settings.min_updates


def is_missing(state: RunState, device_id: str) -> bool:
    """Whether the device is in the cohort and its update has not been received."""
    return device_id in state.cohort and device_id not in state.received


def _is_awaited(state: RunState, device: Device, at_s: float) -> bool:
    """Whether the device is online, or was lost so recently that it may come back."""
    return device.online or at_s < device.last_seen_s + state.settings.grace_s


def failed(state: RunState, device_id: str) -> Device:
    """The device after one more round without an update."""
    device = state.devices[device_id]
    return replace(device, failures=device.failures + 1, rests_until=state.round + min(LONGEST_REST, 2 ** min(device.failures, 10)))


def absent(device: Device, at_s: float, grace_s: float) -> Device:
    """The device as one that no round waits for until it is heard."""
    return replace(device, online=False, last_seen_s=min(device.last_seen_s, at_s - grace_s))


def with_device(state: RunState, device_id: str, device: Device) -> RunState:
    before = state.devices.get(device_id)
    online = state.num_online + device.online - (before is not None and before.online)
    return replace(state, devices=state.devices.set(device_id, device), num_online=online)


def start_key(state: RunState, device_id: str) -> str:
    """The key of the model that the device starts from next."""
    return state.starts.get(device_id, state.starts.get("", NEWCOMER))


def key_now(state: RunState, device_id: str) -> str:
    """The key of the model that the device starts from in the open round: as a newcomer, in a round of training, where its data have moved
    and newcomers do something of their own."""
    is_new = state.phase == "training" and state.devices[device_id].moved and NEW in state.programs
    return NEWCOMER if is_new else start_key(state, device_id)


def surveyed(state: RunState, left_out: Collection[str]) -> RunState:
    """The state after a round whose updates were applied, but for those that were left out: who took part as a newcomer has not moved."""
    for device_id in sorted(state.received.keys() - set(left_out)):
        device = state.devices[device_id]
        if device.moved and state.received[device_id].start == NEWCOMER:
            state = with_device(state, device_id, replace(device, moved=False))
    return state


def acknowledgements(state: RunState) -> list[Command]:
    """Of the updates of the latest round."""
    return [Acknowledge(device_id, received.blob) for device_id, received in state.received.items()]


def finish_commands(state: RunState) -> list[Command]:
    return [finish_command(state, device_id) for device_id in sorted(state.devices)]


def finish_command(state: RunState, device_id: str) -> FinishRun:
    return FinishRun(device_id, state.models[start_key(state, device_id)])
