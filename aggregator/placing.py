"""Places devices without labels in the groups that a round has left, by what they have told of their inputs (`aggregator.core.inputs`)."""

from collections.abc import Callable, Mapping

from aggregator.core.placed import Placed
from algorithms.algorithm import Algorithm, State
from algorithms.core.contract import Placement
from algorithms.core.keys import is_no_group
from wire.tensors import Tensors

ReadSurvey = Callable[[], Tensors]
"""Reads what a device surveyed of its inputs (``response/survey.NAME``)."""


def place_all(
    algorithm: Algorithm, state: State, surveys: Mapping[str, ReadSurvey], before: Mapping[str, Placed], groups_before: set[str]
) -> dict[str, Placed]:
    """Where the devices of these surveys belong by an algorithm's state, of which only the memory is read, and under the empty id where a
    device belongs that has told nothing. Those that belong nowhere, since there are no groups, are left out. Where the fleet's groups are
    those of before (`groups_before`), a device stays where it was placed (`before`), and its survey is not read."""
    groups = set(state.memory.membership.values())
    placed = {"": _placed(algorithm.place_unlabelled(state, "", {}))}
    for device_id, read in sorted(surveys.items()):
        held = before.get(device_id)
        stays = held is not None and held.group in groups == groups_before
        placed[device_id] = held if held is not None and stays else _placed(algorithm.place_unlabelled(state, device_id, read()))
    return {device_id: held for device_id, held in placed.items() if not is_no_group(held.group)}


def _placed(placement: Placement) -> Placed:
    return Placed(placement.group, round(placement.sure, 6), placement.neighbours)
