"""What a new campaign starts from where a fleet has releases."""

import numpy as np
from immutables import Map
from msgspec.structs import replace

from aggregator.core.release.releases import Catalogue, add, put
from aggregator.core.release.state import FleetState, Holder
from aggregator.releases.policy import released_source
from aggregator.storage.memory import MemoryBlobs
from tests.aggregator.rollout_cases import draft
from wire.arrays.tensors import encode_tensors


def test_it_is_the_latest_campaigns_and_not_what_is_tried_or_was_withdrawn() -> None:
    blobs = MemoryBlobs()
    models = blobs.put(
        *(encode_tensors({"shared/w": np.full(2, value, np.float32)}) for value in range(4))
    )
    drafts = [
        replace(draft(), campaign=campaign, group=f"{campaign}/{key}", model=models[number])
        for number, (campaign, key) in enumerate(
            (("old", "0"), ("new", "0"), ("new", "1"), ("newer", "0"))
        )
    ]
    catalogue, made = add(Catalogue(), drafts, 0.0)
    catalogue = put(catalogue, [release.number for release in made[:3]], "released")
    catalogue = put(catalogue, [made[3].number], "canary")
    devices = {
        "a": Holder(group="new/0"),
        "b": Holder(group="new/1"),
        "c": Holder(group="old/0"),
        "d": Holder(),
    }
    source = released_source(FleetState(catalogue=catalogue, devices=Map(devices)), blobs.get)
    assert source is not None
    assert (source.name, source.groups) == ("campaign new, release 2, 3", {"a": "0", "b": "1"})
    assert {key: model["shared/w"].tolist() for key, model in source.models.items()} == {
        "0": [1.0, 1.0],
        "1": [2.0, 2.0],
    }


def test_a_fleet_that_has_released_nothing_has_nothing_to_start_from() -> None:
    assert released_source(FleetState(), MemoryBlobs().get) is None
