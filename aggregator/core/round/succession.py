"""Whose models devices have, of several campaigns: those of the one that came to its end last.
Pure.

A campaign comes to its *end* when its evaluation is over; one that is aborted does not, and gives
no models. What devices have of one that came to its end and was resumed and aborted later, they
keep. A device that a campaign does not take (`where`) has the models of the one that ended before
it.
"""

from collections.abc import Mapping

from aggregator.core.state import RunState


def gives_models(state: RunState) -> bool:
    """Whether devices are to use the models of a run that is over: not if the operator has aborted
    it."""
    return state.ended != "order"


def has_ended(state: RunState) -> bool:
    """Whether a campaign has ever come to its end."""
    return state.ended_at_s is not None or (
        state.phase == "finished" and gives_models(state)
    )  # of an earlier version


def by_end(states: Mapping[str, RunState]) -> list[str]:
    """The campaigns that have come to their end, the last one first, from all in the order of their
    starts."""
    over = [name for name, state in states.items() if has_ended(state)]
    return sorted(over, key=lambda name: states[name].ended_at_s or 0.0)[::-1]


def opened(states: Mapping[str, RunState | None]) -> set[str]:
    """The campaigns that a service opens: those that are not over; of those that have come to their
    end, from the last back to the first that takes every device; and the one that was started last,
    over or not."""
    known = {name: state for name, state in states.items() if state is not None}
    wanted = {
        name for name in states if name not in known or known[name].phase != "finished"
    } | set(list(states)[-1:])
    for name in by_end(known):
        wanted.add(name)
        if not known[name].next_settings.where:
            break
    return wanted
