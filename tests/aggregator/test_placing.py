"""Devices without labels are placed by what they have told of their inputs, and stay there while
the fleet has the same groups."""

from collections.abc import Callable

import numpy as np
import pytest

from aggregator.aggregation.placing import place_all
from aggregator.core.state import Placed
from algorithms.algorithm import State
from algorithms.composition import make_algorithm, read_algorithm
from algorithms.core.contract import GroupingMemory
from wire.arrays.tensors import Tensors

DISTFL = make_algorithm(read_algorithm("distfl"))
NONE = make_algorithm(read_algorithm("fedavg+none"))
INPUTS = {"a": 0.0, "b": 0.2, "c": 0.4, "d": 5.0, "e": 5.2, "f": 5.4, "g": 5.6}
GROUPS = {"a": "0", "b": "0", "c": "0", "d": "1", "e": "1", "f": "1", "g": "1"}


def fleet(groups: dict[str, str]) -> State:
    """A state in whose memory labelled devices have these groups, and inputs with the means
    `INPUTS`."""
    means = np.array([[INPUTS[d]] for d in sorted(INPUTS)], np.float32)
    arrays = {
        "mean.norm": means,
        "variance.norm": np.ones_like(means),
        "gradient": np.ones((len(means), 2), np.float32),
    }
    info = {
        "device_ids": sorted(INPUTS),
        "num_examples": [10] * len(INPUTS),
        "num_tested": len(INPUTS),
    }
    return State({}, GroupingMemory(groups, arrays, info))


def survey(mean: float) -> Callable[[], Tensors]:
    return lambda: {
        f"response/survey.{name}.norm": np.array([value], np.float32)
        for name, value in (("mean", mean), ("variance", 1.0))
    }


def not_read() -> Tensors:
    raise AssertionError("a survey was read that nothing hangs on")


def test_by_the_inputs_of_the_nearest_devices_and_the_others_in_the_largest_group() -> None:
    placed = place_all(DISTFL, fleet(GROUPS), {"u": survey(0.1), "v": survey(5.3)}, {}, set())
    assert placed == {
        "": Placed("1", round(4 / 7, 6)),
        "u": Placed("0", 0.6, 5),
        "v": Placed("1", 0.8, 5),
    }


def test_it_stays_while_the_groups_are_the_same_and_is_placed_anew_where_they_are_not() -> None:
    before = {"u": Placed("0", 0.6, 5)}
    assert place_all(DISTFL, fleet(GROUPS), {"u": not_read}, before, {"0", "1"})["u"] == before["u"]
    merged = fleet(dict.fromkeys(GROUPS, "0"))
    assert place_all(DISTFL, merged, {"u": survey(5.3)}, before, {"0", "1"})["u"] == Placed(
        "0", 1.0, 5
    )
    gone = fleet(dict.fromkeys("defg", "1"))
    assert place_all(DISTFL, gone, {"u": survey(0.1)}, before, {"1"})["u"] == Placed("1", 1.0, 4), (
        "its group is gone"
    )


def test_one_that_was_not_placed_yet_is() -> None:
    assert place_all(DISTFL, fleet(GROUPS), {"u": survey(0.1)}, {}, {"0", "1"})["u"] == Placed(
        "0", 0.6, 5
    )


def test_a_survey_that_says_nothing_is_as_good_as_none() -> None:
    placed = place_all(DISTFL, fleet(GROUPS), {"u": dict}, {}, set())
    assert placed["u"] == placed[""]


@pytest.mark.parametrize(
    ("groups", "expected"),
    [({}, {}), ({"a": "0", "b": "0"}, {"": Placed("0", 1.0)}), ({"a": "0", "b": "1"}, {})],
    ids=["no groups yet", "the only group", "every device for itself"],
)
def test_without_inputs(groups: dict[str, str], expected: dict[str, Placed]) -> None:
    assert place_all(NONE, State({}, GroupingMemory(groups)), {}, {}, set()) == expected


def test_only_a_grouping_that_can_tell_asks_devices_for_their_inputs() -> None:
    names = {
        name: make_algorithm(read_algorithm(name)).grouping.places
        for name in ("distfl", "distfl:signature=responses", "ifca", "cfl")
    }
    assert names == {
        "distfl": True,
        "distfl:signature=responses": False,
        "ifca": False,
        "cfl": False,
    }
