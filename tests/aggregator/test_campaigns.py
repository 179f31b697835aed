"""Several campaigns in one service: who works for which, and what becomes of the others where one
cannot go on."""

import numpy as np
import pytest

from aggregator.aggregation.inherit import TrainedModels
from aggregator.service.steering import source_of
from aggregator.storage.memory import MemoryBlobs
from algorithms.core.keys import RELEASED
from simulation.datasets.windows import FleetData
from tests.aggregator.campaign_cases import SECOND, Campaigns
from wire import messages as m
from wire.arrays.tensors import decode_tensors
from wire.codec import encode


@pytest.fixture
def bench(fleet: FleetData) -> Campaigns:
    return Campaigns(fleet, settings={"min_devices": 1, "min_updates": 1})


@pytest.fixture
def parted(fleet: FleetData) -> Campaigns:
    """A first campaign of all devices but b, and a second one of b."""
    settings = {"min_devices": 1, "min_updates": 1, "where": "id != b"}
    return Campaigns(fleet, settings=settings)


def test_a_new_campaign_takes_the_devices_and_gives_them_back_when_it_is_over(
    bench: Campaigns,
) -> None:
    bench.answer("a")
    bench.start_second(min_devices=2)
    assert (bench.working("run-1"), bench.working(SECOND)) == (["a", "b"], []), (
        "what is at work is done first"
    )
    bench.answers()
    bench.answer("a", "b")
    assert (bench.working("run-1"), bench.working(SECOND)) == ([], ["a", "b"])
    assert sorted(bench.plans()) == [("r2", "a"), ("r2", "b")]
    bench.direct("abort")
    assert (bench.second.phase, bench.working("run-1")) == ("finished", ["a", "b"])
    assert sorted(bench.plans()) == [("r", "a"), ("r", "b")]


def test_a_campaign_that_awaits_drift_begins_once_and_takes_the_devices(fleet: FleetData) -> None:
    bench = Campaigns(fleet)
    bench.start_second(when="drift")
    bench.answer("a", "b")
    assert (bench.working("run-1"), bench.working(SECOND)) == (["a", "b"], [])
    drifted = m.CheckIn("b", 10, 4, moved=True)
    bench.send("b", "check-in", encode(drifted))
    assert bench.working("run-1") == ["a", "b"], "what is at work is done first"
    bench.answer("a", "b")
    assert bench.working(SECOND) == ["a", "b"]
    bench.send("b", "check-in", encode(drifted))
    assert (bench.second.round, bench.working(SECOND)) == (1, ["a", "b"])
    bench.answer("a", "b")
    bench.direct("abort")
    assert (bench.second.phase, bench.working("run-1")) == ("finished", ["a", "b"])
    bench.send("b", "check-in", encode(drifted))
    assert (len(bench.runner.fleet.campaigns), bench.second.phase) == (2, "finished")


def test_two_campaigns_train_at_once_on_parts_of_a_fleet(parted: Campaigns) -> None:
    parted.start_second(where="id = b")
    parted.check_in("a", "b", "c")
    assert (parted.working("run-1"), parted.working(SECOND)) == (["a"], ["b"])
    parted.answer("b")
    assert (parted.campaign.round, parted.second.round) == (1, 2)
    parted.answer("a")
    assert (parted.campaign.round, parted.second.round) == (2, 2)
    assert (parted.working("run-1"), parted.working(SECOND)) == (["a", "c"], ["b"])


def test_an_update_counts_in_the_campaign_that_asked_for_it_also_when_another_has_its_device(
    bench: Campaigns,
) -> None:
    bench.start_second(min_devices=2)
    bench.answer("a")
    (record,) = bench.store.rounds("run-1")
    assert sorted(record.evaluated) == ["a"]
    assert bench.work("a").campaign == SECOND
    assert bench.runner.refused == {}


def test_a_campaign_that_cannot_be_aggregated_is_stopped_and_the_others_go_on(
    parted: Campaigns,
) -> None:
    blobs = MemoryBlobs()
    parted.start_second(blobs=blobs, where="id = b")
    model = blobs.get(parted.second.models["initial"])
    blobs.drop({parted.second.models["initial"]})
    parted.answer("b")
    assert parted.second.phase == "aggregating"
    assert "missing" in parted.runner.trainers[SECOND].problem
    assert parted.runner.condition == "", "the fleet is not"
    parted.answer("a")
    assert parted.campaign.round == 2
    blobs.put(model)
    parted.clock.now_s += 10
    parted.tick()
    assert (parted.runner.trainers[SECOND].problem, parted.second.round) == ("", 2)
    assert parted.working(SECOND) == ["b"]


def test_a_campaign_that_is_ended_asks_nobody_and_stays_ended(bench: Campaigns) -> None:
    bench.check_in("b")
    bench.answer("a")
    assert bench.working("run-1") == ["a", "b"]
    bench.answers()
    bench.direct("abort", "run-1")
    stopped = bench.answers()
    assert [(type(answer), answer.device_id) for answer in stopped] == [
        (m.Finish, "a"),
        (m.Finish, "b"),
    ]
    bench.start(epoch=2)
    bench.check_in("a")
    assert (bench.campaign.phase, bench.campaign.ended) == ("finished", "order")
    assert bench.plans() == []


def test_a_campaign_starts_from_the_models_of_another(fleet: FleetData) -> None:
    bench = Campaigns(fleet, settings={"rounds": 1})
    bench.close(a=(3.0, 2), b=(3.0, 2))
    source = source_of(bench.campaign, bench.blobs)
    trained, blobs = source.models["0"], MemoryBlobs()
    bench.start_second(source, blobs)
    begun = decode_tensors(blobs.get(bench.second.models["initial"]))[0]
    assert {name: array.tolist() for name, array in begun.items()} == {
        name: array.tolist() for name, array in trained.items()
    }


def test_a_grouping_goes_on_from_the_model_of_each_group_and_surveys_everybody_again(
    fleet: FleetData,
) -> None:
    settings = {"min_devices": 1, "min_updates": 1}
    bench, blobs = Campaigns(fleet, algorithm="distfl", settings=settings), MemoryBlobs()
    initial = bench.exported.bundle.initial
    models = {
        key: {n: a + np.float32(i) if a.dtype.kind == "f" else a for n, a in initial.items()}
        for i, key in enumerate("01")
    }
    bench.direct("pause", "run-1")
    bench.start_second(TrainedModels("earlier", models, {"a": "0", "b": "1"}), blobs, min_devices=2)
    bench.direct("abort", "run-1")
    second = bench.second
    assert {d: member.group for d, member in second.members.items()} == {
        "a": f"{RELEASED}0",
        "b": f"{RELEASED}1",
    }
    plans = {p.device_id: p for p in bench.answers() if isinstance(p, m.Plan) and p.run_id == "r2"}
    assert sorted(plans) == ["a", "b"]
    for device_id, key in (("a", "0"), ("b", "1")):
        plan = plans[device_id]
        assert plan.model == second.models[f"{RELEASED}{key}"]
        assert any(isinstance(verb, m.Evaluate) and verb.graph == "survey" for verb in plan.verbs)
        name = next(
            n for n, a in initial.items() if a.dtype.kind == "f" and n.startswith("shared/")
        )
        held = decode_tensors(blobs.get(plan.model))[0]
        np.testing.assert_array_equal(held[name], models[key][name])


def test_tensors_that_another_bundle_has_not_begin_with_its_own_weights(
    fleet: FleetData, caplog: pytest.LogCaptureFixture
) -> None:
    bench, blobs = Campaigns(fleet), MemoryBlobs()
    initial = bench.exported.bundle.initial
    name = sorted(n for n in initial if n.startswith("shared/"))[0]
    other = {
        n: a + np.float32(1)
        for n, a in initial.items()
        if n != name and n.startswith(("shared/", "statistic/"))
    }
    bench.start_second(TrainedModels("another bundle", {"0": other}, {}), blobs)
    begun = decode_tensors(blobs.get(bench.second.models["initial"]))[0]
    np.testing.assert_array_equal(begun[name], initial[name])
    assert all((begun[n] == array).all() for n, array in other.items())
    assert (
        f"the bundle's weights where these do not fit: tensors=1/{len(begun)}: {name}"
        in caplog.text
    )
