"""The round as a state machine: ``step(state, event) -> (state, commands)``. Pure: the same events give the same run.

A run is always in one of six phases. A round is open in three of them, while devices work on their plans:

* *waiting*: fewer than `min_devices` devices have been online at a time; no round has been opened.
* *preparing*: a round is open that an algorithm needs before the rounds of training; it does not count as one.
* *training*: a round of training is open.
* *aggregating*: the round is closed; the algorithm computes the next models from the updates that were received.
* *evaluating*: after the last round of training every device tests its final model.
* *finished*: the run is over; a device that checks in is given its model.

An open round is closed when the update of every device that it waits for has been received, or by its deadline. It waits for the devices
of its cohort that are online, and for one that was lost for `grace_s` seconds; within these a lost device is also invited to a next round.
The update of a lost device counts whenever it comes before the round is closed. A deadline by which nobody has answered opens the same
round again; an evaluation is then over without results.

A device that checks in while a round is open gets its plan if it is in the cohort and its update has not been received. A device that is
new takes part from the next round on. A device that declines its plan leaves the cohort.

`TRANSITIONS` says what each event does in each phase, by the name of a function below. A dash is an event that is ignored: the state
stays, and nothing is commanded. *open* stands for preparing, training and evaluating.

=============== ============ ============= =============== ============
event           waiting      open          aggregating     finished
=============== ============ ============= =============== ============
DeviceCheckedIn open_first   send_plan     register        dismiss
DeviceLost      mark_lost    give_grace    mark_lost       mark_lost
UpdateAdmitted  -            receive       acknowledge     acknowledge
DeviceDeclined  -            excuse        -               -
DeadlinePassed  -            expire        -               -
RoundAggregated -            -             advance         -
Resumed         -            command_again aggregate_again dismiss_all
=============== ============ ============= =============== ============

`Started` is no part of the table: it makes the state, and comes once. An event of a round that is no longer the latest changes nothing.
"""

from collections.abc import Callable, Mapping
from typing import Any, get_args

from msgspec.structs import replace

from aggregator.core.plan import plan_for
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
    OpenPhase,
    Phase,
    Resumed,
    RoundAggregated,
    RunState,
    SendPlan,
    SetDeadline,
    Started,
    UpdateAdmitted,
)
from algorithms.core.keys import NEWCOMER

OPEN: tuple[OpenPhase, ...] = get_args(OpenPhase)

Step = tuple[RunState, list[Command]]
Transition = Callable[[RunState, Any], Step]
"""What an event does in a phase. Its second argument is an event of the type under which it stands in `TRANSITIONS`."""


def step(state: RunState | None, event: Event) -> Step:
    """The state after an event, and what is to be done about it.

    Raises:
        ValueError: a run is started twice, or something happens before it is started.
    """
    if isinstance(event, Started):
        if state is not None:
            raise ValueError("a run starts once")
        return _start(event)
    if state is None:
        raise ValueError(f"{type(event).__name__} before the run has started")
    transition = TRANSITIONS[state.phase].get(type(event))
    return transition(state, event) if transition is not None else (state, [])


def _start(event: Started) -> Step:
    state = RunState(
        settings=event.settings,
        models=event.models,
        memory=event.memory,
        programs=event.programs,
        starts=event.starts,
        preparing=event.preparing,
    )
    return state, []


# Transitions: a device comes, goes, answers.


def _register(state: RunState, event: DeviceCheckedIn) -> Step:
    """Remember what the device says of itself."""
    device = Device(
        num_train=event.num_train,
        num_test=event.num_test,
        online=True,
        last_seen_s=event.at_s,
        runtime=event.runtime,
        bundle=event.bundle,
    )
    return replace(state, devices={**state.devices, event.device_id: device}), []


def _open_first(state: RunState, event: DeviceCheckedIn) -> Step:
    """Open the first round if enough devices are online now."""
    state, _ = _register(state, event)
    if sum(device.online for device in state.devices.values()) < state.settings.min_devices:
        return state, []
    return _open(state, 1, _next_phase(state), event.at_s)


def _send_plan(state: RunState, event: DeviceCheckedIn) -> Step:
    """Send the device its plan if the round waits for it: it may not have got it."""
    state, _ = _register(state, event)
    return state, [SendPlan(plan_for(state, event.device_id))] if _is_missing(state, event.device_id) else []


def _dismiss(state: RunState, event: DeviceCheckedIn) -> Step:
    """Say that the run is over, and which model is the device's own."""
    state, _ = _register(state, event)
    return state, [_finish_command(state, event.device_id)]


def _mark_lost(state: RunState, event: DeviceLost) -> Step:
    """Remember that the device is not online, and since when."""
    device = state.devices.get(event.device_id)
    if device is None:
        return state, []
    lost = replace(device, online=False, last_seen_s=event.at_s)
    return replace(state, devices={**state.devices, event.device_id: lost}), []


def _give_grace(state: RunState, event: DeviceLost) -> Step:
    """Look at the round again when the lost device's grace is over, if the round waits for it."""
    state, _ = _mark_lost(state, event)
    if not _is_missing(state, event.device_id):
        return state, []
    return state, [SetDeadline(state.round, min(state.deadline_at_s, event.at_s + state.settings.grace_s))]


def _receive(state: RunState, event: UpdateAdmitted) -> Step:
    """Count the update, once and in its own round only, and acknowledge it in any case."""
    acknowledge = Acknowledge(event.device_id, event.round)
    if event.round != state.round or event.device_id in state.received:
        return state, [acknowledge]
    state = replace(state, received={**state.received, event.device_id: event.update})
    state, commands = _close_if_full(state, event.at_s)
    return state, [acknowledge, *commands]


def _acknowledge(state: RunState, event: UpdateAdmitted) -> Step:
    """Acknowledge an update without counting it: the round is closed, and the device need not keep the update."""
    return state, [Acknowledge(event.device_id, event.round)]


def _excuse(state: RunState, event: DeviceDeclined) -> Step:
    """Take the device out of the cohort, unless its update has been received."""
    if event.round != state.round or event.device_id in state.received:
        return state, []
    state = replace(state, cohort={d: start for d, start in state.cohort.items() if d != event.device_id})
    return _close_if_full(state, event.at_s)


# Transitions: time passes, the algorithm has been applied.


def _expire(state: RunState, event: DeadlinePassed) -> Step:
    """Close the round, or open it again if nobody has answered. Before the round's own deadline, a lost device's grace is over."""
    if event.round != state.round:
        return state, []
    if event.at_s < state.deadline_at_s:
        return _close_if_full(state, event.at_s)
    if not state.received and state.phase != "evaluating":
        return _open(state, state.round, _next_phase(state), event.at_s)
    return _close(state)


def _advance(state: RunState, event: RoundAggregated) -> Step:
    """Take over the new models, and open the next round or, after the last round of training, the evaluation."""
    if event.round != state.round:
        return state, []
    trained = state.trained + (not state.preparing)
    state = replace(state, models=event.models, memory=event.memory, starts=event.starts, programs=event.programs, trained=trained)
    if trained >= state.settings.rounds:
        return _open(state, state.round + 1, "evaluating", event.at_s)
    state = replace(state, preparing=event.preparing)
    return _open(state, state.round + 1, _next_phase(state), event.at_s)


# Transitions: the aggregator came up again. What was commanded before it stopped may be lost, so that what is open is commanded again.


def _command_again(state: RunState, _event: Resumed) -> Step:
    """Deadlines, the plans of devices whose updates are missing, and acknowledgements of those that are not."""
    missing = [d for d in state.cohort if _is_missing(state, d)]
    plans = [SendPlan(plan_for(state, d)) for d in missing]
    ends = [state.devices[d].last_seen_s + state.settings.grace_s for d in missing if not state.devices[d].online]
    deadlines = [SetDeadline(state.round, at_s) for at_s in (state.deadline_at_s, *ends)]
    return state, [*deadlines, *plans, *(Acknowledge(d, state.round) for d in state.received)]


def _aggregate_again(state: RunState, _event: Resumed) -> Step:
    return state, [Aggregate(state.round)]


def _dismiss_all(state: RunState, _event: Resumed) -> Step:
    return state, [_finish_command(state, d) for d in sorted(state.devices)]


_OPEN_ROUND: Mapping[type[Event], Transition] = {
    DeviceCheckedIn: _send_plan,
    DeviceLost: _give_grace,
    UpdateAdmitted: _receive,
    DeviceDeclined: _excuse,
    DeadlinePassed: _expire,
    Resumed: _command_again,
}
TRANSITIONS: Mapping[Phase, Mapping[type[Event], Transition]] = {
    "waiting": {DeviceCheckedIn: _open_first, DeviceLost: _mark_lost},
    "preparing": _OPEN_ROUND,
    "training": _OPEN_ROUND,
    "aggregating": {
        DeviceCheckedIn: _register,
        DeviceLost: _mark_lost,
        UpdateAdmitted: _acknowledge,
        RoundAggregated: _advance,
        Resumed: _aggregate_again,
    },
    "evaluating": _OPEN_ROUND,
    "finished": {DeviceCheckedIn: _dismiss, DeviceLost: _mark_lost, UpdateAdmitted: _acknowledge, Resumed: _dismiss_all},
}
"""What each event does in each phase; an event that is not there is ignored."""


# What transitions are made of.


def _open(state: RunState, number: int, phase: OpenPhase, at_s: float) -> Step:
    """Open a round for every device that is awaited, or for all known ones when none is."""
    devices = state.devices
    invited = sorted(d for d in devices if _is_awaited(state, devices[d], at_s)) or sorted(devices)
    cohort = {d: _start_key(state, d) for d in invited}
    deadline_at_s = at_s + state.settings.deadline_s
    graces = [SetDeadline(number, devices[d].last_seen_s + state.settings.grace_s) for d in invited if not devices[d].online]
    state = replace(state, phase=phase, round=number, cohort=cohort, received={}, deadline_at_s=deadline_at_s, opened_at_s=at_s)
    return state, [SetDeadline(number, deadline_at_s), *graces, *(SendPlan(plan_for(state, d)) for d in cohort)]


def _close_if_full(state: RunState, at_s: float) -> Step:
    """Close the round if there is an update and no more is awaited."""
    missing = any(_is_awaited(state, state.devices[d], at_s) for d in state.cohort if _is_missing(state, d))
    return (state, []) if missing or not state.received else _close(state)


def _close(state: RunState) -> Step:
    if state.phase != "evaluating":
        return replace(state, phase="aggregating"), [Aggregate(state.round)]
    state = replace(state, phase="finished")
    return state, [_finish_command(state, device_id) for device_id in sorted(state.devices)]


def _next_phase(state: RunState) -> OpenPhase:
    return "preparing" if state.preparing else "training"


def _is_missing(state: RunState, device_id: str) -> bool:
    """Whether the device is in the cohort and its update has not been received."""
    return device_id in state.cohort and device_id not in state.received


def _is_awaited(state: RunState, device: Device, at_s: float) -> bool:
    """Whether the device is online, or was lost so recently that it may come back."""
    return device.online or at_s < device.last_seen_s + state.settings.grace_s


def _start_key(state: RunState, device_id: str) -> str:
    """The key of the model that the device starts from next."""
    return state.starts.get(device_id, state.starts.get("", NEWCOMER))


def _finish_command(state: RunState, device_id: str) -> FinishRun:
    return FinishRun(device_id, state.models[_start_key(state, device_id)])
