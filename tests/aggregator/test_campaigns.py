"""Several campaigns in one service: who works for which, and what becomes of the others where one
cannot go on."""

import numpy as np
import pytest

from aggregator.aggregation.inherit import Source
from aggregator.service.steering import source_of
from algorithms.core.keys import RELEASED
from simulation.datasets.windows import FleetData
from tests.aggregator.campaign_cases import Campaigns, online
from tests.aggregator.full_disk import Disk, FullStore
from wire import messages as m
from wire.arrays.tensors import decode_tensors
from wire.codec import encode


@pytest.fixture
def bench(fleet: FleetData) -> Campaigns:
    return Campaigns(fleet, settings={"min_devices": 1})


def test_a_new_campaign_takes_the_devices_and_gives_them_back_when_it_is_over(
    bench: Campaigns,
) -> None:
    bench.answers()
    second = bench.second()
    assert bench.plans() == [("r2", "a")], "it opens with the first of them; b joins its next round"
    assert (online(bench.campaign), online(second)) == ([], ["a", "b"])
    assert second.abort()
    bench.runner.tick()
    assert (second.finished, online(bench.campaign)) == (True, ["a", "b"])
    assert {run for run, _ in bench.plans()} == {"r"}


def test_two_campaigns_train_at_once_on_parts_of_a_fleet(bench: Campaigns) -> None:
    second = bench.second(takes=lambda device_id: device_id == "b")
    bench.check_in("a", "b", "c")
    assert (online(bench.campaign), online(second)) == (["a", "c"], ["b"])
    bench.send("b", "update", bench.of(second, "b"))
    assert second.state.round == 2
    bench.send("a", "update", bench.of(bench.campaign, "a"))
    assert bench.state.round == 2


def test_an_update_counts_in_the_campaign_that_asked_for_it_also_when_its_device_has_moved_on(
    bench: Campaigns,
) -> None:
    late = bench.payload("a")
    bench.second()
    bench.send("a", "update", late)
    (record,) = bench.store.rounds()
    assert sorted(record.evaluated) == ["a"], "nobody else is there for it, so its round is over"
    assert bench.runner.refused == {}


def test_a_campaign_that_cannot_be_saved_is_paused_and_the_others_go_on(bench: Campaigns) -> None:
    disk = Disk()
    second = bench.second(takes=lambda device_id: device_id == "b", store=FullStore(disk))
    bench.check_in("a", "b")
    disk.full = True
    bench.answers()
    bench.send("b", "update", bench.of(second, "b"))
    assert [type(answer).__name__ for answer in bench.answers()] == ["Busy"]
    assert second.paused
    assert bench.runner.paused == "", "the fleet is not"
    bench.send("a", "update", bench.payload("a"))
    assert "a" in bench.state.received or bench.state.round == 2
    disk.full = False
    bench.clock.now_s += 10
    bench.runner.tick()
    bench.send("b", "update", bench.of(second, "b"))
    assert (second.paused, second.state.round) == ("", 2)


def test_devices_of_a_campaign_that_the_operator_paused_work_for_another(bench: Campaigns) -> None:
    second = bench.second()
    second.hold()
    bench.runner.tick()
    assert online(bench.campaign) == ["a", "b"]
    bench.clock.now_s += 50
    bench.runner.tick()
    assert second.paused, "time does not end it"
    second.try_to_go_on(told=True)
    bench.runner.tick()
    assert (second.paused, online(second)) == ("", ["a", "b"])


def test_a_proof_of_a_greater_epoch_is_taken_for_every_campaign(
    bench: Campaigns, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = bench.second(takes=lambda device_id: device_id == "b")
    monkeypatch.setattr(bench.runner._rivals, "proven_epoch", lambda _device_id, _proof: 41)
    state = bench.state
    declined = m.Decline("r", 1, state.round, state.attempt, "a", "stale", "x", "proof")
    bench.send("a", "decline", encode(declined))
    assert (bench.state.epoch, second.state.epoch, bench.runner.epoch) == (42, 42, 42)


def test_after_one_is_rolled_back_the_others_speak_with_its_epoch_too(fleet: FleetData) -> None:
    bench = Campaigns(fleet, settings={"rounds": 1, "keep_models": 2})
    bench.close(a=(3.0, 2), b=(3.0, 2))
    bench.clock.now_s += 1000
    bench.runner.tick()
    second = bench.second()
    bench.check_in("a", "b")
    assert (bench.state.phase, second.state.phase) == ("finished", "training")
    before = second.state.epoch
    bench.answers()
    assert bench.campaign.roll_back(0)
    bench.runner.tick()
    assert bench.state.epoch == second.state.epoch == before + 1
    plans = [plan for plan in bench.answers() if isinstance(plan, m.Plan)]
    assert {(plan.run_id, plan.epoch) for plan in plans} == {("r2", before + 1)}, (
        "devices decline what has a smaller one"
    )
    second.hold()
    assert bench.campaign.roll_back(0)
    second.try_to_go_on(told=True)
    bench.runner.tick()
    assert second.state.epoch == bench.state.epoch


def test_a_campaign_that_is_ended_asks_nobody_and_stays_ended(bench: Campaigns) -> None:
    bench.answers()
    assert bench.campaign.abort()
    assert [type(answer).__name__ for answer in bench.answers()] == ["Finish", "Finish"]
    bench.start(bench.state.settings, bench.store, bench.blobs)
    bench.check_in("a")
    assert bench.state.phase == "finished"
    assert bench.plans() == []


def test_a_campaign_starts_from_the_models_of_another(fleet: FleetData) -> None:
    bench = Campaigns(fleet, settings={"rounds": 1})
    bench.close(a=(3.0, 2), b=(3.0, 2))
    source = source_of(bench.campaign)
    trained = source.models["0"]
    second = bench.second(source=source)
    begun = decode_tensors(second.blobs.get(second.state.models["initial"]))[0]
    assert {name: array.tolist() for name, array in begun.items()} == {
        name: array.tolist() for name, array in trained.items()
    }


def test_a_grouping_goes_on_from_the_model_of_each_group_and_surveys_everybody_again(
    fleet: FleetData,
) -> None:
    bench = Campaigns(fleet, algorithm="distfl")
    initial = bench.parts[1].initial
    models = {
        key: {n: a + np.float32(i) if a.dtype.kind == "f" else a for n, a in initial.items()}
        for i, key in enumerate("01")
    }
    second = bench.second(source=Source("earlier", models, {"a": "0", "b": "1"}))
    state = second.state
    assert {device: state.starts[device] for device in "ab"} == {
        "a": f"{RELEASED}0",
        "b": f"{RELEASED}1",
    }
    plans = [
        answer for answer in bench.answers() if isinstance(answer, m.Plan) and answer.run_id == "r2"
    ]
    assert plans
    for plan in plans:
        assert plan.model == state.models[state.starts[plan.device_id]]
        assert any(isinstance(verb, m.Evaluate) and verb.graph == "survey" for verb in plan.verbs)
    for device_id in sorted(state.cohort):
        name = next(
            iter(n for n, a in initial.items() if a.dtype.kind == "f" and n.startswith("shared/"))
        )
        held = decode_tensors(second.blobs.get(state.models[state.starts[device_id]]))[0]
        np.testing.assert_array_equal(
            held[name], models[state.starts[device_id].removeprefix(RELEASED)][name]
        )


def test_tensors_that_another_bundle_has_not_begin_with_its_own_weights(
    fleet: FleetData, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Campaigns(fleet)
    initial = bench.parts[1].initial
    name = sorted(n for n in initial if n.startswith("shared/"))[0]
    other = {
        n: a + np.float32(1)
        for n, a in initial.items()
        if n != name and n.startswith(("shared/", "statistic/"))
    }
    second = bench.second(source=Source("another bundle", {"0": other}, {}))
    begun = decode_tensors(second.blobs.get(second.state.models["initial"]))[0]
    np.testing.assert_array_equal(begun[name], initial[name])
    assert all((begun[n] == array).all() for n, array in other.items())
    assert f"the bundle's own weights: {name}" in caplog.text
