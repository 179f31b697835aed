"""Makes a run forget a device: its updates, what the algorithm remembers of it, and what the
records of rounds say of it.

What cannot be removed is said by `REMAINS`.
"""

import dataclasses
from collections.abc import Set
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from aggregator.core.ports import Blobs, Store
from aggregator.core.record import Group, RoundRecord
from aggregator.core.round.asking import others
from aggregator.core.state import DeviceForgotten, ModelVersion, RunState
from aggregator.transfer.offered import needed
from algorithms.algorithm import Algorithm, State, decode_memory, encode_memory
from algorithms.core.keys import NEWCOMER
from wire.arrays.tensors import OWN_FILES, decode_tensors, encode_tensors

REMAINS = (
    "it stays in models that it helped to train with others, in backups, in logs and in the audit "
    "log of this order, "
    "and in what the broker holds for a device that is away"
)


def forgotten(
    run: RunState, store: Store, algorithm: Algorithm, blobs: Blobs, device_id: str, at_s: float
) -> tuple[Group, set[str], set[str]]:
    """Return what is to be saved so that a run forgets a device, the blobs that are to be deleted
    then, and the views that stay: what groupings have compared. New memories and views are safe
    when this returns, and nothing else has happened.

    Raises:
        BlobLost, StorageFailed: what would be changed cannot be read, or written.
    """
    memories, own, shared = dict[str, str](), set[str](), set[str]()
    versions: list[RunState | ModelVersion] = [run, *run.history]
    for version in versions:
        state = decode_memory(blobs.get(version.memory), {})
        group = own_group(algorithm, state, device_id)
        if group is not None and group != NEWCOMER and group in version.models:
            own.add(version.models[group])
        memories[version.memory] = blobs.put(encode_memory(forget(algorithm, state, device_id)))[0]
        keys = {key for d, key in version.starts.items() if d != device_id}
        shared |= {version.models[key] for key in keys & version.models.keys()}
    works = (*run.flights.items(), *run.placing.items())
    shared |= {flight.model for d, flight in works if d != device_id}
    after, old = Group(run, whole=True), store.rounds()
    after.add(DeviceForgotten(at_s, device_id, memories, tuple(sorted(own - shared))))
    after.records += [
        replace(
            without_kept(record, {device_id}),
            evaluated=others(record.evaluated, device_id),
            groups=others(record.groups, device_id),
            notes=_without(record.notes, device_id),
            views=_views(record.views, blobs, device_id),
            placed=others(record.placed, device_id),
        )
        for record in old
    ]
    views = {record.views for record in after.records} - {""}
    before = needed(run) | {record.views for record in old} - {""}
    return after, before - needed(after.state) - views, views


def without_kept(record: RoundRecord, device_ids: Set[str]) -> RoundRecord:
    """A record that does not say what these devices keep."""
    kept = {d: kept for d, kept in record.kept.items() if d not in device_ids}
    return replace(record, kept=kept)


def _without(value: Any, device_id: str) -> Any:
    """A note without what stands under the device's id, and without the id itself."""
    if isinstance(value, dict):
        return {key: _without(held, device_id) for key, held in value.items() if key != device_id}
    if isinstance(value, list | tuple):
        return [_without(held, device_id) for held in value if held != device_id]
    return value


def _views(name: str, blobs: Blobs, device_id: str) -> str:
    """The distances of a round without the device's row and column."""
    if not name:
        return name
    arrays, text = decode_tensors(blobs.get(name), OWN_FILES)
    told = msgspec.json.decode(text)
    ids: list[str] = told["device_ids"]
    if device_id not in ids:
        return name
    kept = np.array([row for row, d in enumerate(ids) if d != device_id], np.int64)
    matrices = {
        key: np.ascontiguousarray(matrix[np.ix_(kept, kept)]) for key, matrix in arrays.items()
    }
    told["device_ids"] = [ids[row] for row in kept]
    return blobs.put(encode_tensors(matrices, msgspec.json.encode(told)))[0]


def forget(algorithm: Algorithm, state: State, device_id: str) -> State:
    """The state without what it holds of a device alone. What the device has given to a model that
    others share stays in that."""
    memory, group = (
        algorithm.grouping.forget(state.memory, device_id),
        own_group(algorithm, state, device_id),
    )
    return dataclasses.replace(
        state,
        models={key: model for key, model in state.models.items() if key != group},
        memory=memory,
        context=algorithm.coordinator.forget(state.context, device_id, group),
        moments={key: moments for key, moments in state.moments.items() if key != group},
        extra_epochs=others(state.extra_epochs, device_id),
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
