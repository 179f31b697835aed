"""A device that pulls a model away from its group is named, and can be excluded."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from aggregator.aggregation.orders import rolled_back
from aggregator.aggregation.pulls import Pull, PullSample
from aggregator.fleet import events as e
from aggregator.fleet.divergence import NOBODY, scored, stands_out
from aggregator.fleet.records import Ban, Member
from aggregator.http.dashboard.alerts import campaign_alerts
from aggregator.http.dashboard.fleet import condition_of
from aggregator.view.fleet import FleetView
from simulation.datasets.windows import FleetData
from tests.aggregator.training import NAME, RECEIVED, Training

SETTINGS = {"keep_models": 3, "rounds": 30}


def bench_of(fleet: FleetData, device_ids: str = "abcde", **settings: Any) -> Training:
    """A campaign whose first round waits for all of these devices."""
    many = {"min_devices": len(device_ids), "min_updates": 2}
    return Training(fleet, settings={**SETTINGS, **many, **settings}, device_ids=device_ids)


def close(bench: Training, liar: str = "", norm: float = -10.0) -> Any:
    """Close a round in which the devices agree, but for one."""
    devices = [d for d, device in bench.fleet.devices.items() if device.assignment is not None]
    return bench.close(**{d: (norm if d == liar else 1.0, 2) for d in devices})


def scores(bench: Training) -> dict[str, float]:
    return {d: m.score for d, m in bench.campaign.members.items() if m.score}


class TestNaming:
    def test_a_device_that_moves_the_model_back_is_named_in_its_third_round(
        self, fleet: FleetData
    ) -> None:
        bench = bench_of(fleet)
        close(bench)
        for _ in range(3):
            assert not FleetView(bench.fleet).campaigns[NAME].pulls
            notes = close(bench, "d")
        pulls = notes["pulls"]
        assert pulls["a"]["direction"] == pytest.approx(1.0)
        assert (pulls["d"]["size"], pulls["d"]["direction"]) == (10.0, -1.0)
        assert pulls["d"]["share"] == pytest.approx(10 / 6, abs=0.001)
        assert sum(pull["share"] for pull in pulls.values()) == pytest.approx(1.0, abs=0.01)
        assert scores(bench) == {"d": 0.66}
        view = FleetView(bench.fleet)
        (pull,) = view.campaigns[NAME].pulls
        assert (pull.device_id, pull.since, pull.last) == ("d", 2, 4)
        alert = next(a for a in campaign_alerts(NAME, view.campaigns[NAME]) if "stands" in a.title)
        assert alert.title == f"A device stands out in {NAME}"
        assert [device.id for device in alert.devices] == ["d"]
        assert "rounds 2 to 4" in alert.devices[0].text
        assert f"shoal campaign exclude FOLDER {NAME} DEVICE --since ROUND" in alert.text
        device = view.device("d")
        assert device is not None
        assert condition_of(device).word == "stands out"

    def test_one_of_twenty_is_named_too(self, fleet: FleetData) -> None:
        bench = bench_of(fleet, "abcdefghijklmnopqrst")
        for _ in range(3):
            close(bench, "k")
        assert [p.device_id for p in FleetView(bench.fleet).campaigns[NAME].pulls] == ["k"]

    @pytest.mark.parametrize("norm", [-1.0, -0.3, 50.0])
    def test_a_quiet_liar_and_a_loud_one_are_named(self, fleet: FleetData, norm: float) -> None:
        bench = bench_of(fleet)
        for _ in range(3):
            close(bench, "a", norm)
        assert [p.device_id for p in FleetView(bench.fleet).campaigns[NAME].pulls] == ["a"]

    def test_an_update_out_of_bounds_is_full_evidence(self, fleet: FleetData) -> None:
        bench = bench_of(fleet, norm_cap=5.0)
        for _ in range(3):
            assert "d" in close(bench, "d", 90.0)["left_out"]
        (pull,) = FleetView(bench.fleet).campaigns[NAME].pulls
        assert pull.device_id == "d"
        assert pull.text.endswith("no model has them")

    def test_a_single_bad_round_names_nobody_and_is_forgotten(self, fleet: FleetData) -> None:
        bench = bench_of(fleet)
        close(bench, "b")
        assert (scores(bench), bench.campaign.suspects) == ({"b": 0.3}, ("b",))
        for _ in range(6):
            close(bench)
        assert (scores(bench), bench.campaign.suspects) == ({}, ())
        assert bench.campaign.members["b"].suspect_since == 0

    def test_two_liars_of_seven_are_both_named(self, fleet: FleetData) -> None:
        bench = bench_of(fleet, "abcdefg")
        for _ in range(3):
            bench.close(**{d: (-10.0 if d in "be" else 1.0, 2) for d in "abcdefg"})
        assert [p.device_id for p in FleetView(bench.fleet).campaigns[NAME].pulls] == ["b", "e"]

    def test_of_three_devices_nobody_is_named(self, fleet: FleetData) -> None:
        bench = bench_of(fleet, "abc")
        for _ in range(4):
            assert "pulls" not in close(bench, "a")
        assert not scores(bench)

    def test_the_version_before_a_suspect_stays_beyond_keep_models(self, fleet: FleetData) -> None:
        bench = bench_of(fleet, keep_models=2)
        for _ in range(3):
            close(bench)
        for _ in range(6):
            close(bench, "c")
        assert bench.campaign.members["c"].suspect_since == 4
        assert [version.round for version in bench.campaign.history] == [3, 7, 8]

    def test_a_forgotten_device_leaves_no_trace_in_the_watch(self, fleet: FleetData) -> None:
        bench = bench_of(fleet)
        for _ in range(4):
            close(bench, "d")
        bench.feed(e.Forgotten(at_s=bench.now_s, device_id="d"))
        assert bench.campaign.suspects == ()
        assert "d" not in bench.campaign.members

    def test_a_banned_device_is_no_alert_any_more(self, fleet: FleetData) -> None:
        bench = bench_of(fleet)
        for _ in range(3):
            close(bench, "d")
        bench.feed(e.Banned(at_s=bench.now_s, device_id="d", ban=Ban(1.0, "")))
        assert FleetView(bench.fleet).campaigns[NAME].pulls == ()


class TestExclusion:
    def test_the_campaign_goes_back_to_before_it_and_trains_on_without_it(
        self, fleet: FleetData
    ) -> None:
        bench = bench_of(fleet)
        close(bench)
        models = bench.campaign.models
        for _ in range(4):
            close(bench, "d")
        since = bench.campaign.members["d"].suspect_since
        assert since == 2
        bench.feed(e.Excluded(at_s=bench.now_s, campaign=NAME, device_id="d"))
        parts = (bench.algorithm, bench.blobs, bench.now_s)
        bench.configure(min_devices=4)
        bench.feed(rolled_back(bench.campaign, since - 1, *parts))
        bench.ring()
        assert (bench.campaign.models, bench.campaign.version.round) == (models, 1)
        working = {d: device.assignment for d, device in bench.fleet.devices.items()}
        assert {d for d, work in working.items() if work and not work.lapsed} == set("abce")
        assert FleetView(bench.fleet).campaigns[NAME].pulls == ()
        bench.now_s += 1
        for device_id in "abce":
            bench.update(device_id)
        assert bench.campaign.made_by == ("a", "b", "c", "e")

    def test_its_update_of_the_open_round_and_a_late_one_do_not_count(
        self, fleet: FleetData
    ) -> None:
        bench = bench_of(fleet)
        bench.update("d")
        assert "d" in bench.campaign.updates
        bench.feed(e.Excluded(at_s=bench.now_s, campaign=NAME, device_id="d"))
        assert "d" not in bench.campaign.updates
        bench.feed(e.Excluded(at_s=bench.now_s, campaign=NAME, device_id="e"))
        work = bench.fleet.devices["e"].assignment
        assert work is not None
        assert work.lapsed
        bench.update("e")
        assert "e" not in bench.campaign.updates
        assert any(
            isinstance(c, e.AcknowledgeUpdate) and c.device_id == "e" for c in bench.commands
        )

    def test_twice_is_once_and_it_can_be_included_again(self, fleet: FleetData) -> None:
        bench = bench_of(fleet)
        order = e.Excluded(at_s=bench.now_s, campaign=NAME, device_id="d")
        bench.feed(order)
        before = bench.fleet
        assert bench.feed(order) == []
        assert bench.fleet == before
        bench.feed(e.Excluded(at_s=bench.now_s, campaign=NAME, device_id="d", excluded=False))
        assert bench.campaign.members["d"] == Member()
        bench.ring()
        close_devices = [d for d, x in bench.fleet.devices.items() if x.assignment is not None]
        assert "d" in close_devices


class TestSample:
    def test_no_device_knows_which_values_are_compared(self) -> None:
        values = np.arange(1_000_000, dtype=np.float32)

        def taken(secret: bytes, number: int) -> list[float]:
            sample = PullSample(10, secret, number)
            sample.read("a", lambda: {"delta/x": values})
            return list(sample._rows["a"])

        assert taken(b"x", 1) == taken(b"x", 1)
        assert 1000 < len(taken(b"x", 1)) <= 1024
        assert not set(taken(b"x", 1)) <= set(taken(b"y", 1)) | set(taken(b"x", 2))

    def test_a_large_round_is_compared_by_fewer_values_and_a_huge_one_not_at_all(self) -> None:
        for count, width in ((2_000, 524), (20_000, None)):
            sample = PullSample(count, b"x", 1)
            sample.read("a", lambda: {"delta/x": np.zeros(4_000, np.float32)})
            assert len(sample._rows.get("a", ())) <= (width or 0)
            assert ("a" in sample._rows) == (width is not None)

    def test_equal_devices_do_not_make_a_small_difference_a_large_one(self) -> None:
        sample = PullSample(5, b"x", 1)
        rows = np.ones((5, 100), np.float32)
        rows[4] *= 1.1
        for name, row in zip("abcde", rows, strict=True):
            sample.read(name, partial(dict, {"delta/x": row}))
        pulls = sample.pulls(dict.fromkeys("abcde", RECEIVED), dict.fromkeys("abcde", "0"), {})
        assert {d: pull.evidence for d, pull in pulls.items()} == dict.fromkeys("abcde", 0.0)

    def test_devices_that_had_nothing_to_learn_are_not_compared(self) -> None:
        sample = PullSample(5, b"x", 1)
        for name in "abcde":
            row = np.full(100, float(name == "c"), np.float32)
            sample.read(name, partial(dict, {"delta/x": row}))
        assert not sample.pulls(dict.fromkeys("abcde", RECEIVED), dict.fromkeys("abcde", "0"), {})

    def test_groups_are_compared_by_themselves(self) -> None:
        sample = PullSample(8, b"x", 1)
        for name in "abcdefgh":
            row = np.full(100, 1.0 if name in "abcd" else -1.0, np.float32)
            sample.read(name, partial(dict, {"delta/x": row}))
        groups = {name: "0" if name in "abcd" else "1" for name in "abcdefgh"}
        pulls = sample.pulls(dict.fromkeys("abcdefgh", RECEIVED), groups, {})
        assert {pull.direction for pull in pulls.values()} == {1.0}


def test_the_evidence_of_an_update_grows_from_twice_to_four_times_the_usual_distance() -> None:
    def evidence(distance: float, direction: float = 0.3) -> float:
        return Pull(1.0, direction, distance, None).evidence

    assert [evidence(d) for d in (0.0, 1.0, 2.0, 4.0, 99.0)] == [0.0, 0.0, 0.0, 1.0, 1.0]
    assert [evidence(1.0, c) for c in (-0.1, -0.5, -1.0)] == [0.2, 1.0, 1.0]


@pytest.mark.parametrize(("bad", "of", "is_named"), [(2, 3, True), (1, 2, True), (1, 3, False)])
def test_a_liar_that_rests_in_every_second_round_is_named(
    bad: int, of: int, is_named: bool
) -> None:
    member, named = NOBODY, False
    for number in range(20):
        member = scored(member, float(number % of < bad), number)
        named = named or stands_out(member)
    assert named == is_named
