"""A round, told as a state machine: ``step(state, event) -> (state, commands)``. Pure: the same events give the same run.

Phases and what leads on:

============= ================================================== =====================================
phase         waits for                                          then
============= ================================================== =====================================
waiting       `min_devices` devices online                       round 1 opens: preparing or training
preparing     as training; it does not count as a round of       aggregating
              training
training      every online device of the cohort, or the deadline aggregating
aggregating   the algorithm's new models                         next round: preparing or training; after the last: evaluating
evaluating    every online device's metrics of its final model,  finished
              or the deadline
finished      nothing; a device that checks in gets its model
============= ================================================== =====================================

A device that checks in during a round whose cohort it belongs to, and whose update has not come, gets its plan again. A device
that is new waits for the next round. A device that is lost is waited for, and still invited, for `grace_s` seconds; its update
counts whenever it comes before the round closes. A device that declines its plan is out of that round.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from aggregator.core.state import (
    Acknowledge,
    Aggregate,
    Command,
    DeadlinePassed,
    Device,
    DeviceCheckedIn,
    DeviceDeclined,
    DeviceLost,
    Event,
    FinishRun,
    Resumed,
    RoundAggregated,
    RunState,
    SendPlan,
    SetDeadline,
    Started,
    UpdateAdmitted,
)
from wire.messages import Plan, Verb

INITIAL = "initial"
OPEN = ("preparing", "training", "evaluating")
"""Phases in which updates are awaited."""

Step = tuple[RunState, list[Command]]


def step(state: RunState | None, event: Event) -> Step:
    """The state after an event, and what to do about it."""
    if isinstance(event, Started):
        if state is not None:
            raise ValueError("a run starts once")
        state = RunState(event.settings, models=event.models, memory=event.memory, programs=event.programs, preparing=event.preparing)
        return state, []
    if state is None:
        raise ValueError(f"{type(event).__name__} before the run has started")
    match event:
        case DeviceCheckedIn():
            return _check_in(state, event)
        case DeviceLost():
            return _lose(state, event)
        case UpdateAdmitted():
            return _receive(state, event)
        case DeviceDeclined():
            return _excuse(state, event)
        case DeadlinePassed():
            return _expire(state, event)
        case RoundAggregated():
            return _advance(state, event)
        case Resumed():
            return _resume(state)


def verbs_for(state: RunState, device_id: str) -> tuple[Verb, ...]:
    """What a cohort member does in the open round: what was said for it, for those that start as it does, or for everybody."""
    if state.phase == "evaluating":
        return state.programs["closing"]
    return program_for(state.programs, device_id, state.cohort[device_id])


def program_for(programs: Mapping[str, tuple[Verb, ...]], device_id: str, start: str) -> tuple[Verb, ...]:
    """What one device does that starts from the model of key `start`: the most particular of a round's programs that is for it."""
    for key in (f"device:{device_id}", f"start:{start}"):
        if key in programs:
            return programs[key]
    return programs[""]


def plan_for(state: RunState, device_id: str) -> Plan:
    """The plan of a cohort member in the open round. It may be built again and is then the same."""
    settings = state.settings
    return Plan(
        run_id=settings.run_id,
        round=state.round,
        device_id=device_id,
        bundle=settings.bundle,
        model=state.models[state.cohort[device_id]],
        verbs=verbs_for(state, device_id),
        seed=settings.seed * 1_000_003 + state.round,
        deadline_at_s=state.deadline_at_s,
    )


def _check_in(state: RunState, event: DeviceCheckedIn) -> Step:
    device = Device(event.num_train, event.num_test, True, event.at_s, event.runtime, event.bundle)
    state = replace(state, devices={**state.devices, event.device_id: device})
    if state.phase == "finished":
        return state, [_finish(state, event.device_id)]
    if event.device_id in state.cohort and event.device_id not in state.received:
        return state, [SendPlan(plan_for(state, event.device_id))]
    if state.phase == "waiting":
        return _open_if_ready(state, event.at_s)
    return state, []


def _lose(state: RunState, event: DeviceLost) -> Step:
    device = state.devices.get(event.device_id)
    if device is None:
        return state, []
    lost = replace(device, online=False, last_seen_s=event.at_s)
    state = replace(state, devices={**state.devices, event.device_id: lost})
    if event.device_id in state.cohort and event.device_id not in state.received:
        return state, [SetDeadline(state.round, min(state.deadline_at_s, event.at_s + state.settings.grace_s))]
    return state, []


def _receive(state: RunState, event: UpdateAdmitted) -> Step:
    acknowledge = Acknowledge(event.device_id, event.round)
    if event.round != state.round or event.device_id in state.received:
        return state, [acknowledge]
    state = replace(state, received={**state.received, event.device_id: event.update})
    state, commands = _close_if_full(state, event.at_s)
    return state, [acknowledge, *commands]


def _excuse(state: RunState, event: DeviceDeclined) -> Step:
    if event.round != state.round or event.device_id in state.received:
        return state, []
    state = replace(state, cohort={d: start for d, start in state.cohort.items() if d != event.device_id})
    return _close_if_full(state, event.at_s)


def _expire(state: RunState, event: DeadlinePassed) -> Step:
    if event.round != state.round or state.phase not in OPEN:
        return state, []
    if event.at_s < state.deadline_at_s:  # a lost device's grace is over
        return _close_if_full(state, event.at_s)
    if not state.received and state.phase != "evaluating":  # nobody answered: the same round again
        return _open(state, state.round, state.phase, event.at_s)
    return _close(state, event.at_s)


def _awaited(state: RunState, device: Device, at_s: float) -> bool:
    """Whether a device is there, or was lost so recently that it may be back."""
    return device.online or at_s < device.last_seen_s + state.settings.grace_s


def _close_if_full(state: RunState, at_s: float) -> Step:
    waiting = any(_awaited(state, state.devices[d], at_s) for d in state.cohort if d not in state.received)
    if state.phase not in OPEN or waiting or not state.received:
        return state, []
    return _close(state, at_s)


def _close(state: RunState, at_s: float) -> Step:
    if state.phase != "evaluating":
        return replace(state, phase="aggregating"), [Aggregate(state.round)]
    state = replace(state, phase="finished")
    return state, [_finish(state, device_id) for device_id in sorted(state.devices)]


def _advance(state: RunState, event: RoundAggregated) -> Step:
    if event.round != state.round or state.phase != "aggregating":
        return state, []
    trained = state.trained + (not state.preparing)
    state = replace(state, models=event.models, memory=event.memory, starts=event.starts, programs=event.programs, trained=trained)
    if trained >= state.settings.rounds:
        return _open(state, state.round + 1, "evaluating", event.at_s)
    state = replace(state, preparing=event.preparing)
    return _open(state, state.round + 1, _next_phase(state), event.at_s)


def _next_phase(state: RunState) -> str:
    return "preparing" if state.preparing else "training"


def _open_if_ready(state: RunState, at_s: float) -> Step:
    if sum(device.online for device in state.devices.values()) < state.settings.min_devices:
        return state, []
    return _open(state, 1, _next_phase(state), at_s)


def _open(state: RunState, number: int, phase: str, at_s: float) -> Step:
    devices = state.devices
    invited = sorted(d for d in devices if _awaited(state, devices[d], at_s)) or sorted(devices)
    cohort = {d: state.starts.get(d, state.starts.get("", INITIAL)) for d in invited}
    deadline_at_s = at_s + state.settings.deadline_s
    graces = [SetDeadline(number, devices[d].last_seen_s + state.settings.grace_s) for d in invited if not devices[d].online]
    state = replace(state, phase=phase, round=number, cohort=cohort, received={}, deadline_at_s=deadline_at_s, opened_at_s=at_s)
    return state, [SetDeadline(number, deadline_at_s), *graces, *(SendPlan(plan_for(state, d)) for d in cohort)]


def _finish(state: RunState, device_id: str) -> FinishRun:
    return FinishRun(device_id, state.models[state.starts.get(device_id, state.starts.get("", INITIAL))])


def _resume(state: RunState) -> Step:
    """Everything commanded before the stop may have been lost: command what is still open again."""
    match state.phase:
        case "preparing" | "training" | "evaluating":
            missing = [d for d in state.cohort if d not in state.received]
            plans = [SendPlan(plan_for(state, d)) for d in missing]
            ends = [state.devices[d].last_seen_s + state.settings.grace_s for d in missing if not state.devices[d].online]
            deadlines = [SetDeadline(state.round, at_s) for at_s in (state.deadline_at_s, *ends)]
            return state, [*deadlines, *plans, *(Acknowledge(d, state.round) for d in state.received)]
        case "aggregating":
            return state, [Aggregate(state.round)]
        case "finished":
            return state, [_finish(state, d) for d in sorted(state.devices)]
    return state, []
