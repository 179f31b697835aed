"""Late closings: the plan after the last round, for devices that missed it. Pure.

A run whose devices choose what they keep asks them to in its evaluation. A device that was away
then, or declined, or came later, would be left with its group's model alone. So a run that has come
to its end asks such a device when it checks in, as the evaluation would have, and tells it only
afterwards which model is its own. What it sends counts for what it keeps and for its own accuracy,
and for nothing else. Plans of the evaluation that are still in work when it ends become late
closings as they are.

A device without labels that has told nothing of its inputs (`aggregator.core.round.inputs`) is
asked for that first, and placed by it; what it keeps is then made of the model of its group.

A device has *chosen* once it has sent such an update for the model that is its own, as long as it
does not say when it checks in that it holds nothing of that (`as_held`). It is asked at most
`MOST_ASKED` times in vain, once if it declines, until it says something else of itself
(`Device.terms`); one that failed at what may pass, such as a full disk, is asked again after
`deadline_s` seconds (`later`). It is asked no more once it has lost what it kept as often without
ever saying that it holds it. Each late closing is another attempt of the last round, so that no
device takes it for a plan that it has answered.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from aggregator.core.plan import can_train, closing_verbs, plan_for
from aggregator.core.round import asking
from aggregator.core.round.asking import is_missing, others, start_key, with_device
from aggregator.core.round.hours import read_hours
from aggregator.core.round.inputs import noted
from aggregator.core.state import (
    Command,
    Flight,
    KeptChanged,
    Received,
    RunState,
    Says,
    SendPlan,
    SetDeadline,
    UpdateAdmitted,
)
from algorithms.core.keys import NEWCOMER, UNLABELLED
from wire.messages import Choose, Metrics, Verb

MOST_ASKED = 3
"""So often is a device asked in vain, at most, as long as it says the same of itself; and so often
may it lose what it kept."""


def is_due(state: RunState, device_id: str) -> bool:
    """Whether a device is still to choose what it keeps, or to be placed, now that the run is
    over."""
    device = state.devices.get(device_id)
    if device is None or state.phase != "finished" or state.ended == "order":
        return False
    may = device.eligible and not device.barred and max(device.closings, device.losses) < MOST_ASKED
    if not may or _is_to_tell(state, device_id):
        return may
    if not state.settings.candidates:
        return False
    received, least = state.received.get(device_id), state.settings.min_batch
    # by its labels if it has any, on the model that is its own or that it has found to be
    has_chosen = (
        received is not None
        and not (can_train(state, device) and received.num_train < least)
        and (received.start == start_key(state, device_id) or _finds_its_model(state))
    )
    return not has_chosen


def _is_to_tell(state: RunState, device_id: str) -> bool:
    """Whether a device is to say what its inputs are like before anything else."""
    device = state.devices[device_id]
    can_be_placed = bool(state.programs.get(UNLABELLED)) and not can_train(state, device)
    return can_be_placed and not device.untold and device_id not in state.inputs


def tells(state: RunState, flight: Flight) -> bool:
    """Whether by this late closing a device says what its inputs are like."""
    return flight.verbs == state.programs.get(UNLABELLED)


def as_held(state: RunState, device_id: str, held: tuple[str, ...] | None) -> RunState:
    """The state by what a device says that it holds: one that no longer holds what it had chosen to
    keep has not chosen."""
    if device_id not in state.received or held is None:
        return state
    if _has_lost(state, device_id, held):
        return replace(_with_a_loss(state, device_id), received=others(state.received, device_id))
    device = state.devices[device_id]
    return with_device(state, device_id, replace(device, losses=0)) if device.losses else state


def left_of(state: RunState, device_id: str, says: Says) -> Received | None:
    """What is left, by what a device says, of what it has sent in the latest round: nothing if it
    has lost what it kept, else all but what its owner does not let it say any more."""
    if says.held is not None and _has_lost(state, device_id, says.held):
        return None
    said = state.received[device_id]
    too_few = 0 < said.evaluated.num_examples < says.min_windows
    if not too_few and not (says.withholds and said.kept is not None):
        return said
    return replace(
        said,
        kept=None if says.withholds else said.kept,
        evaluated=Metrics() if too_few else said.evaluated,
    )


def heed(state: RunState, event: KeptChanged) -> tuple[RunState, list[Command]]:
    """The state without what devices have lost, or may not say any more; those of them that are
    there and are to choose anew are asked."""
    left = {d: left_of(state, d, says) for d, says in event.devices.items() if d in state.received}
    if all(said == state.received[d] for d, said in left.items()):
        return state, []
    lost = [d for d, said in left.items() if said is None]
    for device_id in lost:
        state = _with_a_loss(state, device_id)
    state = replace(
        state,
        received={
            d: said for d, was in state.received.items() if (said := left.get(d, was)) is not None
        },
    )
    return ask(state, [d for d in lost if state.devices[d].online and is_due(state, d)], event.at_s)


def _has_lost(state: RunState, device_id: str, held: tuple[str, ...]) -> bool:
    """Whether a device that holds something of these models alone has lost what it had chosen."""
    if state.phase != "finished" or not state.settings.candidates:
        return False
    start = state.received[device_id].start
    keys = state.models.keys() if _finds_its_model(state) else {start} & state.models.keys()
    return {state.models[key] for key in keys}.isdisjoint(held)


def _with_a_loss(state: RunState, device_id: str) -> RunState:
    device = state.devices[device_id]
    return with_device(state, device_id, replace(device, losses=device.losses + 1))


def _finds_its_model(state: RunState) -> bool:
    return any(isinstance(verb, Choose) for verb in state.programs["closing"])


def is_as_now(state: RunState, device_id: str) -> bool:
    """Whether the plan that a device works on is the one that it would be given now."""
    flight = state.closings[device_id]
    return (flight.start, flight.verbs, flight.model) == (
        *_now(state, device_id),
        state.models[flight.start],
    )


def _now(state: RunState, device_id: str) -> tuple[str, tuple[Verb, ...]]:
    """The key of the model that a device would start from now, and what it would do."""
    if _is_to_tell(state, device_id):
        return NEWCOMER, state.programs[UNLABELLED]
    return start_key(state, device_id), closing_verbs(state, state.devices[device_id])


def ask(state: RunState, device_ids: Iterable[str], at_s: float) -> tuple[RunState, list[Command]]:
    """Give these devices the plan after the last round, if it is the hour to."""
    hours, found = read_hours(state.settings.hours), sorted(device_ids)
    if not found or (hours is not None and hours.opens_s(at_s) > at_s):
        return state, []
    state = replace(state, late=state.late + 1)
    state = _begun(state, {d: _now(state, d) for d in found}, at_s)
    return state, [*next_look(state), *(SendPlan(plan_for(state, d)) for d in found)]


def ask_all(state: RunState, at_s: float) -> tuple[RunState, list[Command]]:
    """Ask every device that is there and is to choose, but for those that work on it or have just
    declined to."""
    there = (
        d
        for d, device in state.devices.items()
        if device.online and d not in state.closings and d not in state.declined
    )
    return ask(state, [d for d in there if is_due(state, d)], at_s)


def left_open(state: RunState, at_s: float) -> tuple[RunState, list[Command]]:
    """The state at the end of an evaluation, in which devices go on with the plans that they have
    not answered."""
    open_now = [d for d in state.cohort if is_missing(state, d) and is_due(state, d)]
    missing = {d: (state.cohort[d], closing_verbs(state, state.devices[d])) for d in open_now}
    state = _begun(state, missing, at_s) if missing else state
    return state, next_look(state)


def _begun(
    state: RunState, asked: dict[str, tuple[str, tuple[Verb, ...]]], at_s: float
) -> RunState:
    hours = read_hours(state.settings.hours)
    until_s = min(at_s + state.settings.deadline_s, hours.closes_s(at_s) if hours else float("inf"))
    begun = {
        d: Flight(
            round=state.round,
            attempt=state.attempt + state.late,
            start=start,
            model=state.models[start],
            verbs=verbs,
            deadline_at_s=until_s,
        )
        for d, (start, verbs) in asked.items()
    }
    retries = {d: at_s for d, at_s in state.retries.items() if d not in begun}
    return replace(state, closings=state.closings | begun, retries=retries)


def told(state: RunState, event: UpdateAdmitted) -> RunState:
    """The state once a device has told of its inputs by a late closing. One that has none to tell
    of is asked no more until it says something else of itself."""
    device_id, device = event.device_id, state.devices[event.device_id]
    found = {device_id: event.placed} if event.placed is not None else {}
    asked = device.closings if event.update.norms else MOST_ASKED
    again = replace(device, accepted=event.update.blob, moved=False, closings=asked)
    state = replace(with_device(state, device_id, again), placed=state.placed | found)
    return noted(state, event) if event.update.norms else state


def in_vain(state: RunState, device_id: str, for_good: bool) -> RunState:
    """The state once a device has not carried out its late closing; `for_good`: it is not asked
    again until it says something else."""
    device = state.devices[device_id]
    asked = MOST_ASKED if for_good else device.closings + 1
    return with_device(without(state, device_id), device_id, replace(device, closings=asked))


def later(state: RunState, device_id: str, at_s: float) -> tuple[RunState, list[Command]]:
    """The state in which a device that has failed is asked again after a while, if it is still
    there and to choose then."""
    hours, again_s = read_hours(state.settings.hours), at_s + state.settings.deadline_s
    again_s = hours.opens_s(again_s) if hours else again_s
    return replace(state, retries={**state.retries, device_id: again_s}), [
        SetDeadline(state.round, again_s)
    ]


def ask_again(state: RunState, at_s: float) -> tuple[RunState, list[Command]]:
    """Ask the devices that are there and whose time has come to be asked again. One that is away is
    asked when it is heard."""
    now = {d for d, again_s in state.retries.items() if again_s <= at_s and state.devices[d].online}
    state = (
        replace(state, retries={d: again_s for d, again_s in state.retries.items() if d not in now})
        if now
        else state
    )
    return ask(state, [d for d in now if d not in state.closings and is_due(state, d)], at_s)


def without(state: RunState, device_id: str) -> RunState:
    """The state in which a device works on no late closing, and is to be asked for none again."""
    if device_id not in state.closings and device_id not in state.retries:
        return state
    return replace(
        state, closings=others(state.closings, device_id), retries=others(state.retries, device_id)
    )


def anew(state: RunState) -> RunState:
    """The state in which nobody has chosen, nor declined to, since the models are others."""
    devices = state.devices.mutate()
    for device_id, device in state.devices.items():
        if device.closings or device.losses:
            devices[device_id] = replace(device, closings=0, losses=0)
    return replace(
        state,
        devices=devices.finish(),
        cohort={},
        received={},
        declined=(),
        closings={},
        retries={},
    )


def next_look(state: RunState) -> list[Command]:
    """The time at which the next of these plans is to be given up, or a device asked again, if
    there is one."""
    retries = (again_s for again_s in state.retries.values() if again_s > state.at_s)
    return asking.next_look(state, state.closings, *retries)
