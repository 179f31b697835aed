"""Transitions of a run that has lost something. When its aggregator came up again, what was
commanded before may be lost: what is open is commanded again. Updates that are lost are asked for
again. Pure."""

from msgspec.structs import replace

from aggregator.core.plan import plan_for
from aggregator.core.round import flights, inputs
from aggregator.core.round.asking import is_missing, with_device
from aggregator.core.round.opening import (
    Step,
    acknowledgements,
    next_phase,
    open_again,
)
from aggregator.core.state import (
    Aggregate,
    Resumed,
    RunState,
    SendPlan,
    SetDeadline,
    UpdatesLost,
)


def take_epoch(state: RunState, event: Resumed) -> Step:
    """Speak with the new epoch."""
    return replace(state, epoch=event.epoch), []


def command_again(state: RunState, event: Resumed) -> Step:
    """Deadlines, the plans of devices whose updates are missing, and acknowledgements of those that
    are not."""
    state, _ = take_epoch(state, event)
    missing = [d for d in state.cohort if is_missing(state, d)]
    plans = [SendPlan(plan_for(state, d)) for d in (*missing, *state.placing)]
    ends = [
        state.devices[d].last_seen_s + state.settings.grace_s
        for d in missing
        if not state.devices[d].online
    ]
    times = (
        state.deadline_at_s,
        *([state.newcomers_until_s] if state.newcomers_until_s else []),
        *ends,
    )
    looks = (
        *(SetDeadline(state.round, at_s) for at_s in times),
        *flights.next_look(state),
        *inputs.next_look(state),
    )
    return state, [*looks, *plans, *acknowledgements(state)]


def aggregate_again(state: RunState, event: Resumed) -> Step:
    """The algorithm, and acknowledgements of the updates that it is applied to."""
    state, _ = take_epoch(state, event)
    return state, [*acknowledgements(state), Aggregate(state.round)]


def ask_again(state: RunState, event: UpdatesLost) -> Step:
    """Open the round again without these updates."""
    if event.round != state.round:
        return state, []
    after = inputs.lost(state, event.device_ids)
    if after is not state and state.received.keys().isdisjoint(event.device_ids):
        return after, [Aggregate(state.round)] if state.phase == "aggregating" else []
    state = after
    received = {d: r for d, r in state.received.items() if d not in event.device_ids}
    for device_id in sorted(
        state.received.keys() & set(event.device_ids)
    ):  # the same update again is to be stored again
        state = with_device(state, device_id, replace(state.devices[device_id], accepted=""))
    phase = next_phase(state) if state.phase == "aggregating" else state.phase
    return open_again(replace(state, phase=phase), received, event.at_s)
