"""Placement of devices in the groups that the training of others has found, by their surveys."""

from collections.abc import Callable, Mapping
from functools import partial

from aggregator.fleet.events import PlacedBySurvey
from aggregator.fleet.records import Campaign, Placed
from aggregator.ports import Blobs
from algorithms.algorithm import Algorithm, State, decode_memory
from algorithms.core.contract import Placement
from algorithms.core.keys import is_no_group
from wire.arrays.tensors import OWN_FILES, Tensors
from wire.codec import decode_update

ReadSurvey = Callable[[], Tensors]
"""Reads a device's survey of its inputs (``response/survey.NAME``)."""


def place_all(
    algorithm: Algorithm,
    state: State,
    surveys: Mapping[str, ReadSurvey],
    before: Mapping[str, Placed],
    groups_before: set[str],
) -> dict[str, Placed]:
    """Return the groups of the devices of these surveys; empty if there are no groups.

    Only the memory of the state is read. The empty id has the group of a device without a survey.
    If the groups are the same as before (`groups_before`), a device keeps its earlier group
    (`before`), and its survey is not read.
    """
    groups = set(state.memory.membership.values())
    placed = {"": placed_as(algorithm.place(state, "", {}))}
    for device_id, read in sorted(surveys.items()):
        place = before.get(device_id)
        stays = place is not None and place.group in groups == groups_before
        placed[device_id] = (
            place
            if place is not None and stays
            else placed_as(algorithm.place(state, device_id, read()))
        )
    return {device_id: place for device_id, place in placed.items() if not is_no_group(place.group)}


def place_members(
    campaign: Campaign, algorithm: Algorithm, state: State, blobs: Blobs, groups_before: set[str]
) -> dict[str, Placed]:
    """Return the groups of a campaign's devices with a survey, for `Aggregated.placed`.

    Empty if every device trains.

    Raises:
        BlobLost: a survey is lost.
    """
    if not campaign.settings.min_batch:
        return {}
    members = {d: member for d, member in campaign.members.items() if member.survey is not None}
    surveys = {
        d: partial(_survey, blobs, member.survey.blob)
        for d, member in members.items()
        if member.survey is not None
    }
    before = {d: member.placed for d, member in members.items() if member.placed is not None}
    return place_all(algorithm, state, surveys, before, groups_before)


def place_by_survey(
    campaign: Campaign, device_id: str, algorithm: Algorithm, blobs: Blobs, at_s: float
) -> PlacedBySurvey | None:
    """Return the event that places a device by its survey after training, or None.

    None if the device has no survey, or if there are no groups.

    Raises:
        BlobLost: the survey or the algorithm's memory is lost.
    """
    member = campaign.members.get(device_id)
    if member is None or member.survey is None:
        return None
    state = decode_memory(blobs.get(campaign.version.memory), {})
    survey = _survey(blobs, member.survey.blob)
    placed = placed_as(algorithm.place(state, device_id, survey))
    if is_no_group(placed.group):
        return None
    return PlacedBySurvey(at_s=at_s, campaign=campaign.name, device_id=device_id, placed=placed)


def _survey(blobs: Blobs, name: str) -> Tensors:
    return decode_update(blobs.get(name), OWN_FILES)[1]


def placed_as(placement: Placement) -> Placed:
    """Return a placement as it is recorded."""
    return Placed(
        placement.group,
        round(placement.sure, 6),
        placement.neighbours,
        round(placement.nearer, 6),
    )
