"""What operators order while something is under way: another campaign, a pause, updates on their
way."""

from typing import Any

import msgspec
import numpy as np
import pytest

from aggregator.aggregation.apply import aggregate
from aggregator.core.ports import StorageFailed
from aggregator.storage.memory import MemoryStore
from simulation.datasets.windows import FleetData
from tests.aggregator.bench import Bench
from tests.aggregator.campaign_cases import Campaigns, online
from wire import messages as m
from wire.codec import encode_update


class FailingStore(MemoryStore):
    """A store on a disk that can be full."""

    full = False

    def commit(self, *given: Any, **named: Any) -> None:
        if self.full:
            raise StorageFailed("disk is full")
        super().commit(*given, **named)


@pytest.fixture
def two(fleet: FleetData) -> Campaigns:
    return Campaigns(fleet, settings={"min_devices": 1})


def moved(bench: Bench) -> None:
    """Let updates change something, so that rounds have models of their own."""
    bench.tensors = {
        name: a + np.float32(0.1) if name.startswith("delta/") else a
        for name, a in bench.tensors.items()
    }


class TestTwoCampaigns:
    def test_a_deadline_of_the_older_one_takes_nobody_away_from_the_newer(
        self, two: Campaigns
    ) -> None:
        two.clock.now_s += 50
        second = two.second()
        two.check_in("a", "b")
        two.answers()
        two.clock.now_s = two.state.deadline_at_s + 1
        two.runner.tick()
        assert [run for run, _ in two.plans() if run == "r"] == []
        assert (online(two.campaign), online(second)) == ([], ["a", "b"])

    def test_a_late_update_for_the_older_one_counts_and_brings_its_device_no_plan_of_it(
        self, two: Campaigns
    ) -> None:
        late = two.payload("a")
        second = two.second()
        two.check_in("a", "b")
        two.answers()
        two.send("a", "update", late)
        answers = two.answers()
        assert [type(answer).__name__ for answer in answers if not isinstance(answer, m.Plan)] == [
            "Acknowledge"
        ]
        assert {answer.run_id for answer in answers if isinstance(answer, m.Plan)} <= {"r2"}
        assert online(second) == ["a", "b"]

    def test_the_older_one_goes_on_after_a_pause_without_the_devices_of_the_newer(
        self, two: Campaigns
    ) -> None:
        two.campaign.hold()
        second = two.second()
        two.check_in("a", "b")
        two.answers()
        two.campaign.try_to_go_on(told=True)
        two.runner.tick()
        assert {run for run, _ in two.plans()} <= {"r2"}
        assert online(second) == ["a", "b"]


class TestPaused:
    def test_a_full_disk_meanwhile_does_not_end_an_operator_s_pause(self, two: Campaigns) -> None:
        store = FailingStore()
        second = two.second(store=store)
        two.check_in("a", "b")
        store.full = True
        second.hold()
        two.runner.tick()
        store.full = False
        for _ in range(3):
            two.clock.now_s += 10
            two.runner.tick()
        assert (second.held, bool(second.paused), online(two.campaign)) == (True, True, ["a", "b"])
        second.try_to_go_on(told=True)
        assert (second.held, second.paused) == (False, "")

    def test_nothing_is_asked_or_aggregated_until_it_goes_on(self, fleet: FleetData) -> None:
        bench = Bench(fleet, settings={"min_devices": 2, "min_updates": 1})
        bench.send("a", "update", bench.payload("a"))
        bench.campaign.hold()
        bench.answers()
        bench.runner.forget("b")
        assert (bench.state.round, [a for a in bench.answers() if isinstance(a, m.Plan)]) == (1, [])
        bench.campaign.try_to_go_on(told=True)
        assert (bench.state.round, len([a for a in bench.answers() if isinstance(a, m.Plan)])) == (
            2,
            1,
        )

    def test_a_device_that_is_banned_meanwhile_counts_for_nothing_when_it_goes_on(
        self, fleet: FleetData, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As where its update is what the algorithm fails at."""
        bench = Bench(fleet, settings={"min_devices": 2, "min_updates": 1})

        def fails(run: Any, *given: Any) -> Any:
            if "b" in run.received:
                raise ValueError("not this one")
            return aggregate(run, *given)

        monkeypatch.setattr("aggregator.service.campaign.aggregate", fails)
        for device_id in ("a", "b"):
            bench.send(device_id, "update", bench.payload(device_id))
        assert "cannot be aggregated" in bench.campaign.paused
        bench.runner.devices.ban("b", "poison")
        bench.campaign.try_to_go_on(told=True)
        assert bench.campaign.paused == ""
        assert "b" not in bench.state.received


class TestRollBack:
    def test_an_update_to_the_models_that_were_given_up_costs_its_device_nothing(
        self, fleet: FleetData
    ) -> None:
        bench = Bench(fleet, settings={"keep_models": 3, "max_drop": 1.0, "min_updates": 2})
        moved(bench)
        for _ in range(2):
            bench.close(a=(1.0, 1), b=(1.0, 1))
        late = {device_id: bench.payload(device_id) for device_id in ("a", "b")}
        bench.answers()
        bench.campaign.roll_back(1)
        plans = {plan.device_id: plan for plan in bench.answers() if isinstance(plan, m.Plan)}
        assert {plan.attempt for plan in plans.values()} == {1}
        for device_id, payload in late.items():
            bench.send(device_id, "update", payload)
        assert {answer.reason for answer in bench.answers()} == {"wrong-round"}
        for device_id, plan in plans.items():
            said = {
                "device_id": device_id,
                "round": plan.round,
                "attempt": plan.attempt,
                "model": plan.model,
            }
            bench.send(
                device_id,
                "update",
                encode_update(msgspec.structs.replace(bench.update, **said), bench.tensors),
            )
        assert bench.state.round == plans["a"].round + 1

    def test_devices_train_by_the_settings_of_now(self, fleet: FleetData) -> None:
        bench = Bench(fleet, settings={"keep_models": 5, "max_drop": 1.0, "local_epochs": 1})
        moved(bench)
        for _ in range(2):
            bench.close(a=(1.0, 1), b=(1.0, 1))
        bench.campaign.retune(
            msgspec.structs.replace(bench.state.next_settings, local_epochs=3),
            bench.campaign._algorithm.mean,
        )
        bench.close(a=(1.0, 1), b=(1.0, 1))
        bench.answers()
        bench.campaign.roll_back(1)
        plan = next(answer for answer in bench.answers() if isinstance(answer, m.Plan))
        assert [verb.epochs for verb in plan.verbs if isinstance(verb, m.Train)] == [3]
