"""Transitions of a run that its devices have no part in. Pure.

The operator returns to earlier models, gives other settings or ends the run. An aggregator that
came up again may have lost what it commanded: what is open is commanded again. Updates that are
lost are asked for again.
"""

from msgspec.structs import replace

from aggregator.core.budget import spent
from aggregator.core.plan import plan_for
from aggregator.core.round import inputs
from aggregator.core.round.asking import (
    counted_anew,
    is_missing,
    next_look,
    num_trainers,
    with_device,
)
from aggregator.core.round.opening import (
    Step,
    acknowledgements,
    close_if_full,
    finish_commands,
    next_phase,
    open_again,
    open_next,
)
from aggregator.core.settings import RunSettings
from aggregator.core.state import (
    Aborted,
    Aggregate,
    Resumed,
    Retuned,
    RolledBack,
    RunState,
    SendPlan,
    SetDeadline,
    UpdatesLost,
)
from aggregator.core.versions import returned
from host.settings import marked


def roll_back(state: RunState, event: RolledBack) -> Step:
    """Open the round again with the models of an earlier one, without the updates to those that are
    given up."""
    after = returned(state, event.to, event.programs)
    if after is None:
        return state, []
    phase = next_phase(after) if after.phase == "aggregating" else after.phase
    return open_again(
        replace(after, phase=phase, cohort={}, received={}, flights={}), {}, event.at_s
    )


def retune(state: RunState, event: Retuned) -> Step:
    """Other settings for the rounds to come. What devices do in the open round stays as it is; one
    that is idle looks at once whether it may ask somebody now."""
    if state.phase == "evaluating":
        programs = {**event.programs, "closing": state.programs["closing"]}
        state = counted_anew(replace(state, settings=event.settings, programs=programs))
    else:
        kept = {name: getattr(state.settings, name) for name in marked(RunSettings, "epsilon")}
        state = counted_anew(
            replace(state, settings=replace(event.settings, **kept), retuned=event.settings)
        )
    if state.phase == "aggregating":
        return state, []
    state, commands = close_if_full(state, event.at_s)
    if not state.idle or state.phase == "aggregating":
        return state, commands
    state, more = open_again(state, state.received, event.at_s)
    return state, [*commands, *more]


def retune_idle(state: RunState, event: Retuned) -> Step:
    """Other settings; a round is opened if no budget is spent any more, or if there are enough
    devices for the first."""
    state = counted_anew(
        replace(state, settings=event.settings, retuned=None, programs=event.programs)
    )
    if state.phase == "finished":
        if ended := spent(state, event.at_s):  # what was aborted stays so
            return replace(state, ended="order" if state.ended == "order" else ended), []
        return open_next(state, event.at_s)
    return (
        open_next(state, event.at_s)
        if num_trainers(state) >= state.settings.min_devices
        else (state, [])
    )


def end(state: RunState, _event: Aborted) -> Step:
    """Finish the run as it is: what the open round has received is given up, and no device works
    for it any more. Devices are left with the models that they have."""
    state = replace(
        state, phase="finished", ended="order", cohort={}, received={}, flights={}, placing={}
    )
    return state, finish_commands(state)


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
        *next_look(state, state.flights),
        *next_look(state, state.placing),
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
