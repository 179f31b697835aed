"""What devices say of the model in use, on its way through a service; and when a campaign's models
are released."""

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from aggregator.core.round.opening import finish_command
from aggregator.core.state import DeviceCheckedIn
from aggregator.http.api import create_api
from aggregator.service.conditions import Conditions, Counted
from simulation.datasets.windows import FleetData
from tests.aggregator.bench import Bench
from tests.aggregator.rollout_cases import Heard, Releasing
from wire import messages as m
from wire.codec import encode
from wire.errors import ConfigError


class TestInbox:
    @pytest.fixture
    def heard(self) -> Heard:
        return Heard()

    @pytest.fixture
    def bench(self, fleet: FleetData, heard: Heard) -> Bench:
        bench = Bench(fleet, rollouts=heard)
        bench.answers()
        return bench

    def test_what_a_device_says_of_itself_is_taken(self, bench: Bench, heard: Heard) -> None:
        said = m.InUse(
            "a", 1, 1, evaluated=m.Metrics(4, 1.0, 2), latency_ms=3.0, alone="of another model"
        )
        bench.send("a", "in-use", encode(said))
        assert (heard.said, bench.answers()) == ([said], [])
        entry = bench.runner.devices.entry("a")
        assert (entry.release, entry.release_problem, entry.release_alone) == (
            1,
            "",
            "of another model",
        )

    @pytest.mark.parametrize(
        ("message", "reason"),
        [
            (m.InUse("b", 1, 1), "wrong-device"),
            (m.InUse("a", 1, 1, evaluated=m.Metrics(1, 0.0, 2)), "malformed"),
            (m.InUse("a", 1, 1, before=m.Metrics(1, 1e300, 1)), "malformed"),
            (m.InUse("a", 1, 1, latency_ms=-1.0), "malformed"),
            (m.CheckIn("a", 1, 1), "malformed"),
        ],
    )
    def test_what_cannot_be_is_refused(
        self, bench: Bench, heard: Heard, message: Any, reason: str
    ) -> None:
        bench.send("a", "in-use", encode(message))
        (refused,) = bench.answers()
        assert (refused.reason, refused.about, heard.said) == (reason, "in-use", [])

    def test_a_device_cannot_flood_a_service_with_it(self, bench: Bench, heard: Heard) -> None:
        for _ in range(100):
            bench.send("a", "in-use", encode(m.InUse("a", 1, 1)))
        assert (len(heard.said), bench.runner.refused["too-many"]) == (20, 80)

    def test_a_finished_run_of_a_fleet_with_releases_offers_no_model(self, bench: Bench) -> None:
        bench.campaign._carry_out(finish_command(bench.state, "a"))
        (finish,) = bench.answers()
        assert finish.releases


class TestPolicy:
    def test_a_run_that_is_over_is_released_once_with_what_devices_found(
        self, fleet: FleetData, tmp_path: Path
    ) -> None:
        service = Releasing(fleet, tmp_path)
        service.round()
        service.round()
        assert service.made == []
        service.finish()
        service.policy.tick()
        assert service.made == [(1, 2, "run-1/0")]
        assert service.rollouts is not None
        release = service.rollouts.state.catalogue.releases[1]
        assert (release.metrics, release.devices, release.algorithm) == (
            m.Metrics(8, 2.0, 6),
            2,
            "fedavg",
        )

    def test_a_run_that_was_ended_by_order_is_released_by_order_alone(
        self, fleet: FleetData, tmp_path: Path
    ) -> None:
        service = Releasing(fleet, tmp_path, rounds=9)
        service.round()
        service.bench.campaign.abort()
        service.policy.tick()
        service.policy.observe(service.bench.state, DeviceCheckedIn(9e9, "a", 1, 1))
        service.policy.tick()
        assert (service.bench.state.phase, service.made) == ("finished", [])
        service.order("make-releases", campaign="run-1")
        assert service.made

    def test_a_run_that_goes_on_is_released_after_so_many_rounds(
        self, fleet: FleetData, tmp_path: Path
    ) -> None:
        service = Releasing(fleet, tmp_path, every=2, rounds=9)
        for _ in range(4):
            service.round()
        assert sorted({number for _, number, _ in service.made}) == [2, 4]

    def test_without_an_order_nothing_is_released_by_hand(
        self, fleet: FleetData, tmp_path: Path
    ) -> None:
        service = Releasing(fleet, tmp_path, "manual", rounds=9)
        with pytest.raises(ConfigError, match="no round of training is over"):
            service.order("make-releases", campaign="run-1")
        with pytest.raises(ConfigError, match="expected one of run-1"):
            service.order("make-releases", campaign="run-2")
        service.round()
        assert service.made == []
        assert service.order("make-releases", campaign="run-1").startswith("release 1: run-1/")
        assert service.made

    def test_orders_about_a_rollout(self, fleet: FleetData, tmp_path: Path) -> None:
        service = Releasing(fleet, tmp_path, "manual", rounds=9)
        with pytest.raises(ConfigError, match="nothing of it was ever rolled out"):
            service.order("pause-rollout", campaign="run-1")
        service.round()
        service.order("make-releases", campaign="run-1")
        for order, told in (("pause-rollout", "is paused"), ("resume-rollout", "goes on")):
            assert told in service.order(order, campaign="run-1")
        assert "is past step 1" in service.order("promote-rollout", campaign="run-1", step=0)
        with pytest.raises(ConfigError, match="is at step 2, not at step 1"):
            service.order("promote-rollout", campaign="run-1", step=0)
        service.order("promote-rollout", campaign="run-1", step=1)
        with pytest.raises(ConfigError, match="its last rollout is over, done"):
            service.order("end-rollout", campaign="run-1")
        with pytest.raises(ConfigError, match="there is none of this number"):
            service.order("return-to-release", to=99)
        group = service.made[0][2]
        assert "has the model of release 1 already" in service.order(
            "return-to-release", to=1, group=group
        )
        service.round()
        service.order("make-releases", campaign="run-1")
        assert "devices get back what they had" in service.order("end-rollout", campaign="run-1")


def test_releases_and_rollouts_over_http(fleet: FleetData, tmp_path: Path) -> None:
    service = Releasing(fleet, tmp_path, "manual", rounds=9)
    service.round()
    service.order("make-releases", campaign="run-1")
    rollouts = service.rollouts
    assert rollouts is not None
    bench = service.bench
    conditions = Conditions({}, True, "", "", Counted(), {})
    api = TestClient(
        create_api(
            lambda: {"run-1": bench.campaign},
            lambda: conditions,
            lambda: 0.0,
            bench.runner.devices,
            lambda: rollouts.state,
        )
    )
    listed = api.get("/releases").json()
    assert [release["number"] for release in listed] == [number for number, _, _ in service.made]
    assert listed[0]["accuracy"] is None
    assert api.get("/releases/1").json() == listed[0]
    assert api.get("/releases/99").status_code == 404
    (rollout,) = api.get("/rollouts").json()
    assert (rollout["campaign"], rollout["phase"], rollout["step"]) == ("run-1", "running", 0)
    assert [step["share"] for step in rollout["steps"]] == [0.5, 1.0]
    assert sum(step["offered"] for step in rollout["steps"]) >= 1
