"""Plans in flight: how a *buffered* run keeps its devices at work (J. Nguyen et al., Federated
learning with buffered asynchronous aggregation, AISTATS 2022, algorithm 1). Pure.

A round of a buffered run is the time between two aggregations. Its plans are *in flight*: a device
that still works when the round is over is left alone, and its update counts in the round in which
it comes, less the older it is (`aggregator.core.round.cohort.staleness_weights`). Its change is
added to the model that its group has then. So fast devices never wait for slow ones.

At any time as many devices are at work as the policy says (`aggregator.core.round.cohort.Buffer`):
when an update comes, or a device is lost, declines or is given up, another one is asked at once,
with the models of the open round. A device is counted once in a round, and asked again in the next.
A device whose plan is older than `deadline_s` is given up.

A round is closed when `buffer` updates are in; or by its own deadline with those that are there, if
they are enough; or when nobody works and nobody can be asked. Evaluations are rounds like those of
any run.
"""

from collections.abc import Collection

from msgspec.structs import replace

from aggregator.core.plan import NEW, plan_for, round_seed, verbs_for
from aggregator.core.round.asking import (
    absent,
    failed,
    is_awaited,
    key_now,
    may_be_asked,
    note_asked,
    num_trainers,
    trained_key,
    with_device,
)
from aggregator.core.round.cohort import Buffer, drawn
from aggregator.core.round.hours import read_hours
from aggregator.core.state import Command, Flight, RunState, SendPlan, SetDeadline
from algorithms.core.keys import NEWCOMER

Step = tuple[RunState, list[Command]]


def is_buffered(state: RunState) -> bool:
    """Whether the latest round is one of training in a buffered run."""
    return state.settings.buffer > 0 and state.phase == "training"


def carried(state: RunState) -> dict[str, str]:
    """The devices in flight, and the key of the model that each one's update will change.

    A device that was surveyed as a newcomer is placed by its update; any other is in its group of
    today.
    """
    survey = NEW in state.programs
    return {
        d: NEWCOMER if survey and f.start == NEWCOMER else trained_key(state, d)
        for d, f in state.flights.items()
    }


def fill(state: RunState, at_s: float, rested: bool = True) -> Step:
    """Ask devices until as many are at work as there should be. `rested`: not those that declined
    or missed their last plans."""
    if not is_buffered(state) or state.idle:
        return state, []
    at_work = sum(is_awaited(state, state.devices[d], at_s) for d in state.flights)
    free = (
        Buffer(state.settings.buffer, state.settings.concurrency).at_work(num_trainers(state))
        - at_work
    )
    if free <= 0:
        return state, []
    found = [
        device_id
        for device_id, device in state.devices.items()
        if device.online
        and device_id not in state.cohort
        and (device.rests_until <= state.round or not rested)
        and may_be_asked(state, device, at_s)
    ]
    if not found:
        return state, []
    device_ids = drawn(found, free, round_seed(state.settings, state.round))
    hours = read_hours(state.settings.hours)
    until_s = min(at_s + state.settings.deadline_s, hours.closes_s(at_s) if hours else float("inf"))
    state = note_asked(state, device_ids, at_s)
    state = replace(
        state,
        cohort=state.cohort | {d: key_now(state, d) for d in device_ids},
        asked=state.asked + len(device_ids),
    )
    flights = {
        d: Flight(
            round=state.round,
            attempt=state.attempt,
            start=state.cohort[d],
            model=state.models[state.cohort[d]],
            verbs=verbs_for(state, d),
            deadline_at_s=until_s,
        )
        for d in device_ids
    }
    state = replace(state, flights=state.flights | flights)
    return state, [
        SetDeadline(state.round, until_s),
        *(SendPlan(plan_for(state, d)) for d in device_ids),
    ]


def landed(state: RunState, device_ids: Collection[str]) -> RunState:
    """The state in which these devices are not in flight any more."""
    if state.flights.keys().isdisjoint(device_ids):
        return state
    return replace(
        state, flights={d: flight for d, flight in state.flights.items() if d not in device_ids}
    )


def without_plans(state: RunState, device_ids: Collection[str]) -> RunState:
    """The state in which the round waits for nothing of these devices."""
    cohort = {d: start for d, start in state.cohort.items() if d not in device_ids}
    return replace(landed(state, device_ids), cohort=cohort)


def given_up(state: RunState, at_s: float) -> RunState:
    """The state without the plans whose deadline is over."""
    over = sorted(d for d, flight in state.flights.items() if flight.deadline_at_s <= at_s)
    for device_id in over:
        state = with_device(
            state, device_id, absent(failed(state, device_id), at_s, state.settings.grace_s)
        )
    return without_plans(state, over) if over else state
