"""Orders of operators during other work: another campaign, a pause, updates on their way."""

from typing import Any

import numpy as np
import pytest

from aggregator.aggregation.apply import aggregate
from aggregator.fleet.events import Directed
from aggregator.operator.device_orders import ban
from simulation.datasets.windows import FleetData
from tests.aggregator.bench import Bench
from tests.aggregator.campaign_cases import SECOND, Campaigns
from tests.aggregator.full_disk import Disk, FullStore
from wire import messages as m
from wire.codec import encode

FIRST = "run-1"


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def two(fleet: FleetData, disk: Disk) -> Campaigns:
    """A campaign of `a` and `b`."""
    return Campaigns(fleet, FullStore(disk), settings={"deadline_s": 300.0})


def direct(bench: Bench, order: Any) -> None:
    """Pause or resume the campaign by an operator's order."""
    bench.runner.order(Directed(at_s=bench.clock(), campaign=FIRST, order=order))
    bench.tick()


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
        two.start_second()
        assert two.working(FIRST) == ["a", "b"], "what is at work is done first"
        for device_id in ("a", "b"):
            decline = m.Decline("r", 1, 1, two.work(device_id).serial, device_id, "failed", "")
            two.send(device_id, "decline", encode(decline))
        two.clock.now_s += 61
        two.tick()
        assert (two.working(FIRST), two.working(SECOND)) == ([], ["a", "b"])
        two.answers()
        two.clock.now_s = two.campaign.deadline_s + 1
        two.tick()
        assert two.campaign.attempt == 1
        assert [run for run, _ in two.plans() if run == "r"] == []
        assert (two.working(FIRST), two.working(SECOND)) == ([], ["a", "b"])

    def test_the_older_one_goes_on_after_a_pause_without_the_devices_of_the_newer(
        self, two: Campaigns
    ) -> None:
        two.answer("a", "b")
        two.direct("pause", FIRST)
        two.answer("a", "b")
        assert two.working(FIRST) == []
        two.start_second()
        assert two.working(SECOND) == ["a", "b"]
        two.answers()
        two.direct("resume", FIRST)
        assert {run for run, _ in two.plans()} <= {"r2"}
        assert two.working(SECOND) == ["a", "b"]


class TestPaused:
    def test_a_full_disk_meanwhile_does_not_end_an_operator_s_pause(
        self, two: Campaigns, disk: Disk
    ) -> None:
        two.start_second()
        two.direct("pause")
        late = two.payload("a")
        disk.full = True
        assert isinstance(two.verdict(late), m.Busy)
        disk.full = False
        for _ in range(3):
            two.clock.now_s += 10
            two.tick()
        assert (two.runner.problem, two.second.paused) == ("", True)
        two.answer("a", "b")
        assert (two.working(FIRST), two.working(SECOND)) == (["a", "b"], [])
        two.direct("resume")
        assert not two.second.paused

    def test_nothing_is_asked_or_aggregated_until_it_goes_on(self, fleet: FleetData) -> None:
        bench = Bench(fleet, settings={"min_devices": 2, "min_updates": 1})
        bench.send("a", "update", bench.payload("a"))
        direct(bench, "pause")
        bench.answers()
        bench.runner.forget("b")
        bench.send("c", "check-in", encode(m.CheckIn("c", 10, 4)))
        assert bench.campaign.round == 1
        assert [answer for answer in bench.answers() if isinstance(answer, m.Plan)] == []
        direct(bench, "resume")
        assert bench.campaign.round == 2
        plans = [answer.device_id for answer in bench.answers() if isinstance(answer, m.Plan)]
        assert sorted(plans) == ["a", "c"]

    def test_a_device_that_is_banned_meanwhile_counts_for_nothing_when_it_goes_on(
        self, fleet: FleetData, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The outcome is that of an update at which the algorithm fails."""
        bench = Bench(fleet, settings={"min_devices": 2, "min_updates": 1})

        def fails(campaign: Any, *others: Any) -> Any:
            if "b" in campaign.updates:
                raise ValueError("not this one")
            return aggregate(campaign, *others)

        monkeypatch.setattr("aggregator.service.trainer.aggregate", fails)
        for device_id in ("a", "b"):
            bench.send(device_id, "update", bench.payload(device_id))
        assert "cannot be aggregated" in bench.runner.condition
        bench.runner.order(*ban(bench.runner.fleet, "b", "poison", bench.clock()))
        bench.resume()
        assert (bench.runner.condition, bench.campaign.round) == ("", 2)
        assert "b" not in bench.campaign.made_by
        assert "b" not in bench.received


class TestRollBack:
    def test_an_update_to_the_models_that_were_given_up_costs_its_device_nothing(
        self, fleet: FleetData
    ) -> None:
        bench = Bench(fleet, settings={"keep_models": 3, "max_drop": 1.0})
        moved(bench)
        for _ in range(2):
            bench.close(a=(1.0, 1), b=(1.0, 1))
        late = {device_id: bench.payload(device_id) for device_id in ("a", "b")}
        bench.answers()
        bench.roll_back(1)
        plans = {plan.device_id: plan for plan in bench.answers() if isinstance(plan, m.Plan)}
        assert sorted(plans) == ["a", "b"]
        for device_id, payload in late.items():
            bench.send(device_id, "update", payload)
        answers = bench.answers()
        assert {answer.device_id for answer in answers} == {"a", "b"}
        assert {getattr(answer, "reason", "") for answer in answers} == {"wrong-round"}
        assert bench.received == {}
        assert [bench.known(d).failures for d in ("a", "b")] == [0, 0]
        for device_id, plan in plans.items():
            own = {"round": plan.round, "attempt": plan.attempt, "model": plan.model}
            bench.send(device_id, "update", bench.payload(device_id, **own))
        assert bench.campaign.round == plans["a"].round + 1
