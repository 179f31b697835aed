"""Places devices without labels in the groups that a round has left, by what they have told of
their inputs (`aggregator.core.round.inputs`)."""

from collections.abc import Callable, Mapping
from functools import partial

from msgspec.structs import replace

from aggregator.core.ports import Blobs
from aggregator.core.round.closings import tells
from aggregator.core.state import Placed, RunState, UpdateAdmitted
from algorithms.algorithm import Algorithm, State, decode_memory
from algorithms.core.contract import Placement
from algorithms.core.keys import is_no_group
from wire.arrays.tensors import OWN_FILES, Tensors
from wire.codec import decode_update

ReadSurvey = Callable[[], Tensors]
"""Reads what a device surveyed of its inputs (``response/survey.NAME``)."""


def place_all(
    algorithm: Algorithm,
    state: State,
    surveys: Mapping[str, ReadSurvey],
    before: Mapping[str, Placed],
    groups_before: set[str],
) -> dict[str, Placed]:
    """Where the devices of these surveys belong by an algorithm's state, of which only the memory
    is read, and under the empty id where a device belongs that has told nothing. Those that belong
    nowhere, since there are no groups, are left out. Where the fleet's groups are those of before
    (`groups_before`), a device stays where it was placed (`before`), and its survey is not read."""
    groups = set(state.memory.membership.values())
    placed = {"": _placed(algorithm.place_unlabelled(state, "", {}))}
    for device_id, read in sorted(surveys.items()):
        held = before.get(device_id)
        stays = held is not None and held.group in groups == groups_before
        placed[device_id] = (
            held
            if held is not None and stays
            else _placed(algorithm.place_unlabelled(state, device_id, read()))
        )
    return {device_id: held for device_id, held in placed.items() if not is_no_group(held.group)}


def place_unlabelled(
    run: RunState, algorithm: Algorithm, state: State, blobs: Blobs, groups_before: set[str]
) -> dict[str, Placed]:
    """Where a run's devices without labels belong, as `RunState.placed` has it. Where every device
    trains, nobody asks.

    Raises:
        BlobLost: what a device has told is lost.
    """
    if not run.settings.min_batch:
        return {}
    surveys = {
        device_id: partial(_survey, blobs, told.blob) for device_id, told in run.inputs.items()
    }
    return place_all(algorithm, state, surveys, run.placed, groups_before)


def place_late(
    run: RunState, algorithm: Algorithm, blobs: Blobs, event: UpdateAdmitted, payload: bytes
) -> UpdateAdmitted:
    """The event of an update by which a device tells of its inputs when a run is over, with where
    that places it; others as they are. `payload`: the update's bytes.

    Raises:
        BlobLost: what the algorithm remembers is lost.
    """
    flight = run.closings.get(event.device_id)
    if (
        run.phase != "finished"
        or flight is None
        or not tells(run, flight)
        or not event.update.norms
    ):
        return event
    state = decode_memory(blobs.get(run.memory), {})
    placed = _placed(
        algorithm.place_unlabelled(state, event.device_id, decode_update(payload, OWN_FILES)[1])
    )
    return event if is_no_group(placed.group) else replace(event, placed=placed)


def _survey(blobs: Blobs, name: str) -> Tensors:
    return decode_update(blobs.get(name), OWN_FILES)[1]


def _placed(placement: Placement) -> Placed:
    return Placed(placement.group, round(placement.sure, 6), placement.neighbours)
