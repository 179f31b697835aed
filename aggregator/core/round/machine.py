"""The round as a state machine: ``step(state, event) -> (state, commands)``. Pure: the same events
give the same run.

A run is always in one of six phases. A round is open in three of them, while devices work on their
plans:

* *waiting*: fewer than `min_devices` devices have been online at a time; no round has been opened.
* *preparing*: a round is open that an algorithm needs before the rounds of training; it does not
  count as one.
* *training*: a round of training is open.
* *aggregating*: the round is closed; the algorithm computes the next models from the updates that
  were received.
* *evaluating*: once a budget is spent (`aggregator.core.budget`) every device tests its final
  model.
* *finished*: the run is over; a device that checks in is given its model, once it has chosen what
  it keeps (`aggregator.core.round.closings`).

An open round is closed when the update of every device that it waits for has been received, or by
its deadline. It waits for the devices of its cohort that are online, and for one that was lost for
`grace_s` seconds; within these a lost device is also invited to a next round. The update of a lost
device counts whenever it comes before the round is closed. Devices of which no update has ever been
accepted are waited for only twice as long as the others took (at least for `grace_s`), once there
are others.

No round of training is closed with fewer than `min_updates` updates. A deadline by which there are
fewer opens the same round again, as another *attempt*: what was received stays. So does the loss of
updates that were safe. Where a budget is spent by then, the evaluation follows instead. An
evaluation is over at its deadline.

A device that misses a deadline is taken for absent until it is heard. One that misses or declines
its plans round after round is asked in the next round, then in every second one, every fourth, up
to every 64th; an accepted update ends that.

A device that says that its data have moved takes part in the next round of training as a newcomer,
where newcomers do something of their own: it is surveyed and placed again. It has not moved any
more once a round to which its update contributed is over.

A device that checks in while a round is open gets its plan if it is in the cohort and its update
has not been received. A device that is new takes part from the next round on, or at once if the
round is short of devices. A device that declines its plan, or that has too few labels by now to
train, leaves the cohort, and that attempt does not ask it again. A round that becomes short of
devices, since one declined, was banned or forgotten, or its grace is over, asks others at once: as
many as it lacks of those that are online and were not asked. They have until the round's deadline.

Who is asked follows from the settings: devices that are *eligible* (`where`), as many as the policy
of `aggregator.core.round.cohort` says, each at most once in `pace_s` seconds, and in the `hours`
alone. With a `cohort` a round is over when it has so many updates. A round that may ask nobody is
*idle*: it looks again when somebody may be asked. In a *buffered* run plans outlive their rounds
(`aggregator.core.round.flights`). Devices without labels train in no round: they are asked what
their inputs are like (`aggregator.core.round.inputs`).

`TRANSITIONS` says what each event does in each phase, by the name of a function below, or in
`aggregator.core.round.orders`, `aggregator.core.round.membership`,
`aggregator.core.round.dismissal` or `aggregator.core.round.closings`. A dash is an event that is
ignored: the state stays, and nothing is commanded. *open* stands for preparing, training and
evaluating.

================== ============ ============= =============== ============
event              waiting      open          aggregating     finished
================== ============ ============= =============== ============
DeviceCheckedIn    open_first   send_plan     come            dismiss
DeviceHeard        open_first   send_plan     come            hear
KeptChanged        -            heed          heed            heed
EligibilityChanged select       select        select          select
DeviceBarred       bar          bar           bar             bar
DeviceForgotten    forget       forget        forget          forget
DeviceLost         lose         lose          lose            lose
UpdateAdmitted     -            receive       -               receive_late
DeviceDeclined     -            excuse        -               excuse_late
DeadlinePassed     -            expire        -               expire_late
RoundAggregated    -            -             advance         -
UpdatesLost        -            ask_again     ask_again       -
RolledBack         -            roll_back     roll_back       replace_all
Retuned            retune_idle  retune        retune          retune_idle
Aborted            end          end           end             -
Resumed            take_epoch   command_again aggregate_again dismiss_all
================== ============ ============= =============== ============

`Started` is no part of the table: it makes the state, and comes once. An event of a round that is
no longer the latest changes nothing.
"""

from collections.abc import Callable, Mapping
from typing import Any, get_args

from msgspec.structs import replace

from aggregator.core.budget import measured
from aggregator.core.plan import can_train, place_of_plan, plan_for
from aggregator.core.round import closings, dismissal, flights, inputs, membership, orders
from aggregator.core.round.asking import (
    absent,
    failed,
    is_missing,
    next_look,
    num_trainers,
    with_device,
)
from aggregator.core.round.opening import (
    Step,
    close,
    close_if_full,
    join,
    lacks_updates,
    may_join,
    open_again_or_evaluate,
    open_next,
)
from aggregator.core.state import (
    Aborted,
    DeadlinePassed,
    Device,
    DeviceCheckedIn,
    DeviceDeclined,
    DeviceHeard,
    DeviceLost,
    Event,
    KeptChanged,
    OpenPhase,
    Phase,
    Resumed,
    Retuned,
    RolledBack,
    RoundAggregated,
    RunState,
    SendPlan,
    SetDeadline,
    Started,
    UpdateAdmitted,
    UpdatesLost,
)
from aggregator.core.versions import taken_over
from algorithms.core.keys import NEWCOMER
from wire.messages import Acknowledge

OPEN: tuple[OpenPhase, ...] = get_args(OpenPhase)

Transition = Callable[[RunState, Any], Step]
"""What an event does in a phase. Its second argument is an event of the type under which it stands
in `TRANSITIONS`."""


def step(state: RunState | None, event: Event) -> Step:
    """The state after an event, and what is to be done about it.

    Raises:
        ValueError: a run is started twice, or something happens before it is started.
    """
    if isinstance(event, Started):
        if state is not None:
            raise ValueError("a run starts once")
        begun = RunState(
            settings=event.settings,
            epoch=event.epoch,
            started_at_s=event.at_s,
            at_s=event.at_s,
            models=event.models,
            memory=event.memory,
            programs=event.programs,
            starts=event.starts,
            preparing=event.preparing,
        )
        return begun, []
    if state is None:
        raise ValueError(f"{type(event).__name__} before the run has started")
    transition = TRANSITIONS[state.phase].get(type(event))
    if transition is None:
        return state, []
    after, commands = transition(state, event)
    after, asked = flights.fill(after, event.at_s)
    commands = [*commands, *asked]
    return (
        after if after is state or event.at_s <= after.at_s else replace(after, at_s=event.at_s)
    ), commands


# Transitions: a device comes, goes, answers.


def _come(state: RunState, event: DeviceCheckedIn | DeviceHeard) -> Step:
    """Remember that the device is there, and what it says of itself."""
    known = state.devices.get(event.device_id)
    if isinstance(event, DeviceCheckedIn):
        known = replace(
            known or Device(num_train=0, num_test=0, online=True, last_seen_s=0.0),
            num_train=event.num_train,
            num_test=event.num_test,
            runtime=event.runtime,
            bundle=event.bundle,
            moved=event.moved or (known is not None and known.moved),
            eligible=event.eligible,
            encodings=event.encodings,
            untested=event.untested,
            withholds=event.withholds
            or (known is not None and known.withholds and is_missing(state, event.device_id)),
            barred=False,
            terms=event.terms,
            closings=known.closings if known is not None and known.terms == event.terms else 0,
            losses=known.losses if known is not None and known.terms == event.terms else 0,
        )
    if known is None:
        return state, []
    state = with_device(state, event.device_id, replace(known, online=True, last_seen_s=event.at_s))
    return inputs.seen(state, event.device_id, known.moved) if isinstance(
        event, DeviceCheckedIn
    ) else state, []


def _open_first(state: RunState, event: DeviceCheckedIn | DeviceHeard) -> Step:
    """Open the first round if enough devices are online now."""
    state, _ = _come(state, event)
    if num_trainers(state) < state.settings.min_devices:
        return state, []
    return open_next(state, event.at_s)


def _send_plan(state: RunState, event: DeviceCheckedIn | DeviceHeard) -> Step:
    """Send the device its plan if the round waits for it: it may not have got it. A round that is
    short of devices takes it in."""
    state, _ = _come(state, event)
    device_id = event.device_id
    if (
        state.phase != "evaluating"
        and is_missing(state, device_id)
        and not can_train(state, state.devices[device_id])
    ):
        # it is asked what its inputs are like in the next attempt: it would take two plans of one
        # for the same
        state = replace(state, declined=(*state.declined, device_id))
        return close_if_full(flights.without_plans(state, [device_id]), event.at_s)
    if may_join(state, device_id, event.at_s):
        state = join(state, [device_id], event.at_s)
    if is_missing(state, device_id) or device_id in state.placing:
        return state, [SendPlan(plan_for(state, device_id))]
    return inputs.ask(state, [device_id] if device_id in state.devices else [], event.at_s)


def _dismiss(state: RunState, event: DeviceCheckedIn) -> Step:
    """Ask the device to choose what it keeps, or say that the run is over and which model is the
    device's own."""
    state, _ = _come(closings.as_held(state, event.device_id, event.held), event)
    return dismissal.answer(state, event.device_id, event.at_s)


def _hear(state: RunState, event: DeviceHeard) -> Step:
    """Ask the device once more what it keeps, if the time for that came while it was taken for
    absent."""
    state, _ = _come(state, event)
    return closings.ask_again(state, event.at_s)


def _lose(state: RunState, event: DeviceLost) -> Step:
    """Remember that the device is not online, and since when. If the open round waits for it, look
    at the round again when the device's grace is over."""
    device = state.devices.get(event.device_id)
    if device is not None:
        away = replace(device, online=False, last_seen_s=event.at_s)
        state = with_device(state, event.device_id, away)
    waits = is_missing(state, event.device_id) or event.device_id in state.placing
    if state.phase not in OPEN or not waits:
        return state, []
    grace_ends_s = event.at_s + state.settings.grace_s
    return state, [SetDeadline(state.round, min(state.deadline_at_s, grace_ends_s))]


def _receive(state: RunState, event: UpdateAdmitted) -> Step:
    """Count the update, once and by the plan that the device has, and acknowledge it in any
    case."""
    device_id, acknowledge = event.device_id, Acknowledge(event.device_id, event.update.blob)
    if device_id in state.placing:
        state, commands = close_if_full(inputs.told(state, event), event.at_s)
        return state, [acknowledge, *commands]
    number, _ = place_of_plan(state, device_id)
    given_up = flights.is_buffered(state) and device_id not in state.flights
    if event.round != number or device_id in state.received or given_up:
        return state, [acknowledge]
    device = replace(
        state.devices[device_id], accepted=event.update.blob, failures=0, rests_until=0
    )
    update = (
        replace(event.update, staleness=state.round - number)
        if number != state.round
        else event.update
    )
    state = replace(
        with_device(state, device_id, device), received={**state.received, device_id: update}
    )
    state = flights.landed(state, [device_id])
    state, commands = close_if_full(state, event.at_s)
    return state, [acknowledge, *commands]


def _excuse(state: RunState, event: DeviceDeclined) -> Step:
    """Take the device out of the cohort, unless its update has been received; a round that is short
    of devices then asks others."""
    if event.device_id in state.placing:
        return close_if_full(inputs.declined(state, event), event.at_s)
    if event.round != state.round or not is_missing(state, event.device_id):
        return state, []
    if event.forbidden and state.phase != "evaluating":
        state = inputs.withheld(state, event.device_id)
    if event.failed:
        state = with_device(state, event.device_id, failed(state, event.device_id))
    elif flights.is_buffered(state):  # else it would be asked again at once
        device = state.devices[event.device_id]
        state = with_device(
            state,
            event.device_id,
            replace(device, rests_until=max(device.rests_until, state.round + 1)),
        )
    state, looks = (
        closings.later(state, event.device_id, event.at_s)
        if event.again and state.phase == "evaluating"
        else (state, [])
    )
    state = flights.without_plans(
        replace(state, declined=(*state.declined, event.device_id)), [event.device_id]
    )
    state, commands = close_if_full(state, event.at_s)
    return state, [*looks, *commands]


# Transitions: time passes, the algorithm has been applied, updates are lost.


def _expire(state: RunState, event: DeadlinePassed) -> Step:
    """Close the round, or open it again if too few have answered. Before the round's own deadline,
    somebody's grace is over."""
    if event.round != state.round:
        return state, []
    state = inputs.given_up(state, event.at_s)
    if flights.is_buffered(state):
        return _look(state, event)
    if event.at_s < state.deadline_at_s:
        return close_if_full(state, event.at_s)
    if state.idle:
        return open_again_or_evaluate(state, event.at_s)
    for device_id in [d for d in state.cohort if is_missing(state, d)]:
        state = with_device(
            state, device_id, absent(failed(state, device_id), event.at_s, state.settings.grace_s)
        )
    if state.phase != "evaluating" and lacks_updates(state):
        return open_again_or_evaluate(state, event.at_s)
    return close(state, event.at_s)


def _look(state: RunState, event: DeadlinePassed) -> Step:
    """Give up plans in flight that are overdue; then, by the round's own deadline, close it with
    what there is, or look again."""
    state = flights.given_up(state, event.at_s)
    if event.at_s < state.deadline_at_s:
        state, commands = close_if_full(state, event.at_s)
        return state, [*next_look(state, state.flights), *commands]
    if state.idle or lacks_updates(state):
        return open_again_or_evaluate(state, event.at_s)
    return close(state, event.at_s)


def _advance(state: RunState, event: RoundAggregated) -> Step:
    """Take over the new models, and open the next round or, after the last round of training, the
    evaluation."""
    if event.round != state.round:
        return state, []
    if state.retuned is not None:
        state = replace(state, settings=state.retuned, retuned=None)
    state = state if state.preparing else measured(state)
    changed_nothing = (
        event.made_in is not None
    )  # such a preparation counts too: a run must not prepare for ever
    trained = state.trained + (not state.preparing or changed_nothing)
    if (
        changed_nothing and event.made_in != state.made_in
    ):  # what is in flight started from models that are given up
        state = replace(state, flights={})
    took_part = () if changed_nothing else sorted(state.received.keys() - set(event.left_out))
    for device_id in took_part:  # who was surveyed as a newcomer has not moved
        device = state.devices[device_id]
        if device.moved and state.received[device_id].start == NEWCOMER:
            state = with_device(state, device_id, replace(device, moved=False))
    return open_next(
        replace(taken_over(state, event), trained=trained, preparing=event.preparing), event.at_s
    )


_OPEN_ROUND: Mapping[type[Event], Transition] = {
    DeviceCheckedIn: _send_plan,
    DeviceHeard: _send_plan,
    KeptChanged: closings.heed,
    **membership.TRANSITIONS,
    DeviceLost: _lose,
    UpdateAdmitted: _receive,
    DeviceDeclined: _excuse,
    DeadlinePassed: _expire,
    UpdatesLost: orders.ask_again,
    RolledBack: orders.roll_back,
    Retuned: orders.retune,
    Aborted: orders.end,
    Resumed: orders.command_again,
}
TRANSITIONS: Mapping[Phase, Mapping[type[Event], Transition]] = {
    "waiting": {
        DeviceCheckedIn: _open_first,
        DeviceHeard: _open_first,
        **membership.TRANSITIONS,
        DeviceLost: _lose,
        Retuned: orders.retune_idle,
        Aborted: orders.end,
        Resumed: orders.take_epoch,
    },
    "preparing": _OPEN_ROUND,
    "training": _OPEN_ROUND,
    "aggregating": {
        DeviceCheckedIn: _come,
        DeviceHeard: _come,
        KeptChanged: closings.heed,
        **membership.TRANSITIONS,
        DeviceLost: _lose,
        RoundAggregated: _advance,
        UpdatesLost: orders.ask_again,
        RolledBack: orders.roll_back,
        Retuned: orders.retune,
        Aborted: orders.end,
        Resumed: orders.aggregate_again,
    },
    "evaluating": _OPEN_ROUND,
    "finished": {
        DeviceCheckedIn: _dismiss,
        DeviceHeard: _hear,
        KeptChanged: closings.heed,
        **membership.TRANSITIONS,
        DeviceLost: _lose,
        UpdateAdmitted: dismissal.receive_late,
        DeviceDeclined: dismissal.excuse_late,
        DeadlinePassed: dismissal.expire_late,
        RolledBack: dismissal.replace_all,
        Retuned: orders.retune_idle,
        Resumed: dismissal.dismiss_all,
    },
}
"""What each event does in each phase; an event that is not there is ignored."""
