"""Transitions of a run by what becomes of a device: it may be asked or not, it is banned, it is
forgotten. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from aggregator.core.round import closings, flights, inputs
from aggregator.core.round.asking import num_trainers, others, with_device, without_count
from aggregator.core.round.opening import (
    Step,
    close_if_full,
    lacks_updates,
    next_phase,
    open_again,
    open_next,
)
from aggregator.core.state import (
    DeviceBarred,
    DeviceForgotten,
    EligibilityChanged,
    Event,
    ModelVersion,
    RunState,
)
from wire.messages import Digest


def select(state: RunState, event: EligibilityChanged) -> Step:
    """Remember who may be asked. Who works on a plan of the open round goes on with it."""
    changed = dict.fromkeys(event.excluded, False) | dict.fromkeys(event.included, True)
    for device_id, eligible in sorted(changed.items()):
        device = state.devices.get(device_id)
        if device is not None:
            state = with_device(state, device_id, replace(device, eligible=eligible, barred=False))
    return state, []


def select_first(state: RunState, event: EligibilityChanged) -> Step:
    """Open the first round if enough devices may be asked now."""
    state, _ = select(state, event)
    if num_trainers(state) < state.settings.min_devices:
        return state, []
    return open_next(state, event.at_s)


def bar_idle(state: RunState, event: DeviceBarred) -> Step:
    """Ask the device for nothing from now on."""
    device = state.devices.get(event.device_id)
    if device is None:
        return state, []
    state = closings.without(state, event.device_id)
    return with_device(
        state, event.device_id, replace(device, online=False, eligible=False, barred=True)
    ), []


def bar(state: RunState, event: DeviceBarred) -> Step:
    """Take the device out of the open round, with what it has sent for it."""
    state, _ = bar_idle(state, event)
    return close_if_full(_without(state, event.device_id), event.at_s)


def bar_closed(state: RunState, event: DeviceBarred) -> Step:
    """Take the device's update out of the closed round; one that has too few then is opened
    again."""
    state, _ = bar_idle(state, event)
    return _reopened_if_short(_without(state, event.device_id), event.at_s)


def forget_idle(state: RunState, event: DeviceForgotten) -> Step:
    """Remember nothing of the device."""
    if event.device_id in state.devices:
        state = without_count(state, event.device_id)
        state = replace(state, devices=state.devices.delete(event.device_id))
    state = inputs.forgotten(_without(state, event.device_id), event.device_id)
    return replace(
        state,
        models=_models(state.models, event),
        memory=event.memories.get(state.memory, state.memory),
        starts=others(state.starts, event.device_id),
        programs=others(state.programs, f"device:{event.device_id}"),
        made_by=tuple(d for d in state.made_by if d != event.device_id),
        declined=tuple(d for d in state.declined if d != event.device_id),
        history=tuple(_version(version, event) for version in state.history),
    ), []


def forget(state: RunState, event: DeviceForgotten) -> Step:
    """Remember nothing of the device; the open round goes on without it."""
    state, _ = forget_idle(state, event)
    return close_if_full(state, event.at_s)


def forget_closed(state: RunState, event: DeviceForgotten) -> Step:
    """Remember nothing of the device; a closed round that has too few updates then is opened
    again."""
    state, _ = forget_idle(state, event)
    return _reopened_if_short(state, event.at_s)


def _without(state: RunState, device_id: str) -> RunState:
    state = replace(
        flights.without_plans(state, [device_id]), received=others(state.received, device_id)
    )
    return closings.without(replace(state, placing=others(state.placing, device_id)), device_id)


def _reopened_if_short(state: RunState, at_s: float) -> Step:
    if state.received and not lacks_updates(state):
        return state, []
    return open_again(replace(state, phase=next_phase(state)), state.received, at_s)


def _models(models: Mapping[str, Digest], event: DeviceForgotten) -> dict[str, Digest]:
    return {key: digest for key, digest in models.items() if digest not in event.own}


def _version(version: ModelVersion, event: DeviceForgotten) -> ModelVersion:
    return replace(
        version,
        models=_models(version.models, event),
        memory=event.memories.get(version.memory, version.memory),
        starts=others(version.starts, event.device_id),
        programs=others(version.programs, f"device:{event.device_id}"),
        evaluated=others(version.evaluated, event.device_id),
    )


Table = Mapping[type[Event], Callable[[RunState, Any], Step]]

WAITING: Table = {
    EligibilityChanged: select_first,
    DeviceBarred: bar_idle,
    DeviceForgotten: forget_idle,
}
OPEN: Table = {EligibilityChanged: select, DeviceBarred: bar, DeviceForgotten: forget}
AGGREGATING: Table = {
    EligibilityChanged: select,
    DeviceBarred: bar_closed,
    DeviceForgotten: forget_closed,
}
FINISHED: Table = {EligibilityChanged: select, DeviceBarred: bar_idle, DeviceForgotten: forget_idle}
"""By phase of a run, what each of these events does."""
