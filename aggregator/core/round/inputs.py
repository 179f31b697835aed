"""Devices without labels: each is asked once what its inputs are like, and placed in the group that
they say. Pure.

A device with fewer labelled windows than training takes (`aggregator.core.plan.can_train`) is in no
cohort of a round of training: nobody waits for it, and it does not count among devices or updates.
Where the algorithm can place it by its inputs, its programs have a plan for it under
``unlabelled``. The device is given that plan while a round is open, and it may take longer than the
round. What it tells is kept (`RunState.inputs`) and averaged with nothing. When a round is over it
is placed by that (`aggregator.aggregation.placing`), and again whenever the fleet has other groups;
the device need not be asked for it again.

The last round of training waits for such plans, as it waits for newcomers. Who comes after it is
asked and placed when the run is over (`aggregator.core.round.closings`). A device that has told
nothing yet, since it has no windows or failed, is asked again, less and less often. One whose owner
does not permit it is not.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from aggregator.core.plan import can_train, plan_for, round_seed
from aggregator.core.round.asking import absent, failed, others, with_device
from aggregator.core.round.cohort import drawn
from aggregator.core.round.hours import read_hours
from aggregator.core.state import (
    Command,
    Device,
    DeviceDeclined,
    Flight,
    RunState,
    SendPlan,
    SetDeadline,
    Told,
    UpdateAdmitted,
)
from algorithms.core.keys import NEWCOMER, UNLABELLED


def ask(state: RunState, device_ids: Iterable[str], at_s: float) -> tuple[RunState, list[Command]]:
    """Ask those of these devices that can be placed by their inputs and have not told of them; as
    many at a time as a round trains."""
    verbs = state.programs.get(UNLABELLED, ())
    if not verbs or state.idle or state.phase not in ("preparing", "training"):
        return state, []
    found = [d for d in device_ids if _is_to_tell(state, d, state.devices[d])]
    most = state.settings.cohort or state.settings.concurrency or state.settings.buffer
    if most:
        found = drawn(
            found, max(0, most - len(state.placing)), round_seed(state.settings, state.round)
        )
    if not found:
        return state, []
    hours = read_hours(state.settings.hours)
    until_s = min(at_s + state.settings.deadline_s, hours.closes_s(at_s) if hours else float("inf"))
    flight = Flight(
        round=state.round,
        attempt=state.attempt,
        start=NEWCOMER,
        model=state.models[NEWCOMER],
        verbs=verbs,
        deadline_at_s=until_s,
    )
    for device_id in found:
        state = with_device(
            state, device_id, replace(state.devices[device_id], inputs_in=state.round)
        )
    state = replace(state, placing=state.placing | dict.fromkeys(found, flight))
    return state, [
        SetDeadline(state.round, until_s),
        *(SendPlan(plan_for(state, d)) for d in sorted(found)),
    ]


def _is_to_tell(state: RunState, device_id: str, device: Device) -> bool:
    return (
        device.online
        and device.eligible
        and not device.untold
        and device.rests_until <= state.round
        and device.inputs_in != state.round
        and not can_train(state, device)
        and device_id not in state.inputs
        and device_id not in state.placing
        and device_id not in state.cohort
        and device_id not in state.declined
    )


def told(state: RunState, event: UpdateAdmitted) -> RunState:
    """The state once a device has told of its inputs, or that there is nothing to be told."""
    device_id, update = event.device_id, event.update
    if state.placing[device_id].round != event.round:
        return state
    device = replace(state.devices[device_id], accepted=update.blob, moved=False)
    state = with_device(_without_plan(state, device_id), device_id, device)
    if not update.norms:
        return with_device(state, device_id, failed(state, device_id))
    return noted(with_device(state, device_id, replace(device, failures=0, rests_until=0)), event)


def noted(state: RunState, event: UpdateAdmitted) -> RunState:
    """The state that knows what a device has told of its inputs."""
    update = event.update
    said = Told(
        blob=update.blob, round=state.round, bytes_up=update.bytes_up, bytes_down=update.bytes_down
    )
    return replace(state, inputs=state.inputs | {event.device_id: said})


def declined(state: RunState, event: DeviceDeclined) -> RunState:
    """The state once a device does not tell of its inputs."""
    state = _without_plan(state, event.device_id)
    if event.forbidden:
        return withheld(state, event.device_id)
    return (
        with_device(state, event.device_id, failed(state, event.device_id))
        if event.failed
        else state
    )


def withheld(state: RunState, device_id: str) -> RunState:
    """The state once a device's owner does not permit what would place it. As long as it is in no
    group, it belongs where devices do of which nothing is known, also if it has labels and could
    train."""
    return with_device(state, device_id, replace(state.devices[device_id], untold=True))


def seen(state: RunState, device_id: str, moved: bool) -> RunState:
    """The state once a device has checked in. Its inputs do not matter if it can train now; if they
    are others, it is asked anew."""
    if can_train(state, state.devices[device_id]):
        return forgotten(state, device_id)
    return (
        replace(state, inputs=others(state.inputs, device_id))
        if moved and device_id in state.inputs
        else state
    )


def forgotten(state: RunState, device_id: str) -> RunState:
    """The state in which nothing is known of a device's inputs, and nobody waits for that."""
    state = _without_plan(state, device_id)
    if device_id in state.inputs or device_id in state.placed:
        state = replace(
            state, inputs=others(state.inputs, device_id), placed=others(state.placed, device_id)
        )
    return state


def lost(state: RunState, device_ids: Iterable[str]) -> RunState:
    """The state once what these devices have told is lost: they are asked again."""
    gone = state.inputs.keys() & set(device_ids)
    for device_id in sorted(gone):
        state = with_device(state, device_id, replace(state.devices[device_id], accepted=""))
    return (
        replace(state, inputs={d: said for d, said in state.inputs.items() if d not in gone})
        if gone
        else state
    )


def given_up(state: RunState, at_s: float) -> RunState:
    """The state without the plans whose deadline is over."""
    for device_id in sorted(
        d for d, flight in state.placing.items() if flight.deadline_at_s <= at_s
    ):
        state = with_device(
            state, device_id, absent(failed(state, device_id), at_s, state.settings.grace_s)
        )
        state = _without_plan(state, device_id)
    return state


def _without_plan(state: RunState, device_id: str) -> RunState:
    return (
        replace(state, placing=others(state.placing, device_id))
        if device_id in state.placing
        else state
    )
