"""Transitions of a run that is over: every device is told which model is its own, once it has
chosen what it keeps. Pure.

Of several campaigns, devices have the models of the one that came to its end last. A campaign comes
to its *end* when its evaluation is over; one that is aborted does not, and gives no models. What
devices have of one that came to its end and was resumed and aborted later, they keep. A device that
a campaign does not take (`where`) has the models of the one that ended before it.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from aggregator.core.plan import plan_for
from aggregator.core.round import closings, inputs
from aggregator.core.round.asking import with_device
from aggregator.core.round.opening import Step, acknowledgements, finish_command, finish_commands
from aggregator.core.state import (
    DeadlinePassed,
    DeviceDeclined,
    Resumed,
    RolledBack,
    RunState,
    SendPlan,
    UpdateAdmitted,
)
from aggregator.core.versions import returned
from wire.messages import Acknowledge


def answer(state: RunState, device_id: str, at_s: float) -> Step:
    """To a device that has checked in: the plan by which it chooses what it keeps, where that is
    due; else which model is its own."""
    if not closings.is_due(state, device_id):
        state = closings.without(state, device_id)
        return state, [finish_command(state, device_id)]
    if device_id in state.closings and closings.is_as_now(state, device_id):
        return state, [SendPlan(plan_for(state, device_id))]
    state, commands = closings.ask(closings.without(state, device_id), [device_id], at_s)
    return state, commands or [finish_command(state, device_id)]


def receive_late(state: RunState, event: UpdateAdmitted) -> Step:
    """Remember what the device keeps, acknowledge its update in any case, and tell it which model
    is its own."""
    device_id, acknowledge = event.device_id, Acknowledge(event.device_id, event.update.blob)
    flight = state.closings.get(device_id)
    if flight is None or event.round != flight.round:
        return state, [acknowledge]
    state = closings.without(state, device_id)
    if closings.tells(state, flight):
        state, commands = answer(closings.told(state, event), device_id, event.at_s)
        return state, [acknowledge, *commands]
    device = replace(state.devices[device_id], accepted=event.update.blob, closings=0)
    state = with_device(state, device_id, device)
    state = replace(state, received={**state.received, device_id: event.update})
    return state, [acknowledge, finish_command(state, device_id)]


def excuse_late(state: RunState, event: DeviceDeclined) -> Step:
    """Tell a device that does not choose which model is its own."""
    flight = state.closings.get(event.device_id)
    if flight is None or event.round != flight.round:
        return state, []
    if event.forbidden and closings.tells(state, flight):
        return answer(
            inputs.withheld(closings.without(state, event.device_id), event.device_id),
            event.device_id,
            event.at_s,
        )
    state = closings.in_vain(state, event.device_id, for_good=event.failed and not event.again)
    state, looks = (
        closings.later(state, event.device_id, event.at_s) if event.again else (state, [])
    )
    return state, [*looks, finish_command(state, event.device_id)]


def expire_late(state: RunState, event: DeadlinePassed) -> Step:
    """Give up the late closings whose time is over, and ask those again that failed some time ago.
    Who is away is told nothing: it is asked when it comes back."""
    over = sorted(d for d, flight in state.closings.items() if flight.deadline_at_s <= event.at_s)
    for device_id in over:
        state = closings.in_vain(state, device_id, for_good=False)
    told = [finish_command(state, d) for d in over if state.devices[d].online]
    state, asked = closings.ask_again(state, event.at_s)
    return state, [*(asked or closings.next_look(state)), *told]


def dismiss_all(state: RunState, event: Resumed) -> Step:
    """Every device's model, and the late closings of those that are there."""
    state = replace(state, epoch=event.epoch)
    plans = [
        SendPlan(plan_for(state, d)) for d in sorted(state.closings) if state.devices[d].online
    ]
    return state, [
        *closings.next_look(state),
        *plans,
        *acknowledgements(state),
        *finish_commands(state),
    ]


def replace_all(state: RunState, event: RolledBack) -> Step:
    """Give every device its model of an earlier round, once it has chosen anew what it keeps of
    that; nobody gets one of a run that was aborted. The epoch is a greater one, so that nobody can
    offer the later models again."""
    after = returned(state, event.to, event.programs)
    if after is None:
        return state, []
    after = closings.anew(replace(after, epoch=after.epoch + 1))
    after, commands = closings.ask_all(after, event.at_s)
    return after, [*commands, *finish_commands(after)] if after.ended != "order" else []


def by_end(states: Mapping[str, RunState]) -> list[str]:
    """The campaigns that have come to their end, the last one first, from all in the order of their
    starts."""
    over = [name for name, state in states.items() if state.ended_at_s is not None]
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
