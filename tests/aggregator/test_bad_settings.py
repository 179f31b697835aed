"""A learning rate or a bound that suits no device: the campaign is named, and no device is."""

from typing import Any

import pytest

from aggregator.aggregation.orders import rolled_back
from aggregator.fleet import events as e
from aggregator.fleet.divergence import NAMED, STILL
from aggregator.http.dashboard.alerts import Alert, campaign_alerts
from aggregator.view.fleet import FleetView
from simulation.datasets.windows import FleetData
from tests.aggregator.training import NAME, Training

SEVEN = "abcdefg"


def bench_of(fleet: FleetData, device_ids: str = SEVEN, **settings: Any) -> Training:
    chosen = {"keep_models": 3, "rounds": 90, "min_updates": 4, "norm_cap": 10.0}
    many = {"min_devices": len(device_ids)}
    return Training(fleet, settings={**chosen, **many, **settings}, device_ids=device_ids)


def refuse(bench: Training, device_ids: str, **changes: Any) -> None:
    """Have the updates of these devices refused as too large."""
    for device_id in device_ids:
        work = bench.fleet.devices[device_id].assignment
        assert work is not None
        own: dict[str, Any] = {"device_id": device_id, "serial": work.serial, "too_large": True}
        bench.feed(e.AssignmentDeclined(at_s=bench.now_s, **own | changes))


def alerts(bench: Training) -> dict[str, Alert]:
    view = FleetView(bench.fleet).campaigns[NAME]
    return {alert.id: alert for alert in campaign_alerts(NAME, view)}


def named(bench: Training) -> list[str]:
    return [pull.device_id for pull in FleetView(bench.fleet).campaigns[NAME].pulls]


class TestRefusals:
    def test_the_refused_updates_of_most_devices_are_the_learning_rate(
        self, fleet: FleetData
    ) -> None:
        bench = bench_of(fleet)
        for device_id in "efg":
            bench.update(device_id)
        refuse(bench, "abc")
        assert "diverges" not in alerts(bench), "three of seven are no majority"
        refuse(bench, "d")
        alert = alerts(bench)["diverges"]
        assert alert.title == f"Campaign {NAME} diverges: too high a learning rate"
        assert alert.text.startswith(
            "the updates of 4 of the 7 devices of round 1 were refused as too large or not finite"
        )
        assert "lower --lr" in alert.text
        assert not alert.devices

    def test_the_alert_ends_with_the_round_that_has_the_devices_updates(
        self, fleet: FleetData
    ) -> None:
        bench = bench_of(fleet)
        refuse(bench, SEVEN)
        assert "diverges" in alerts(bench)
        for _ in range(3):  # the rests of the devices
            bench.now_s += 200.0
            bench.ring()
        for device_id in SEVEN:
            bench.check_in(device_id, 11)
        bench.ring()
        bench.close(**dict.fromkeys(SEVEN, (1.0, 2)))
        assert "diverges" not in alerts(bench)
        assert bench.campaign.refused == 0

    def test_it_stays_in_the_rounds_of_the_few_that_are_not_refused(self, fleet: FleetData) -> None:
        bench = bench_of(fleet, min_updates=2)
        refuse(bench, "abcd")
        bench.close(e=(1.0, 2), f=(1.0, 2), g=(1.0, 2))
        assert alerts(bench)["diverges"].title.endswith("too high a learning rate")
        bench.configure(min_devices=3)
        bench.close(e=(1.0, 2), f=(1.0, 2), g=(1.0, 2))
        assert alerts(bench)["diverges"].title.endswith("too high a learning rate")

    @pytest.mark.parametrize("devices", ["ab", SEVEN])
    def test_one_device_that_is_refused_again_and_again_is_no_learning_rate(
        self, fleet: FleetData, devices: str
    ) -> None:
        bench = bench_of(fleet, devices, min_updates=len(devices))
        for _ in range(4):
            refuse(bench, "a")
            bench.now_s += 4000.0
            bench.ring()
        assert bench.campaign.refused == 1
        assert "diverges" not in alerts(bench)

    def test_an_assignment_that_is_declined_is_no_refusal(self, fleet: FleetData) -> None:
        bench = bench_of(fleet)
        refuse(bench, SEVEN, too_large=False)
        assert "diverges" not in alerts(bench)

    def test_a_forgotten_device_does_not_count(self, fleet: FleetData) -> None:
        bench = bench_of(fleet)
        refuse(bench, "abcd")
        bench.feed(e.Forgotten(at_s=bench.now_s, device_id="d"))
        assert bench.campaign.refused == 3


class TestCrowds:
    def test_with_most_updates_out_of_bounds_the_learning_rate_is_named_and_no_device(
        self, fleet: FleetData
    ) -> None:
        bench = bench_of(fleet)
        bench.close(**dict.fromkeys(SEVEN, (1.0, 2)))
        for _ in range(6):
            notes = bench.close(**{d: (90.0 if d in "abcd" else 1.0, 2) for d in SEVEN})
            assert sorted(notes["left_out"]) == [*"abcd"]
            assert not named(bench)
        assert bench.campaign.members["a"].score > NAMED
        alert = alerts(bench)["diverges"]
        assert alert.title.endswith("too high a learning rate")
        assert "the updates of 4 of 7 devices of a group stand out, so none is named" in alert.text
        assert "3 updates are within bounds, at least 4 are needed" in alert.text
        assert not alert.devices

    def test_devices_that_stand_out_in_turn_are_no_single_device(self, fleet: FleetData) -> None:
        bench = bench_of(fleet, "abcdefgh")
        for odd in ("abc", "abd", "acd", "bcd", "abc", "abd", "acd", "bcd"):
            bench.close(**{d: (-1.0 if d in odd else 1.0, 2) for d in "abcdefgh"})
            if bench.campaign.round > 4:
                assert not named(bench)
        alert = alerts(bench)["diverges"]
        assert alert.title == f"Campaign {NAME} diverges: its settings, not a device"
        assert "the updates of 4 of 8 devices of a group stand out" in alert.text

    @pytest.mark.parametrize("odd", ["a", "ab", "abc"])
    def test_fewer_than_half_are_named(self, fleet: FleetData, odd: str) -> None:
        bench = bench_of(fleet)
        for _ in range(4):
            bench.close(**{d: (-10.0 if d in odd else 1.0, 2) for d in SEVEN})
        assert named(bench) == [*odd]
        assert "diverges" not in alerts(bench)

    def test_the_alert_ends_when_the_devices_agree_again(self, fleet: FleetData) -> None:
        bench = bench_of(fleet)
        bench.close(**dict.fromkeys(SEVEN, (1.0, 2)))
        for _ in range(4):
            bench.close(**{d: (90.0 if d in "abcd" else 1.0, 2) for d in SEVEN})
        for _ in range(4):
            bench.close(**dict.fromkeys(SEVEN, (1.0, 2)))
            assert not named(bench)
        assert alerts(bench).keys().isdisjoint({"diverges", "unchanged", "stands-out"})


class TestStandstill:
    def stuck(self, fleet: FleetData, rounds: int) -> Training:
        """A campaign after rounds whose new models are all too far from the last one."""
        bench = bench_of(fleet)
        for _ in range(5):
            bench.close(**dict.fromkeys(SEVEN, (0.5, 2)))
        for _ in range(rounds):
            assert "set_aside" in bench.close(**dict.fromkeys(SEVEN, (30.0, 2)))
        return bench

    def test_rounds_that_change_nothing_are_an_alert_with_their_number_and_reason(
        self, fleet: FleetData
    ) -> None:
        assert "unchanged" not in alerts(self.stuck(fleet, STILL - 1))
        alert = alerts(self.stuck(fleet, 11))["unchanged"]
        assert alert.title == f"11 rounds of {NAME} in a row changed nothing"
        assert "every new model is too far from the last one" in alert.text
        assert "lower --lr" in alert.text

    def test_no_device_is_named_meanwhile(self, fleet: FleetData) -> None:
        bench = self.stuck(fleet, STILL)
        for _ in range(5):
            bench.close(**{d: (400.0 if d == "b" else 30.0, 2) for d in SEVEN})
        assert bench.campaign.members["b"].score > NAMED
        assert not named(bench)

    def test_a_round_that_changes_the_model_ends_it(self, fleet: FleetData) -> None:
        bench = self.stuck(fleet, 5)
        bench.close(**dict.fromkeys(SEVEN, (0.5, 2)))
        assert "unchanged" not in alerts(bench)
        assert not bench.campaign.standstills

    def test_a_return_to_an_earlier_round_ends_it(self, fleet: FleetData) -> None:
        bench = self.stuck(fleet, 5)
        bench.feed(rolled_back(bench.campaign, 3, bench.algorithm, bench.blobs, bench.now_s))
        assert "unchanged" not in alerts(bench)

    def test_changes_of_zero_are_named(self, fleet: FleetData) -> None:
        bench = bench_of(fleet)
        for _ in range(STILL + 1):
            bench.close(**dict.fromkeys(SEVEN, (0.0, 2)))
        alert = alerts(bench)["unchanged"]
        assert "the mean change of its devices is zero" in alert.text
        assert "look at --lr" in alert.text

    def test_groups_that_are_all_too_small_are_named(self, fleet: FleetData) -> None:
        bench = bench_of(fleet, min_group=8)
        for _ in range(STILL):
            bench.close(**dict.fromkeys(SEVEN, (1.0, 2)))
        alert = alerts(bench)["unchanged"]
        assert "its group has fewer devices than --min-group: 7" in alert.text
        assert "lower --min-group" in alert.text

    def test_of_two_devices_the_loud_one_that_stops_every_round_is_named(
        self, fleet: FleetData
    ) -> None:
        bench = bench_of(fleet, "ab", min_updates=2)
        bench.close(a=(1.0, 2), b=(1.0, 2))
        for _ in range(STILL + 1):
            assert "set_aside" in bench.close(a=(1.0, 2), b=(90.0, 2))
        assert "unchanged" in alerts(bench)
        assert named(bench) == ["b"]

    def test_a_finished_campaign_has_none(self, fleet: FleetData) -> None:
        bench = self.stuck(fleet, 5)
        bench.configure(rounds=1)
        assert "unchanged" in alerts(bench)
        bench.feed(e.Directed(at_s=bench.now_s, campaign=NAME, order="abort"))
        bench.now_s += 1000.0
        bench.ring()
        assert bench.campaign.phase == "finished"
        assert "unchanged" not in alerts(bench)
