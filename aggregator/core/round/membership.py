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
    RunState,
)
from wire.messages import Digest


def select(state: RunState, event: EligibilityChanged) -> Step:
    """Remember who may be asked. Who works on a plan of the open round goes on with it; before the
    first round, open that if enough devices may be asked now."""
    changed = dict.fromkeys(event.excluded, False) | dict.fromkeys(event.included, True)
    for device_id, eligible in sorted(changed.items()):
        device = state.devices.get(device_id)
        if device is not None:
            state = with_device(state, device_id, replace(device, eligible=eligible, barred=False))
    if state.phase != "waiting" or num_trainers(state) < state.settings.min_devices:
        return state, []
    return open_next(state, event.at_s)


def bar(state: RunState, event: DeviceBarred) -> Step:
    """Ask the device for nothing from now on, and take it out of the latest round, with what it has
    sent for it, unless the run is over."""
    device = state.devices.get(event.device_id)
    if device is not None:
        away = replace(device, online=False, eligible=False, barred=True)
        state = with_device(state, event.device_id, away)
    if state.phase in ("waiting", "finished"):
        return closings.without(state, event.device_id), []
    return _go_on(_without(state, event.device_id), event.at_s)


def forget(state: RunState, event: DeviceForgotten) -> Step:
    """Remember nothing of the device; the latest round goes on without it."""
    if event.device_id in state.devices:
        state = without_count(state, event.device_id)
        state = replace(state, devices=state.devices.delete(event.device_id))
    state = inputs.forgotten(_without(state, event.device_id), event.device_id)
    state = replace(
        state,
        models=_models(state.models, event),
        memory=event.memories.get(state.memory, state.memory),
        starts=others(state.starts, event.device_id),
        programs=others(state.programs, f"device:{event.device_id}"),
        made_by=tuple(d for d in state.made_by if d != event.device_id),
        declined=tuple(d for d in state.declined if d != event.device_id),
        history=tuple(
            replace(
                version,
                models=_models(version.models, event),
                memory=event.memories.get(version.memory, version.memory),
                starts=others(version.starts, event.device_id),
                programs=others(version.programs, f"device:{event.device_id}"),
                evaluated=others(version.evaluated, event.device_id),
            )
            for version in state.history
        ),
    )
    return _go_on(state, event.at_s)


def _go_on(state: RunState, at_s: float) -> Step:
    """Go on without a device: an open round may be full now, and a closed one that has too few
    updates is opened again."""
    if state.phase in ("waiting", "finished"):
        return state, []
    if state.phase != "aggregating":
        return close_if_full(state, at_s)
    if state.received and not lacks_updates(state):
        return state, []
    return open_again(replace(state, phase=next_phase(state)), state.received, at_s)


def _without(state: RunState, device_id: str) -> RunState:
    state = replace(
        flights.without_plans(state, [device_id]), received=others(state.received, device_id)
    )
    return closings.without(replace(state, placing=others(state.placing, device_id)), device_id)


def _models(models: Mapping[str, Digest], event: DeviceForgotten) -> dict[str, Digest]:
    return {key: digest for key, digest in models.items() if digest not in event.own}


TRANSITIONS: Mapping[type[Event], Callable[[RunState, Any], Step]] = {
    EligibilityChanged: select,
    DeviceBarred: bar,
    DeviceForgotten: forget,
}
"""In every phase of a run, what each of these events does."""
