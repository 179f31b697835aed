"""Computation and storage of a round's models: they are computed again if something changed, and
not otherwise."""

from collections.abc import Mapping

import msgspec
import numpy as np
import pytest

from aggregator.aggregation import stored
from aggregator.aggregation.apply import weakened
from aggregator.aggregation.stored import check_fit, load_models, store_state
from aggregator.fleet.rounds import counted_updates
from aggregator.storage.memory import MemoryBlobs
from aggregator.transfer.offered import offered
from algorithms.algorithm import State
from algorithms.composition import make_algorithm, read_algorithm
from algorithms.core.contract import ObjectiveMemory
from algorithms.core.keys import NEWCOMER
from algorithms.core.probe import make_probe
from export.describe import describe_bundle
from simulation.contract.fleet import CHANNELS, LENGTH, WORK, Field, make_field
from simulation.datasets.windows import FleetData
from simulation.objective import objective_for_fleet
from tests.aggregator.training import RECEIVED, Training
from tests.support.settings import SETTINGS
from wire.arrays.tensors import Array, Tensors, decode_tensors, encode_tensors
from wire.errors import ConfigError


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The names of the tensors of every model that is encoded, as it happens."""
    seen: list[set[str]] = []

    def watched(tensors: Mapping[str, Array], message: bytes = b"") -> bytes:
        seen.append(set(tensors))
        return encode_tensors(tensors, message)

    monkeypatch.setattr(stored, "encode_tensors", watched)
    return seen


def held(
    blobs: MemoryBlobs, state: State, following: State, digests: Mapping[str, str]
) -> dict[str, tuple[Tensors, str]]:
    return {
        k: (decode_tensors(blobs.get(digests[k]))[0], digests[k])
        for k, m in state.models.items()
        if following.models.get(k) is m
    }


def next_state(field: Field, devices: list[str]) -> State:
    probe = make_probe(field.model, (CHANNELS, LENGTH))
    return field.algorithm.apply(field.state, field.contributions(devices, 1), probe, 1, WORK)[0]


@pytest.mark.parametrize(("name", "anew"), [("ifca:k=4", 1), ("fedavg", 1), ("scaffold", 1)])
def test_models_of_a_round_that_did_not_change_are_not_encoded(
    name: str, anew: int, encoded: list[set[str]]
) -> None:
    field, blobs = make_field(name, num_devices=2), MemoryBlobs()
    settings = msgspec.structs.replace(SETTINGS, algorithm=name)
    first = store_state(settings, field.algorithm, field.state, blobs)
    assert len(encoded) == len(field.state.models)
    following = next_state(field, ["d0"])
    encoded.clear()
    again = store_state(
        settings,
        field.algorithm,
        following,
        blobs,
        held(blobs, field.state, following, first.models),
    )
    assert len(encoded) == anew
    assert len(following.models) > anew
    assert again.models == store_state(settings, field.algorithm, following, blobs).models
    assert again.models[NEWCOMER] == first.models[NEWCOMER]


def test_a_model_is_encoded_anew_when_what_goes_with_it_changes(encoded: list[set[str]]) -> None:
    field, blobs = make_field("scaffold", num_devices=2), MemoryBlobs()
    settings = msgspec.structs.replace(SETTINGS, algorithm="scaffold")
    first = store_state(settings, field.algorithm, field.state, blobs)
    arrays = {k: v + np.float32(1) for k, v in field.state.context.arrays.items()}
    changed = State(
        field.state.models, field.state.memory, ObjectiveMemory(arrays, field.state.context.info)
    )
    encoded.clear()
    again = store_state(
        settings, field.algorithm, changed, blobs, held(blobs, field.state, changed, first.models)
    )
    assert len(encoded) == 1
    assert again.models[NEWCOMER] != first.models[NEWCOMER]
    kept = decode_tensors(blobs.get(again.models[NEWCOMER]))[0]
    assert all((v == 1).all() for k, v in kept.items() if k.startswith("received/control."))


def test_an_update_is_weakened_towards_the_model_of_today() -> None:
    weak = weakened(
        {
            "delta/w": np.ones(2, np.float32),
            "statistic/bn.mean": np.full(2, 5, np.float32),
            "response/survey.x": np.ones(1, np.float32),
        },
        0.5,
        {"shared/w": np.zeros(2, np.float32), "statistic/bn.mean": np.ones(2, np.float32)},
    )
    assert weak["delta/w"].tolist() == [0.5, 0.5]
    assert weak["statistic/bn.mean"].tolist() == [3, 3]
    assert weak["response/survey.x"].tolist() == [1]


@pytest.mark.parametrize(
    ("algorithm", "part"),
    [
        ("scaffold", "objective 'scaffold'"),
        ("ifca:k=2", "grouping 'ifca'"),
        ("cfl", "grouping 'cfl'"),
    ],
)
def test_an_algorithm_that_needs_whole_rounds_is_refused_by_name(
    fleet: FleetData, algorithm: str, part: str
) -> None:
    spec = read_algorithm(algorithm)
    objective = objective_for_fleet(fleet, spec, 0)
    manifest = describe_bundle(
        objective, name="x", classes=fleet.classes, window=fleet.window
    ).manifest
    check_fit(SETTINGS, make_algorithm(spec), manifest)
    with pytest.raises(ConfigError, match=f"{part} needs whole rounds"):
        check_fit(msgspec.structs.replace(SETTINGS, buffer=3), make_algorithm(spec), manifest)


def test_a_late_update_of_a_buffered_campaign_counts_less_and_the_notes_say_so(
    fleet: FleetData,
) -> None:
    policy = {"buffer": 1, "concurrency": 2, "min_updates": 1, "rounds": 9}
    bench = Training(fleet, settings=policy)
    late = bench.fleet.devices["b"].assignment
    assert late is not None
    bench.close(a=(1.0, 2))
    before = load_models(bench.campaign.version, bench.blobs)["0"]
    assert late.model in offered(bench.campaign, bench.fleet), "it is at work on it"
    notes = bench.close(b=(1.0, 2))
    assert notes["staleness"] == {"b": 1}
    after = load_models(bench.campaign.version, bench.blobs)
    moved = sum(
        float(np.square(after["0"][name] - array).sum())
        for name, array in before.items()
        if name.startswith("shared/")
    )
    assert moved**0.5 == pytest.approx(1 / 2**0.5, rel=1e-4)
    assert late.model == bench.campaign.models["initial"], "newcomers start from it"


def test_a_late_update_changes_the_model_of_its_devices_group_of_today(fleet: FleetData) -> None:
    policy = {"buffer": 1, "concurrency": 2, "min_updates": 1, "rounds": 9}
    bench = Training(fleet, settings=policy)
    bench.close(a=(1.0, 2))
    bench.update("b")
    campaign = msgspec.structs.replace(bench.campaign, phase="aggregating")
    assert campaign.round == 3, "it has counted"
    late = msgspec.structs.replace(RECEIVED, staleness=2, start="9", round=3)
    updates = campaign.updates.set("b", late).set("new", late)
    counted = counted_updates(msgspec.structs.replace(campaign, updates=updates))
    assert {d: update.start for d, update in counted.items()} == {"b": "0", "new": "0"}
    surveyed = msgspec.structs.replace(late, start=NEWCOMER)
    programs = {**campaign.version.programs, f"start:{NEWCOMER}": ()}
    version = msgspec.structs.replace(campaign.version, programs=programs)
    after = msgspec.structs.replace(
        campaign, version=version, updates=campaign.updates.set("b", surveyed)
    )
    assert counted_updates(after)["b"].start == NEWCOMER, "its survey places it"
