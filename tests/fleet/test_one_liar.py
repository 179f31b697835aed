"""One device that lies about a release, in a step of three or more: the others decide."""

from itertools import permutations
from typing import Any

import pytest

from aggregator.core.steps import Gate, Step
from aggregator.fleet import events as e
from aggregator.fleet.records import Ban
from aggregator.http.dashboard.alerts import standing_alerts
from aggregator.service.conditions import Conditions, ServiceCounters
from aggregator.view.fleet import FleetView
from tests.fleet.rollout_cases import Rollouts
from wire.messages import InUse

ALL = (Step(1.0),)
GATE = Gate(patience_s=100.0)
GOOD: dict[str, Any] = {}
BAD = (
    {"problem": "it does not load"},
    {"accuracy": 0.0, "before": 1.0},
    {"latency_ms": 1000.0},
)


def under_way(number: int, gate: Gate = GATE) -> Rollouts:
    """A fleet of so many devices whose second release is under way to all of them."""
    fleet = Rollouts(*(f"d{i}" for i in range(number)))
    fleet.roll_out("first", steps=ALL)
    fleet.finish()
    fleet.roll_out("second", steps=ALL, gate=gate)
    return fleet


def ids_of(fleet: Rollouts) -> set[str]:
    """Return the ids of the standing alerts."""
    well = Conditions({}, True, "", "", ServiceCounters(), {})
    view = FleetView(fleet.fleet, now_s=fleet.now_s)
    return {alert.id for alert in standing_alerts(well, view)}


@pytest.mark.parametrize("number", range(3, 10))
@pytest.mark.parametrize("lie", BAD)
@pytest.mark.parametrize("place", ["first", "last"])
def test_one_that_speaks_against_a_good_release_does_not_stop_it(
    number: int, lie: dict[str, Any], place: str
) -> None:
    fleet = under_way(number)
    honest = [f"d{i}" for i in range(1, number)]
    for device_id in ["d0", *honest] if place == "first" else [*honest, "d0"]:
        fleet.answer(device_id, **(lie if device_id == "d0" else GOOD))
        fleet.tick()
        assert fleet.rollout().phase in ("running", "done"), fleet.rollout()
    assert fleet.rollout().phase == "done", fleet.rollout()
    assert fleet.progress().reason.endswith(f"set aside: d0 ({fleet.rollout().statements['d0']})")


@pytest.mark.parametrize("number", range(3, 10))
@pytest.mark.parametrize("truth", BAD)
@pytest.mark.parametrize("place", ["first", "last"])
@pytest.mark.parametrize("quorum", [0.01, 0.8])
def test_one_that_praises_a_bad_release_does_not_push_it_through(
    number: int, truth: dict[str, Any], place: str, quorum: float
) -> None:
    fleet = under_way(number, Gate(patience_s=100.0, quorum=quorum))
    honest = [f"d{i}" for i in range(1, number)]
    for device_id in ["d0", *honest] if place == "first" else [*honest, "d0"]:
        fleet.answer(device_id, **({"accuracy": 1.0} if device_id == "d0" else truth))
        fleet.tick()
        if fleet.rollout().phase != "running":
            break
    assert fleet.rollout().phase == "failed", fleet.rollout()
    assert "d1" in fleet.progress().reason


@pytest.mark.parametrize("claim", [*BAD, GOOD])
def test_one_that_answers_alone_while_the_others_are_silent_or_away_decides_nothing(
    claim: dict[str, Any],
) -> None:
    for is_away in (False, True):
        fleet = under_way(3)
        if is_away:
            fleet.leave("d1")
            fleet.leave("d2")
        fleet.answer("d0", **claim)
        fleet.tick(1000)
        assert fleet.rollout().phase == "running", fleet.rollout()
        assert "one device proves nothing" in fleet.rollout().reason or claim


@pytest.mark.parametrize("lie", BAD)
def test_of_two_that_contradict_each_other_neither_decides_and_both_are_named(
    lie: dict[str, Any],
) -> None:
    for first, second in permutations((lie, GOOD)):
        fleet = under_way(2)
        fleet.answer("d0", **first)
        fleet.tick()
        fleet.answer("d1", **second)
        fleet.tick(1000)
        reason = fleet.progress().reason
        assert fleet.rollout().phase == "running", reason
        assert "d0" in reason
        assert "d1" in reason
        assert "decides" in reason
        fleet.steer("promote", 0)
        assert fleet.rollout().phase == "done"


@pytest.mark.parametrize("lie", BAD)
def test_the_only_device_of_a_step_decides(lie: dict[str, Any]) -> None:
    fleet = under_way(1)
    fleet.answer("d0", **lie)
    fleet.tick()
    assert fleet.rollout().phase == "failed"
    assert "d0" in fleet.progress().reason


def test_a_measure_that_only_a_liar_reports_stops_no_release_for_good_and_names_it() -> None:
    fleet = under_way(4)
    for device_id in ("d1", "d2", "d3"):
        fleet.answer(device_id, windows=0)
    fleet.answer("d0", accuracy=0.0, before=1.0)
    fleet.tick(1000)
    assert fleet.rollout().phase == "running", "it may be the truth"
    assert "1 of the 1 devices" in fleet.rollout().reason
    assert "d0 (accuracy fell by 1.000)" in fleet.progress().reason


@pytest.mark.parametrize("number", [2**31 - 2, 2**31 - 1, 2**31, 10**9])
def test_one_that_reports_impossible_numbers_holds_nobody_and_has_its_offers(number: int) -> None:
    fleet = under_way(3)
    for device_id in ("d1", "d2"):
        fleet.answer(device_id)
    report = InUse("d0", number, number)
    offers = fleet.do(e.UsesRelease(at_s=fleet.now_s, device_id="d0", in_use=report))
    assert all(serial < 100 for serial in offers.values())
    assert "rollout-waits" not in ids_of(fleet)
    fleet.tick(101)
    assert fleet.rollout().phase == "done"
    assert all(serial < 100 for serial in fleet.roll_out("third", steps=ALL).values())


def test_a_step_whose_only_device_answers_nothing_has_an_alert_after_the_patience() -> None:
    fleet = under_way(1)
    fleet.tick(99)
    assert "rollout-waits" not in ids_of(fleet)
    fleet.tick(10)
    assert fleet.rollout().phase == "running"
    assert "rollout-waits" in ids_of(fleet)
    fleet.answer("d0")
    fleet.tick()
    assert fleet.rollout().phase == "done"
    assert "rollout-waits" not in ids_of(fleet)


def test_the_patience_of_a_later_release_that_waits_its_turn_is_not_that_of_the_step() -> None:
    fleet = under_way(1)
    fleet.roll_out("third", steps=ALL, gate=Gate(patience_s=9999.0), begin=False)
    fleet.tick(110)
    assert "rollout-waits" in ids_of(fleet)


def test_a_liar_that_is_banned_or_forgotten_is_counted_and_named_no_longer() -> None:
    for event in (
        e.Banned(at_s=1.0, device_id="d0", ban=Ban(1.0, "it lies")),
        e.Seen(at_s=1.0, device_id="d0", online=False, withdrawal=1),
        e.Forgotten(at_s=1.0, device_id="d0"),
    ):
        fleet = under_way(2)
        fleet.answer("d1")
        fleet.answer("d0", problem="it does not load")
        fleet.tick()
        assert fleet.rollout().phase == "running"
        fleet.do(event)
        fleet.tick()
        assert fleet.rollout().phase == "done", fleet.rollout()
        assert "d0" not in fleet.progress().reason
        assert "d0" not in fleet.rollout().statements


def test_a_device_that_changes_its_mind_is_named_by_its_last_word() -> None:
    fleet = under_way(3)
    fleet.answer("d0", problem="no room")
    assert fleet.rollout().statements == {"d0": "failed: no room"}
    before = fleet.rollout()
    fleet.answer("d0", problem="no room")
    assert fleet.rollout().statements is before.statements, "the same again changes nothing"
    fleet.answer("d0")
    assert fleet.rollout().statements == {"d0": "confirmed"}


def test_a_share_that_no_device_is_in_is_shown_as_wide_as_it_became() -> None:
    fleet = Rollouts("x", "y", "z")
    fleet.roll_out("first", steps=ALL)
    fleet.finish()
    for salt in map(str, range(100, 200)):
        offers = fleet.roll_out(salt, steps=(Step(0.1), Step(1.0)), salt=salt)
        for _ in range(4):  # it is widened at most three times
            fleet.tick()
        first = fleet.progress().steps[0]
        assert first.offered > 0, "the step that is judged has a device"
        if not offers:
            break
    assert first.share > 0.1
    for device_id in fleet.clients:
        if fleet.fleet.devices[device_id].last_offer.release == max(fleet.fleet.releases):
            fleet.answer(device_id)
    fleet.tick()
    steps = fleet.progress().steps
    assert (fleet.rollout().step, steps[0].confirmed, steps[1].confirmed) == (1, first.offered, 0)
