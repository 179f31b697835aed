"""Deletion of a device from algorithms' memories and from the records of rounds.

`REMAINS` names what cannot be deleted.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Set
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace

from aggregator.aggregation.stored import groups_in
from aggregator.fleet.events import Forgotten
from aggregator.fleet.records import Campaign, Fleet
from aggregator.ports import Blobs
from aggregator.view.round_record import RoundRecord, without_kept
from algorithms.algorithm import Algorithm, State, decode_memory, encode_memory
from algorithms.core.keys import NEWCOMER
from wire.arrays.tensors import OWN_FILES, decode_tensors, encode_tensors

T = TypeVar("T")
REMAINS = (
    "it stays in models that it helped to train with others, in backups, in logs and in the audit "
    "log of this order, "
    "and in what the broker holds for a device that is away"
)
BY_DEVICE = ("left_out", "made_by", "pulls", "shares", "staleness")
"""Notes of rounds whose entries are devices."""
BY_GROUP = ("groups", "too_far", "too_small")
"""Notes of rounds whose entries are groups, one of which may have a device's name."""


def forgotten(
    fleet: Fleet,
    device_id: str,
    algorithm_of: Callable[[Campaign], Algorithm],
    blobs_of: Callable[[Campaign], Blobs],
    at_s: float,
) -> Forgotten:
    """Return the event by which a fleet forgets a device. New memories are stored.

    It names the models that come from the device's updates alone, except those that another device
    starts from.

    Raises:
        BlobLost, StorageFailed: a memory cannot be read or written.
    """
    memories, alone, shared = dict[str, str](), set[str](), set[str]()
    for campaign in fleet.campaigns.values():
        algorithm, blobs = algorithm_of(campaign), blobs_of(campaign)
        for version in campaign.versions:
            state = decode_memory(blobs.get(version.memory), {})
            group = own_group(algorithm, state, device_id)
            if group is not None and group != NEWCOMER and group in version.models:
                alone.add(version.models[group])
            without_device = encode_memory(forget(algorithm, state, device_id))
            memories[version.memory] = blobs.put(without_device)[0]
            groups = groups_in(state, algorithm.grouping)
            keys = {key for d, key in groups.items() if d != device_id} | {version.newcomers}
            shared |= {version.models[key] for key in keys & version.models.keys()}
        started = {m.group for d, m in campaign.members.items() if d != device_id}
        shared |= {campaign.models[key] for key in started & campaign.models.keys()}
    works = ((d, device.assignment) for d, device in fleet.devices.items())
    shared |= {work.model for d, work in works if work is not None and d != device_id}
    return Forgotten(
        at_s=at_s, device_id=device_id, memories=memories, models=tuple(sorted(alone - shared))
    )


def records_without(
    records: Iterable[RoundRecord], device_id: str, device_ids: Collection[str], blobs: Blobs
) -> list[RoundRecord]:
    """Return the records of a campaign's rounds without a device. New views are stored.

    `device_ids`: ids of the fleet's devices, by which lists of devices are recognised.

    Raises:
        BlobLost, StorageFailed: a round's views cannot be read or written.
    """
    without = []
    for record in records:
        ids = {device_id, *device_ids, *record.groups, *record.evaluated}
        notes = {name: _without(note, device_id, ids, name) for name, note in record.notes.items()}
        changed = replace(
            without_kept(record, {device_id}),
            evaluated=_others(record.evaluated, device_id),
            groups=_others(record.groups, device_id),
            notes=notes,
            views=_views(record.views, blobs, device_id),
            placed=_others(record.placed, device_id),
        )
        without.append(changed)
    return without


def _without(note: Any, device_id: str, device_ids: Set[str], name: str) -> Any:
    """Return a note without a device: without its entry, and without its id in lists of devices.

    A name that the note always has stays, even if a device has the same name.
    """
    if name in BY_GROUP or not isinstance(note, dict | list | tuple):
        return note
    is_by_device = name in BY_DEVICE or all(isinstance(n, str) and n in device_ids for n in note)
    if isinstance(note, dict):
        entries = _others(note, device_id) if is_by_device else note
        return {key: _without(value, device_id, device_ids, key) for key, value in entries.items()}
    values = [value for value in note if not (is_by_device and value == device_id)]
    return [_without(value, device_id, device_ids, "") for value in values]


def _others(entries: dict[str, T], key: str) -> dict[str, T]:
    return {other: value for other, value in entries.items() if other != key}


def _views(name: str, blobs: Blobs, device_id: str) -> str:
    """Return the distances of a round without the device's row and column."""
    if not name:
        return name
    arrays, text = decode_tensors(blobs.get(name), OWN_FILES)
    described = msgspec.json.decode(text)
    ids: list[str] = described["device_ids"]
    if device_id not in ids:
        return name
    rows = np.array([row for row, d in enumerate(ids) if d != device_id], np.int64)
    matrices = {
        key: np.ascontiguousarray(matrix[np.ix_(rows, rows)]) for key, matrix in arrays.items()
    }
    described["device_ids"] = [ids[row] for row in rows]
    return blobs.put(encode_tensors(matrices, msgspec.json.encode(described)))[0]


def forget(algorithm: Algorithm, state: State, device_id: str) -> State:
    """Return the state without the data that it has of a device alone.

    The contribution of the device to a shared model stays in the model.
    """
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
        extra_epochs=_others(state.extra_epochs, device_id),
        starts=_others(state.starts, device_id),
    )


def own_group(algorithm: Algorithm, state: State, device_id: str) -> str | None:
    """Return the key of the group in which a device is alone; None if it is in no such group.

    There is no such group if devices choose among all models.
    """
    members = state.memory.membership
    group = members.get(device_id)
    shared = algorithm.grouping.chooses or any(
        key == group for d, key in members.items() if d != device_id
    )
    return None if shared else group
