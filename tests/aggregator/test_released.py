"""The models that a new campaign starts from where a fleet has releases."""

import numpy as np
from msgspec.structs import replace

from aggregator.fleet.records import Fleet
from aggregator.releases import released_source
from aggregator.storage.memory import MemoryBlobs
from aggregator.view.progress import release_states
from tests.fleet.rollout_cases import Rollouts
from wire.arrays.tensors import encode_tensors


def test_it_is_the_latest_campaigns_and_not_what_is_tried_or_was_taken_back() -> None:
    groups = {"a": "0", "b": "1", "c": "2"}
    fleet = Rollouts(*"abcd", groups=groups)
    for name in ("new", "newer"):
        fleet.campaign(name, groups)
    for model, campaign, keys in (("x", "c", "012"), ("y", "new", "01"), ("z", "new", "01")):
        fleet.roll_out(model, tuple(keys), campaign)
        fleet.finish(campaign)
    fleet.return_to(4, "0", "new")
    fleet.roll_out("failed", campaign="newer")
    fleet.steer("end", campaign="newer")
    fleet.roll_out("tried", campaign="newer")
    blobs = MemoryBlobs()
    releases = {}
    for number, release in fleet.fleet.releases.items():
        tensors = {"shared/w": np.full(2, number, np.float32)}
        (model,) = blobs.put(encode_tensors(tensors))
        releases[number] = replace(release, model=model)
    source = released_source(replace(fleet.fleet, releases=releases), blobs)
    assert source is not None
    assert (source.name, source.groups) == ("release 7 of campaign new", {"a": "0", "b": "1"})
    assert {key: model["shared/w"].tolist() for key, model in source.models.items()} == {
        "0": [4.0, 4.0],
        "1": [7.0, 7.0],
    }


def test_after_a_return_it_is_the_earlier_campaigns_also_if_a_later_one_has_finished() -> None:
    fleet, blobs = Rollouts(*"ab"), MemoryBlobs()
    fleet.roll_out("x")
    fleet.finish()
    fleet.campaign("new", {})
    fleet.roll_out("y", campaign="new")
    fleet.finish("new")
    fleet.return_to(1)
    assert release_states(fleet.fleet) == {1: "released", 2: "withdrawn"}
    (model,) = blobs.put(encode_tensors({"shared/w": np.full(2, 1, np.float32)}))
    releases = {n: replace(r, model=model) for n, r in fleet.fleet.releases.items() if n == 1}
    source = released_source(replace(fleet.fleet, releases=releases), blobs)
    assert source is not None
    assert source.name == "release 1 of campaign c"


def test_a_return_withdraws_nothing_of_a_campaign_for_other_devices() -> None:
    fleet = Rollouts(*"ab")
    fleet.campaign("some", {}, where="id = a")
    fleet.campaign("others", {}, where="id = b")
    for name in ("some", "others"):
        fleet.roll_out(name, campaign=name)
        fleet.finish(name)
    fleet.return_to(1, campaign="some")
    assert release_states(fleet.fleet) == {1: "released", 2: "released"}


def test_a_fleet_that_has_released_nothing_has_nothing_to_start_from() -> None:
    assert released_source(Fleet(), MemoryBlobs()) is None
    assert released_source(Rollouts("a").fleet, MemoryBlobs()) is None
