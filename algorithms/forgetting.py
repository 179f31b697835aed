"""What an algorithm remembers, without a device."""

from dataclasses import replace

from algorithms.algorithm import Algorithm, State


def forget(algorithm: Algorithm, state: State, device_id: str) -> State:
    """The state without what it holds of a device alone. What the device has given to a model that
    others share stays in that."""
    memory, group = (
        algorithm.grouping.forget(state.memory, device_id),
        own_group(algorithm, state, device_id),
    )
    return replace(
        state,
        models={key: model for key, model in state.models.items() if key != group},
        memory=memory,
        context=algorithm.coordinator.forget(state.context, device_id, group),
        moments={key: moments for key, moments in state.moments.items() if key != group},
        extra_epochs={d: extra for d, extra in state.extra_epochs.items() if d != device_id},
    )


def own_group(algorithm: Algorithm, state: State, device_id: str) -> str | None:
    """The key of the group in which a device is the only one; None where there is none, or where
    devices choose among all models."""
    members = state.memory.membership
    group = members.get(device_id)
    shared = algorithm.grouping.chooses or any(
        key == group for d, key in members.items() if d != device_id
    )
    return None if shared else group
