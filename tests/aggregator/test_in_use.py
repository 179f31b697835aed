"""Releases of a campaign's models, operators' orders about them, and their answers over HTTP."""

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from aggregator.fleet.events import Directed
from simulation.datasets.windows import FleetData
from tests.aggregator.http_service import api_of
from tests.aggregator.releasing import Releasing
from wire import messages as m
from wire.codec import encode
from wire.errors import ConfigError


def made(service: Releasing) -> list[tuple[int, int, str]]:
    """Return number, round and group of each release."""
    return [(n, r.round, r.group) for n, r in sorted(service.releases.items())]


class TestPolicy:
    def test_a_run_that_is_over_is_released_once_with_what_devices_found(
        self, fleet: FleetData, tmp_path: Path
    ) -> None:
        service = Releasing(fleet, tmp_path)
        service.round()
        service.round()
        assert made(service) == []
        service.finish()
        service.release()
        assert made(service) == [(1, 2, "0")]
        release = service.releases[1]
        assert (release.metrics, release.devices, release.algorithm) == (
            m.Metrics(8, 2.0, 6),
            2,
            "fedavg",
        )

    def test_a_finished_run_of_a_fleet_with_releases_offers_no_model(
        self, fleet: FleetData, tmp_path: Path
    ) -> None:
        """A device that comes then is told nothing: models to use come as releases."""
        service = Releasing(fleet, tmp_path, "manual", rounds=1)
        service.round()
        service.finish()
        service.bench.answers()
        service.bench.send("a", "check-in", encode(m.CheckIn("a", 10, 4)))
        assert service.bench.answers() == []

    def test_a_finished_run_of_a_fleet_without_releases_offers_its_model_under_a_number(
        self, fleet: FleetData, tmp_path: Path
    ) -> None:
        service = Releasing(fleet, tmp_path, "off", rounds=1)
        service.round()
        service.bench.answers()
        service.finish()
        offers = [each for each in service.bench.answers() if isinstance(each, m.Finish)]
        devices = service.bench.runner.fleet.devices
        assert {each.device_id: each.number for each in offers} == {
            device_id: devices[device_id].last_offer.serial for device_id in "ab"
        }
        assert min(each.number for each in offers) > 0

    def test_a_run_that_was_ended_by_order_is_released_by_order_alone(
        self, fleet: FleetData, tmp_path: Path
    ) -> None:
        service = Releasing(fleet, tmp_path, rounds=9)
        service.round()
        bench = service.bench
        bench.answers()
        bench.runner.order(Directed(at_s=bench.clock(), campaign="run-1", order="abort"))
        bench.tick()
        told = bench.answers()
        assert [(type(each), each.releases) for each in told] == [(m.Finish, True)] * 2
        service.release()
        assert (bench.campaign.phase, made(service)) == ("finished", [])
        service.order("make-releases", campaign="run-1")
        assert made(service)

    def test_a_run_that_goes_on_is_released_after_so_many_rounds(
        self, fleet: FleetData, tmp_path: Path
    ) -> None:
        service = Releasing(fleet, tmp_path, every=2, rounds=9)
        for _ in range(4):
            service.round()
        assert [number for _, number, _ in made(service)] == [2, 4]

    def test_without_an_order_nothing_is_released_by_hand(
        self, fleet: FleetData, tmp_path: Path
    ) -> None:
        service = Releasing(fleet, tmp_path, "manual", rounds=9)
        with pytest.raises(ConfigError, match="no round of training is over"):
            service.order("make-releases", campaign="run-1")
        with pytest.raises(ConfigError, match=r"No campaign 'run-2'\. Known campaigns: run-1"):
            service.order("make-releases", campaign="run-2")
        service.round()
        assert made(service) == []
        assert service.order("make-releases", campaign="run-1") == "release 1: run-1/0"
        assert "it was made before" in service.order("make-releases", campaign="run-1")
        assert made(service) == [(1, 1, "0")]

    def test_orders_about_a_rollout(self, fleet: FleetData, tmp_path: Path) -> None:
        service = Releasing(fleet, tmp_path, "manual", rounds=9)
        with pytest.raises(ConfigError, match="Campaign 'run-1' never had a rollout"):
            service.order("pause-rollout", campaign="run-1")
        service.round()
        service.order("make-releases", campaign="run-1")
        for order, told in (("pause-rollout", "is paused"), ("resume-rollout", "goes on")):
            assert told in service.order(order, campaign="run-1")
        assert "is past step 1" in service.order("promote-rollout", campaign="run-1", step=0)
        with pytest.raises(ConfigError, match="is at step 2, not at step 1"):
            service.order("promote-rollout", campaign="run-1", step=0)
        service.order("promote-rollout", campaign="run-1", step=1)
        with pytest.raises(ConfigError, match="The last rollout of campaign 'run-1' is done"):
            service.order("end-rollout", campaign="run-1")
        with pytest.raises(ConfigError, match=r"No release 99\. `shoal models list` names all"):
            service.order("return-to-release", to=99)
        with pytest.raises(ConfigError, match=r"No device is in group '7'\. Groups with devices"):
            service.order("return-to-release", to=1, group="run-1/7")
        told = service.order("return-to-release", to=1, group="run-1/0")
        assert told == "group run-1/0 returns to the model of release 1"
        service.round()
        service.order("make-releases", campaign="run-1")
        told = service.order("end-rollout", campaign="run-1")
        assert "devices get back their former models" in told


def test_releases_and_rollouts_over_http(fleet: FleetData, tmp_path: Path) -> None:
    service = Releasing(fleet, tmp_path, "manual", rounds=9)
    service.round()
    service.order("make-releases", campaign="run-1")
    api = TestClient(api_of(service), "http://127.0.0.1")
    (listed,) = api.get("/releases").json()
    assert (listed["number"], listed["group"], listed["in_use"]) == (1, "0", 0)
    assert listed["accuracy"] is None
    assert api.get("/releases/1").json() == listed
    assert api.get("/releases/99").status_code == 404
    (rollout,) = api.get("/rollouts").json()
    assert (rollout["campaign"], rollout["phase"], rollout["step"]) == ("run-1", "running", 0)
    assert [step["share"] for step in rollout["steps"]] == [0.5, 1.0]
    service.bench.clock.now_s += 10
    service.bench.tick()
    (rollout,) = api.get("/rollouts").json()
    offered = [step["offered"] for step in rollout["steps"]]
    assert sum(offered) >= 1
    reached = next(d for d in "ab" if service.bench.known(d).last_offer.release)
    service.report(reached)
    assert api.get("/releases/1").json()["in_use"] == 1
    line = api.get(f"/devices/{reached}").json()["line"]
    assert (line["release"], line["answer"]) == (1, "confirmed")
    (rollout,) = api.get("/rollouts").json()
    assert rollout["statements"] == {reached: "confirmed"}
    service.report(reached, problem="it does not load")
    (rollout,) = api.get("/rollouts").json()
    assert rollout["statements"] == {reached: "failed: it does not load"}
    assert f"{reached} (failed: it does not load)" in rollout["reason"]
