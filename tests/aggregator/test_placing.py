"""Devices without labels are placed by what they have told of their inputs, and stay there while
the fleet has the same groups."""

from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from immutables import Map

from aggregator.aggregation.placing import place_all, place_by_survey, place_members
from aggregator.fleet.records import Campaign, Member, Placed, Survey, Version
from aggregator.ports import BlobLost
from aggregator.storage.memory import MemoryBlobs
from algorithms.algorithm import State, encode_memory
from algorithms.composition import make_algorithm, read_algorithm
from algorithms.core.contract import GroupingMemory
from tests.support.settings import SETTINGS
from wire import messages as m
from wire.arrays.tensors import Tensors
from wire.codec import encode_update

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
        "u": Placed("0", 0.6, 5, 0.333333),
        "v": Placed("1", 0.8, 5, 0.0),
    }


@pytest.mark.parametrize(("mean", "nearer"), [(5.3, 0.0), (5.9, 1.0), (50.0, 1.0)])
def test_the_place_says_how_many_of_the_group_are_nearer_to_its_mean(
    mean: float, nearer: float
) -> None:
    placed = place_all(DISTFL, fleet(GROUPS), {"u": survey(mean)}, {}, set())["u"]
    assert placed == Placed("1", 0.8, 5, nearer)
    assert str(placed) == (
        f"placed by its inputs, 4 of 5 neighbours, farther out than {100 * nearer:.0f} % of the "
        "group"
    )


def test_a_device_is_farther_out_than_half_of_a_group_of_its_kind_on_average() -> None:
    rng, nearer = np.random.default_rng(0), []
    for _ in range(200):
        *inputs, own = rng.normal(size=len(INPUTS) + 1)
        state = fleet(dict.fromkeys(INPUTS, "0"))
        arrays = state.memory.arrays | {"mean.norm": np.array(inputs, np.float32).reshape(-1, 1)}
        memory = replace(state.memory, arrays=arrays)
        placed = place_all(DISTFL, replace(state, memory=memory), {"u": survey(own)}, {}, set())
        nearer.append(placed["u"].nearer)
    assert 0.4 < np.mean(nearer) < 0.6


def test_it_stays_while_the_groups_are_the_same_and_is_placed_anew_where_they_are_not() -> None:
    before = {"u": Placed("0", 0.6, 5)}
    assert place_all(DISTFL, fleet(GROUPS), {"u": not_read}, before, {"0", "1"})["u"] == before["u"]
    merged = fleet(dict.fromkeys(GROUPS, "0"))
    assert place_all(DISTFL, merged, {"u": survey(5.3)}, before, {"0", "1"})["u"] == Placed(
        "0", 1.0, 5, 0.285714
    )
    gone = fleet(dict.fromkeys("defg", "1"))
    after = place_all(DISTFL, gone, {"u": survey(0.1)}, before, {"1"})["u"]
    assert after == Placed("1", 1.0, 4, 1.0), "its group is gone"


def test_one_that_was_not_placed_yet_is() -> None:
    assert place_all(DISTFL, fleet(GROUPS), {"u": survey(0.1)}, {}, {"0", "1"})["u"] == Placed(
        "0", 0.6, 5, 0.333333
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


class TestCampaign:
    """Devices of a campaign, by the surveys that it has."""

    def campaign(self, blobs: MemoryBlobs, groups: dict[str, str], **means: float) -> Campaign:
        """A campaign with these groups, and with surveys of devices with these means."""
        settings = msgspec.structs.replace(SETTINGS, min_batch=2)
        members = {device_id: Member(group=group) for device_id, group in groups.items()}
        for device_id, mean in means.items():
            told = m.Update("r", 1, 1, 1, device_id, "0" * 64, 0, 0, m.Metrics(), m.Metrics())
            (blob,) = blobs.put(encode_update(told, survey(mean)()))
            described = Survey(blob=blob, round=1, bytes_up=1, bytes_down=1)
            members[device_id] = Member(survey=described, placed=Placed("0", 0.6, 5))
        (memory,) = blobs.put(encode_memory(fleet(groups)))
        models = dict.fromkeys(("initial", *groups.values()), "0" * 64)
        version = Version(round=1, models=models, memory=memory, programs={}, newcomers="initial")
        return Campaign(
            settings=settings, next_settings=settings, version=version, members=Map(members)
        )

    def test_after_a_round_its_devices_are_placed_and_one_of_which_nothing_is_known(self) -> None:
        blobs = MemoryBlobs()
        campaign = self.campaign(blobs, GROUPS, u=5.3)
        placed = place_members(campaign, DISTFL, fleet(GROUPS), blobs, set())
        assert placed == {"": Placed("1", round(4 / 7, 6)), "u": Placed("1", 0.8, 5)}

    def test_where_every_device_trains_nobody_is_placed(self) -> None:
        blobs = MemoryBlobs()
        campaign = self.campaign(blobs, GROUPS, u=5.3)
        settings = msgspec.structs.replace(campaign.settings, min_batch=0)
        campaign = msgspec.structs.replace(campaign, settings=settings)
        assert place_members(campaign, DISTFL, fleet(GROUPS), blobs, set()) == {}

    def test_after_training_a_device_is_placed_by_its_survey(self) -> None:
        blobs = MemoryBlobs()
        campaign = self.campaign(blobs, GROUPS, u=5.3)
        event = place_by_survey(campaign, "u", DISTFL, blobs, 9.0)
        assert event is not None
        assert (event.device_id, event.placed) == ("u", Placed("1", 0.8, 5))
        assert place_by_survey(campaign, "a", DISTFL, blobs, 9.0) is None, "it has no survey"

    def test_where_there_are_no_groups_it_is_not_placed(self) -> None:
        blobs = MemoryBlobs()
        campaign = self.campaign(blobs, {}, u=5.3)
        assert place_by_survey(campaign, "u", NONE, blobs, 9.0) is None

    def test_a_survey_that_is_lost_is_an_error_that_names_it(self) -> None:
        blobs = MemoryBlobs()
        campaign = self.campaign(blobs, GROUPS, u=5.3)
        described = campaign.members["u"].survey
        assert described is not None
        blobs.drop({described.blob})
        with pytest.raises(BlobLost) as lost:
            place_members(campaign, DISTFL, fleet(GROUPS), blobs, set())
        assert lost.value.digest == described.blob
