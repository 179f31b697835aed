"""A few devices with other inputs among many people: found whatever the labels say, and not made by
one device."""

import numpy as np
import pytest
import torch

from algorithms.composition import read_algorithm
from algorithms.core.contract import GroupingMemory, LocalModel
from algorithms.core.keys import NEWCOMER
from algorithms.groupings.distfl import DistFL, Signature
from algorithms.groupings.significance import ALPHA, find_groups
from simulation.datasets.catalog import load_data
from simulation.objective import objective_for_fleet
from simulation.partitions.inputs import three_axis_sensors, turn
from wire.arrays import names

PEOPLE, CHANNELS, WEIGHTS = 12, 24, 90


def views(seed: int, others: int, apart: float) -> dict[str, np.ndarray]:
    """People who differ in inputs and labels; the first `others` have other inputs as well."""
    rng = np.random.default_rng(seed)
    statistics = rng.normal(size=(PEOPLE, 8)) @ rng.normal(size=(8, CHANNELS)) / np.sqrt(8)
    statistics[:others] += apart * rng.normal(size=CHANNELS)
    return {
        "statistics": statistics + 0.1 * rng.normal(size=(PEOPLE, CHANNELS)),
        "labels": rng.normal(size=(PEOPLE, WEIGHTS)),
        "responses": rng.normal(size=(PEOPLE, 6)),
    }


def groups(seen: dict[str, np.ndarray], *chosen: str) -> list[int]:
    """The groups by these views; the first device's group is 0."""
    counts = np.full(PEOPLE, 100)
    labels, _ = find_groups({name: seen[name] for name in chosen or seen}, counts)
    return [int(label != labels[0]) for label in labels]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("others", [2, 3, 4])
def test_a_clear_signal_in_one_view_is_not_drowned_by_others(others: int, seed: int) -> None:
    seen = views(seed, others, apart=7.0)
    expected = [0] * others + [1] * (PEOPLE - others)
    assert groups(seen, "statistics") == expected
    assert groups(seen) == expected


def test_a_group_that_needs_no_member_needs_one_view_at_the_usual_level() -> None:
    """Its p-value is between ALPHA / 3 and ALPHA in the best view."""
    seen = views(0, 4, apart=3.0)
    labels, tests = find_groups(seen, np.full(PEOPLE, 100))
    assert ALPHA / 3 < min(test.p for test in tests[:3]) <= ALPHA
    assert [int(label != labels[0]) for label in labels] == [0] * 4 + [1] * 8


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("others", [0, 1])
def test_no_device_and_one_device_are_no_group(others: int, seed: int) -> None:
    assert groups(views(seed, others, apart=7.0)) == [0] * PEOPLE


@pytest.mark.parametrize("seed", range(6))
def test_a_device_that_copies_another_makes_no_group_with_it(seed: int) -> None:
    seen = views(seed, 0, apart=0.0)
    rows = seen["statistics"]
    farthest = int(((rows - rows.mean(0)) ** 2).sum(1)[1:].argmax()) + 1
    rows[0] = rows[farthest]
    assert groups(seen) == [0] * PEOPLE


def surveys(turned: int, quarters: int, seed: int) -> list[LocalModel]:
    """Surveys of the people with a watch on one arm; the first ones wear theirs turned."""
    data = load_data("watch")
    objective = objective_for_fleet(data, read_algorithm("distfl"), seed)
    arm = sorted(set(data.truth.values()))[seed % 2]
    people = [d for d in sorted(data.devices) if data.truth[d] == arm]
    fleet = []
    for number, device_id in enumerate(np.random.default_rng(seed).permutation(people)):
        windows = data.devices[device_id]
        sensors = three_axis_sensors(data.window)
        x = turn(windows.train_x, quarters if number < turned else 0, sensors)
        batch = {"x": torch.as_tensor(x.copy()), "y": torch.as_tensor(windows.train_y)}
        sums = objective.survey(objective.initial(), batch)
        survey = {
            names.response("survey", names.name_of(key)): np.asarray(
                value.detach().numpy() / len(x), np.float32
            )
            for key, value in sums.items()
        }
        fleet.append(LocalModel(f"d{number:02}", len(x), 1, NEWCOMER, {}, survey))
    return fleet


@pytest.mark.parametrize("signature", ["both", "statistics"])
@pytest.mark.parametrize(
    ("turned", "quarters", "seed"), [(2, 2, 0), (2, 1, 1), (3, 1, 0), (3, 2, 1), (4, 1, 2)]
)
def test_watches_that_are_worn_turned_are_a_group(
    signature: Signature, turned: int, quarters: int, seed: int
) -> None:
    fleet = surveys(turned, quarters, seed)
    membership = DistFL(signature=signature).group(GroupingMemory(), fleet, None, 0).memory
    found = [membership.membership[model.device_id] for model in fleet]
    assert found == ["0"] * turned + ["1"] * (len(fleet) - turned)


@pytest.mark.parametrize("seed", range(5))
def test_watches_that_are_worn_alike_are_one_group(seed: int) -> None:
    fleet = surveys(0, 0, seed)
    membership = DistFL(signature="both").group(GroupingMemory(), fleet, None, 0).memory.membership
    assert {*membership.values()} == {"0"}
