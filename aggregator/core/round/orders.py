"""Transitions of a run by the operator's word: back to earlier models, on with other settings, and
to its end. Pure."""

from msgspec.structs import replace

from aggregator.core.budget import spent
from aggregator.core.round.asking import counted_anew, num_trainers
from aggregator.core.round.opening import (
    Step,
    close_if_full,
    finish_commands,
    next_phase,
    open_again,
    open_next,
)
from aggregator.core.round.order_events import Aborted, Retuned, RolledBack
from aggregator.core.round.succession import gives_models
from aggregator.core.settings import TRAINING
from aggregator.core.state import RunState
from aggregator.core.versions import returned


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
    state = _dated(state, event.at_s)
    if state.phase == "evaluating":
        programs = {**event.programs, "closing": state.programs["closing"]}
        state = counted_anew(replace(state, settings=event.settings, programs=programs))
    else:
        kept = {name: getattr(state.settings, name) for name in TRAINING}
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
        replace(
            _dated(state, event.at_s),
            settings=event.settings,
            retuned=None,
            programs=event.programs,
        )
    )
    if state.phase == "finished":
        if ended := spent(state, event.at_s):  # what was aborted stays so
            return replace(state, ended=ended if gives_models(state) else state.ended), []
        return open_next(state, event.at_s)
    return (
        open_next(state, event.at_s)
        if num_trainers(state) >= state.settings.min_devices
        else (state, [])
    )


def _dated(state: RunState, at_s: float) -> RunState:
    """A run that an earlier version began counts its days from the first settings that this one
    gives it."""
    return replace(state, started_at_s=at_s) if state.started_at_s is None else state


def end(state: RunState, _event: Aborted) -> Step:
    """Finish the run as it is: what the open round has received is given up, and no device works
    for it any more. Devices are left with the models that they have."""
    state = replace(
        state, phase="finished", ended="order", cohort={}, received={}, flights={}, placing={}
    )
    return state, finish_commands(state)
