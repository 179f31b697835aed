"""What transitions of the round are made of: opening and closing it, and what is asked of its
devices. Pure."""

import math
from collections.abc import Collection
from typing import Any

from msgspec.structs import replace

from aggregator.core.budget import spent
from aggregator.core.plan import can_train, plan_for, round_seed
from aggregator.core.round import closings, flights, inputs
from aggregator.core.round.asking import (
    is_awaited,
    is_missing,
    key_now,
    may_be_asked,
    next_look,
    note_asked,
    paced_until_s,
    start_key,
)
from aggregator.core.round.cohort import Cohort, drawn
from aggregator.core.round.hours import read_hours
from aggregator.core.state import (
    Aggregate,
    Command,
    FinishRun,
    OpenPhase,
    Received,
    RunState,
    SendPlan,
    SetDeadline,
)
from wire.messages import Acknowledge

Step = tuple[RunState, list[Command]]


def open_next(state: RunState, at_s: float) -> Step:
    """Open the next round, or the evaluation where a budget is spent."""
    ended = spent(state, at_s)
    phase: OpenPhase = "evaluating" if ended else next_phase(state)
    fresh: dict[str, Any] = {
        "attempt": 0,
        "received": {},
        "cohort": {},
        "declined": (),
        "closings": {},
        "retries": {},
    }
    state = replace(
        state, phase=phase, ended=ended, round=state.round + 1, opened_at_s=at_s, **fresh
    )
    state = replace(state, placing={}) if phase == "evaluating" else state
    return _invite(state if flights.is_buffered(state) else replace(state, flights={}), at_s)


def open_again_or_evaluate(state: RunState, at_s: float) -> Step:
    """Open the latest round again; where a budget is spent meanwhile, its training is given up for
    the evaluation."""
    ended = spent(state, at_s)
    if ended and state.phase != "evaluating":
        given_up: dict[str, Any] = {"cohort": {}, "received": {}, "flights": {}, "placing": {}}
        state = replace(
            state,
            phase="evaluating",
            ended=ended,
            settings=state.next_settings,
            retuned=None,
            **given_up,
        )
    return open_again(state, state.received, at_s)


def open_again(state: RunState, received: dict[str, Received], at_s: float) -> Step:
    """Open the latest round again, as another attempt: its devices are asked again, but for those
    of these updates, and others too."""
    state = replace(state, attempt=state.attempt + 1, received=received, declined=())
    return _invite(state, at_s)


def _invite(state: RunState, at_s: float) -> Step:
    """Send devices their plans, and those without labels theirs."""
    state, commands = _invite_cohort(state, at_s)
    looks = next_look(state, state.placing)
    state, asked = inputs.ask(state, state.devices, at_s)
    return state, [*commands, *looks, *asked]


def _invite_cohort(state: RunState, at_s: float) -> Step:
    """Send devices their plans, but to those whose updates have been received, and set the
    deadlines. The devices of an attempt before stay invited. Where nobody may be asked now, the
    round is idle until somebody may."""
    if flights.is_buffered(state):
        return _keep_at_work(state, at_s)
    hours = read_hours(state.settings.hours)
    opens_s = max(hours.opens_s(at_s) if hours else at_s, paced_until_s(state, at_s))
    if opens_s > at_s:
        cohort = {d: state.received[d].start for d in state.received}
        state = replace(
            state, cohort=cohort, idle=True, deadline_at_s=opens_s, newcomers_until_s=0.0
        )
        return state, [SetDeadline(state.round, opens_s)]
    is_last = state.phase == "evaluating"
    stay = (
        d
        for d in state.cohort
        if d in state.received
        or ((device := state.devices[d]).eligible and (is_last or can_train(state, device)))
    )
    # those that are awaited and do not rest (in the evaluation nobody does); where there are none,
    # all that are awaited; where there are none of these either, all
    devices = {
        d: device for d, device in state.devices.items() if may_be_asked(state, device, at_s)
    }
    awaited = sorted(d for d in devices if is_awaited(state, devices[d], at_s))
    rested = [d for d in awaited if devices[d].rests_until <= state.round or is_last]
    found = rested or awaited or sorted(devices)
    if not is_last:  # as many of them as the cohort's policy says, drawn anew in every round
        held, seed = len(state.cohort), round_seed(state.settings, state.round)
        found = drawn(found, max(0, cohort_of(state).asked(len(found) + held) - held), seed)
    invited = sorted({*found, *stay})
    state = note_asked(replace(state, idle=False, asked=len(invited)), invited, at_s)
    until_s = min(at_s + state.settings.deadline_s, hours.closes_s(at_s) if hours else math.inf)
    cohort = {
        d: state.received[d].start if d in state.received else key_now(state, d) for d in invited
    }
    veterans = any(state.devices[d].accepted for d in cohort)
    state = replace(
        state, cohort=cohort, veterans=veterans, deadline_at_s=until_s, newcomers_until_s=0.0
    )
    missing = [d for d in cohort if is_missing(state, d)]
    ends = (
        state.devices[d].last_seen_s + state.settings.grace_s
        for d in missing
        if not state.devices[d].online
    )
    times = (state.deadline_at_s, *(end_s for end_s in ends if end_s > at_s))
    return state, [
        *(SetDeadline(state.round, s) for s in times),
        *(SendPlan(plan_for(state, d)) for d in missing),
    ]


def _keep_at_work(state: RunState, at_s: float) -> Step:
    """The same in a buffered run: who is in flight stays so, and others are asked until enough are
    at work."""
    hours = read_hours(state.settings.hours)
    opens_s = max(
        hours.opens_s(at_s) if hours else at_s,
        at_s if state.flights else paced_until_s(state, at_s),
    )
    cohort = flights.carried(state) | {d: received.start for d, received in state.received.items()}
    is_idle = opens_s > at_s
    until_s = (
        opens_s
        if is_idle
        else min(at_s + state.settings.deadline_s, hours.closes_s(at_s) if hours else math.inf)
    )
    state = replace(
        state,
        cohort=cohort,
        idle=is_idle,
        asked=len(cohort),
        deadline_at_s=until_s,
        newcomers_until_s=0.0,
    )
    looks: list[Command] = [SetDeadline(state.round, until_s), *next_look(state, state.flights)]
    state, commands = flights.fill(state, at_s)
    if not commands and not state.flights:  # nobody is there but those that rest
        state, commands = flights.fill(state, at_s, rested=False)
    return state, [*looks, *commands]


def cohort_of(state: RunState) -> Cohort:
    """How many devices the latest round asks."""
    return Cohort(state.settings.cohort, state.settings.over_select - 1)


def close_if_full(state: RunState, at_s: float) -> Step:
    """Close the round if there are enough updates and no more is awaited; set a time for newcomers
    once only they are awaited. A round that can no longer get enough asks as many others as it
    lacks, of those that are online and that it has not asked."""
    if state.phase != "evaluating" and lacks_updates(state):
        # those that do not rest, or where there are none, any; until the round's deadline
        lacking = _short_by(state, at_s)
        if not lacking:
            return state, []
        spare = [
            d for d, device in state.devices.items() if device.online and _is_spare(state, d, at_s)
        ]
        rested = [d for d in spare if state.devices[d].rests_until <= state.round]
        invited = drawn(rested or spare, lacking, round_seed(state.settings, state.round))
        state = join(state, invited, at_s)
        return state, [SendPlan(plan_for(state, d)) for d in invited]
    if not state.received or state.idle:
        return state, []
    if (
        state.settings.cohort
        and state.phase != "evaluating"
        and len(state.received) >= cohort_of(state).goal(len(state.cohort))
    ):
        return _close_unless_held_up(state, at_s)
    if flights.is_buffered(state):
        if len(state.received) >= state.settings.buffer:
            return _close_unless_held_up(state, at_s)
        state, commands = flights.fill(state, at_s)
        at_work = any(is_awaited(state, state.devices[d], at_s) for d in state.flights)
        return (state, commands) if at_work else _close_unless_held_up(state, at_s)
    missing = (state.devices[d] for d in state.cohort if is_missing(state, d))
    awaited = (device for device in missing if is_awaited(state, device, at_s))
    first = next(awaited, None)
    if first is None:
        return _close_unless_held_up(state, at_s)
    if not state.veterans or first.accepted or any(device.accepted for device in awaited):
        return state, []
    return _close_in_time(state, at_s)


def _close_unless_held_up(state: RunState, at_s: float) -> Step:
    """Close the round, which has what it needs, unless it is the last one of training and devices
    without labels that are there are to be placed before."""
    is_last = state.phase == "training" and state.trained + 1 >= state.settings.rounds
    if is_last and any(is_awaited(state, state.devices[d], at_s) for d in state.placing):
        return _close_in_time(state, at_s)
    return close(state, at_s)


def _close_in_time(state: RunState, at_s: float) -> Step:
    """Close the round when it has been open for twice as long as until now, at least for
    `grace_s`."""
    if state.newcomers_until_s:
        return close(state, at_s) if at_s >= state.newcomers_until_s else (state, [])
    until_s = state.opened_at_s + max(state.settings.grace_s, 2 * (at_s - state.opened_at_s))
    return replace(state, newcomers_until_s=until_s), [SetDeadline(state.round, until_s)]


def close(state: RunState, at_s: float) -> Step:
    if state.phase != "evaluating":
        return replace(state, phase="aggregating"), [Aggregate(state.round)]
    if not spent(state, at_s):  # the operator has asked for more meanwhile
        return open_next(state, at_s)
    state, looks = closings.left_open(
        replace(state, phase="finished", ended_at_s=at_s, late=0), at_s
    )
    state, asked = closings.ask_all(state, at_s)
    return state, [*looks, *asked, *finish_commands(state)]


def next_phase(state: RunState) -> OpenPhase:
    return "preparing" if state.preparing else "training"


def lacks_updates(state: RunState) -> bool:
    return len(state.received) < _needed(state)


def _needed(state: RunState) -> int:
    """Updates without which the round is not aggregated."""
    share = state.settings.quorum * (state.settings.cohort or state.settings.buffer or state.asked)
    return max(state.settings.min_updates, math.ceil(round(share, 9)))


def _short_by(state: RunState, at_s: float) -> int:
    """How many updates the round lacks beside those that it has or may still get."""
    if state.idle or flights.is_buffered(state):
        return 0
    hoped = sum(
        1 for d in state.cohort if d in state.received or is_awaited(state, state.devices[d], at_s)
    )
    return max(0, _needed(state) - hoped)


def may_join(state: RunState, device_id: str, at_s: float) -> bool:
    """Whether a device that came is taken into the open round, because that is short of devices."""
    return (
        device_id in state.devices
        and _is_spare(state, device_id, at_s)
        and _short_by(state, at_s) > 0
    )


def _is_spare(state: RunState, device_id: str, at_s: float) -> bool:
    """Whether the open round may ask the device and has not."""
    asked = device_id in state.cohort or device_id in state.declined
    return not asked and may_be_asked(state, state.devices[device_id], at_s)


def join(state: RunState, device_ids: Collection[str], at_s: float) -> RunState:
    """The state in which the open round has these devices too."""
    state = note_asked(state, device_ids, at_s)
    veterans = state.veterans or any(state.devices[d].accepted for d in device_ids)
    return replace(
        state, cohort=state.cohort | {d: key_now(state, d) for d in device_ids}, veterans=veterans
    )


def acknowledgements(state: RunState) -> list[Command]:
    """Of the updates of the latest round."""
    return [Acknowledge(device_id, received.blob) for device_id, received in state.received.items()]


def finish_commands(state: RunState) -> list[Command]:
    """For every device but those that choose now what they keep, whose work this would end, and
    those that will when they are back."""
    due = {
        d for d, device in state.devices.items() if not device.online and closings.is_due(state, d)
    }
    waiting = due | state.closings.keys()
    return [
        finish_command(state, d)
        for d in sorted(state.devices)
        if d not in waiting and not state.devices[d].barred
    ]


def finish_command(state: RunState, device_id: str) -> FinishRun:
    return FinishRun(
        device_id, state.models[start_key(state, device_id)], gives=state.ended != "order"
    )
