"""Rollouts step by step: which devices are offered what, when a step is passed, and the ways
back."""

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from immutables import Map
from msgspec.structs import replace

from aggregator.core.steps import Gate, Step
from aggregator.fleet import events as e
from aggregator.fleet.gate import StepAnswers, answer_marks, judge
from aggregator.fleet.reconcile import Turn
from aggregator.fleet.records import Device, Fleet, LastOffer, Rollout
from aggregator.fleet.rollouts import tally_of
from aggregator.view.fleet import FleetView
from aggregator.view.progress import KEPT, needed_releases, offered_releases, release_states
from tests.fleet.rollout_cases import STEPS, Rollouts, metrics, place
from wire.messages import InUse

DEVICES = [f"d{i}" for i in range(20)]
TENTH = {d for d in DEVICES if place(d) < 0.1}
HALF = {d for d in DEVICES if place(d) < 0.5}


def released(*device_ids: str) -> Rollouts:
    """A fleet that has its first release, number 1."""
    fleet = Rollouts(*(device_ids or DEVICES))
    fleet.roll_out("first")
    fleet.finish()
    return fleet


def leave(fleet: Rollouts, *device_ids: str) -> None:
    for device_id in device_ids:
        fleet.leave(device_id)


def test_devices_that_use_it_without_their_personal_model_are_counted_as_confirming() -> None:
    fleet = released()
    fleet.roll_out("second")
    for why, counted in (("the personal model was made from another model", 1), ("", 0)):
        fleet.answer(min(TENTH), alone=why)
        step = fleet.progress().steps[0]
        assert (step.offered, step.confirmed, step.alone) == (len(TENTH), 1, counted)


def test_each_step_reaches_those_of_the_step_before_and_more() -> None:
    fleet = released()
    assert 0 < len(TENTH) < len(HALF) < len(DEVICES)
    assert fleet.roll_out("second") == dict.fromkeys(TENTH, 2)
    fleet.tick()
    assert fleet.rollout().reason == f"0 of {len(TENTH)} devices have confirmed"
    for device_id in TENTH:
        fleet.answer(device_id)
    assert fleet.tick() == dict.fromkeys(HALF - TENTH, 2)
    for device_id in HALF - TENTH:
        fleet.answer(device_id)
    assert fleet.tick().keys() == set(DEVICES) - HALF
    assert release_states(fleet.fleet) == {1: "released", 2: "canary"}
    fleet.finish()
    assert release_states(fleet.fleet) == {1: "retired", 2: "released"}
    assert FleetView(fleet.fleet).totals.answers.in_use == {2: 20}


def test_a_device_that_appears_meanwhile_joins_by_the_same_rule() -> None:
    fleet = released()
    fleet.roll_out("second")
    early = next(d for d in (f"n{i}" for i in range(1000)) if place(d) < 0.1)
    late = next(d for d in (f"n{i}" for i in range(1000)) if place(d) > 0.6)
    assert fleet.arrive(early) == {early: 2}
    assert fleet.arrive(late) == {late: 1}


def test_canaries_are_chosen_by_tag_and_a_tag_that_nobody_has_waits() -> None:
    fleet = released()
    assert fleet.roll_out("second", steps=(Step(tags=("canary",)), Step(1.0))) == {}
    fleet.tick(1000)
    assert fleet.rollout().reason.startswith("no device is in this step")
    tagged = e.Tagged(at_s=fleet.now_s, device_id="d3", tags=("canary",))
    assert fleet.do(tagged) == {"d3": 2}
    assert fleet.answer("d3").keys() == set(DEVICES) - {"d3"}


def test_a_worse_canary_is_rolled_back_to_the_former_model_under_a_higher_number() -> None:
    fleet = released()
    former = fleet.model("d0")
    fleet.roll_out("second")
    serials = {d: fleet.fleet.devices[d].last_offer.serial for d in TENTH}
    for device_id in TENTH:
        fleet.answer(device_id, accuracy=0.5)
    assert fleet.tick() == dict.fromkeys(TENTH, 1)
    assert {fleet.model(d) for d in DEVICES} == {former}
    assert all(fleet.fleet.devices[d].last_offer.serial > serials[d] for d in TENTH)
    assert release_states(fleet.fleet) == {1: "released", 2: "withdrawn"}
    rollout = fleet.rollout()
    assert (rollout.phase, rollout.reason[:21]) == ("failed", "accuracy fell by 0.40")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"problem": "no graph"}, "it failed on 2 of"),
        ({"latency_ms": 50.0}, "a prediction takes 50.0 times as long as before"),
    ],
)
def test_failures_and_slowness_fail_the_gate(answer: dict[str, Any], reason: str) -> None:
    fleet = released()
    fleet.roll_out("second")
    for device_id in TENTH:
        fleet.answer(device_id, **answer)
    assert fleet.tick()
    assert fleet.rollout().reason.startswith(reason)


def test_an_unclear_answer_waits_for_others_and_then_what_there_is_counts() -> None:
    for change, outcome in ((0.02, "running"), (-0.05, "failed")):
        fleet = released()
        fleet.roll_out("second", steps=(Step(0.5), Step(1.0)))
        fleet.leave(min(HALF))
        there = sorted(HALF - {min(HALF)})
        for i, device_id in enumerate(there):
            swing = 0.2 * (i % 2 * 2 - 1) * (i < len(there) // 2 * 2)
            fleet.answer(device_id, accuracy=0.7 + change + swing, before=0.7)
        assert fleet.tick() == {}
        assert fleet.rollout().reason.startswith("too few windows"), fleet.rollout()
        assert fleet.tick(99)
        assert (fleet.rollout().phase, fleet.rollout().step) == (
            outcome,
            int(outcome == "running"),
        )


def test_pause_resume_promote_and_call_off() -> None:
    fleet = released()
    fleet.roll_out("second")
    fleet.steer("pause")
    for device_id in TENTH:
        fleet.answer(device_id)
    assert fleet.tick() == {}
    assert fleet.steer("resume").keys() == HALF - TENTH
    assert fleet.steer("promote", 0) == {}, "it is past that step"
    assert fleet.steer("promote", 1).keys() == set(DEVICES) - HALF
    assert fleet.steer("end") == dict.fromkeys(DEVICES, 1)
    assert len({fleet.model(d) for d in DEVICES}) == 1


def test_a_paused_or_superseded_rollout_reaches_no_further_device() -> None:
    fleet = released()
    early, half = (
        next(d for d in (f"n{i}" for i in range(1000)) if least <= place(d) < least + 0.1)
        for least in (0, 0.3)
    )
    fleet.roll_out("second")
    fleet.steer("promote", 0)
    fleet.steer("pause")
    assert fleet.arrive(early) == {early: 1}
    assert fleet.steer("resume") == {early: 2}
    fleet.roll_out("third")
    assert fleet.arrive(half) == {half: 1}


def test_a_later_rollout_supersedes_and_its_failure_brings_back_what_was_there_before_both() -> (
    None
):
    fleet = released()
    former = fleet.model("d0")
    fleet.roll_out("second")
    fleet.steer("promote", 0)
    assert fleet.roll_out("third") == dict.fromkeys(TENTH, 3)
    assert release_states(fleet.fleet) == {1: "released", 2: "superseded", 3: "canary"}
    for device_id in TENTH:
        fleet.answer(device_id, problem="it does not load")
    assert fleet.tick() == dict.fromkeys(HALF, 1)
    assert {fleet.model(d) for d in DEVICES} == {former}
    assert release_states(fleet.fleet) == {1: "released", 2: "withdrawn", 3: "withdrawn"}


def test_the_operator_returns_a_group_to_an_earlier_release() -> None:
    fleet = released()
    first = fleet.model("d0")
    for name in ("second", "third"):
        fleet.roll_out(name)
        fleet.finish()
    assert fleet.return_to(1) == dict.fromkeys(DEVICES, 1)
    assert {fleet.model(d) for d in DEVICES} == {first}
    assert fleet.return_to(1) == {}, "ordered twice, it is done once"
    assert fleet.return_to(99) == {}
    assert release_states(fleet.fleet) == {1: "released", 2: "retired", 3: "withdrawn"}


def test_newcomers_return_with_the_group_whose_releases_they_have() -> None:
    groups = {d: "1" if d in HALF else "2" for d in DEVICES}
    fleet = Rollouts(*DEVICES, "new", groups=groups)
    for name in ("first", "second"):
        fleet.roll_out(name, ("0", "1", "2"))
        fleet.finish()
    assert fleet.return_to(2, "1") == dict.fromkeys(HALF, 2)
    assert fleet.return_to(1, "0") == {"new": 1}
    assert fleet.arrive("later") == {"later": 1}


def test_groups_have_releases_of_their_own_and_return_to_their_own() -> None:
    groups = {d: str(i % 2) for i, d in enumerate(DEVICES)}
    fleet = Rollouts(*DEVICES, groups=groups)
    fleet.roll_out("first", ("0", "1"))
    fleet.finish()
    assert {d: fleet.has[d] for d in DEVICES} == {d: [1 + int(g)] for d, g in groups.items()}
    fleet.regroup({d: "1" if group == "0" else "0" for d, group in groups.items()})
    fleet.roll_out("second", ("0", "1"))
    fleet.steer("promote", 0)
    fleet.steer("promote", 1)
    for device_id in ("d0", "d1"):
        fleet.answer(device_id, accuracy=0.2)
    assert fleet.tick() == {d: 2 - int(group) for d, group in groups.items()}, "of its group now"


def test_a_candidate_that_devices_have_passed_by_is_offered_under_a_greater_number() -> None:
    fleet = released()
    assert fleet.roll_out("early", begin=False) == {}
    fleet.roll_out("second")
    fleet.finish()
    serials = {d: fleet.fleet.devices[d].last_offer.serial for d in DEVICES}
    assert fleet.steer("start") == dict.fromkeys(TENTH, 2)
    assert all(fleet.fleet.devices[d].last_offer.serial > serials[d] for d in TENTH)


def test_after_a_restart_what_may_be_lost_is_given_again_until_it_is_answered() -> None:
    fleet = released()
    fleet.roll_out("second")
    device_id = min(TENTH)
    for _ in range(2):
        fleet.offers.clear()
        fleet.crash()
        fleet.ring()
        assert fleet.offers == dict.fromkeys(TENTH, 2)
    leave(fleet, *DEVICES)
    assert fleet.arrive(device_id) == {device_id: 2}
    fleet.answer(device_id)
    assert fleet.arrive(device_id) == {}
    fleet.offers.clear()
    fleet.crash()
    fleet.ring()
    assert fleet.offers == {}


def test_devices_that_know_greater_numbers_are_given_greater_ones() -> None:
    """The state is that after a return to an old backup."""
    fleet = Rollouts("a", "b", "c")
    for device_id, number in (("a", 7), ("b", 7), ("c", 900)):
        known = InUse(device_id, number, number)
        fleet.do(e.UsesRelease(at_s=fleet.now_s, device_id=device_id, in_use=known))
        fleet.clients[device_id].offered = number
    fleet.roll_out("first", steps=(Step(1.0),))
    assert fleet.has == {"a": [1], "b": [1], "c": [1]}


def test_models_are_kept_while_devices_may_need_them_and_the_last_of_each_group() -> None:
    fleet = released("here", "away")
    fleet.leave("away")
    for number in range(2, KEPT + 6):
        fleet.roll_out(str(number))
        for _ in STEPS:
            fleet.answer("here")
            fleet.tick(200)
    assert fleet.has == {"here": list(range(1, KEPT + 6)), "away": [1]}
    needed = needed_releases(fleet.fleet, offered_releases(fleet.fleet))
    assert needed == {1, *range(6, KEPT + 6)}


def test_a_device_that_was_away_for_a_later_campaigns_rollout_gets_its_release_when_back() -> None:
    fleet = released()
    away = min(DEVICES)
    fleet.leave(away)
    fleet.campaign("later", {}, where="battery >= 50")
    fleet.roll_out("second", campaign="later")
    fleet.finish("later")
    assert fleet.has[away] == [1]
    fleet.clients[away].battery = 10
    fleet.arrive(away)
    assert fleet.has[away] == [1], "a campaign that does not ask it"
    fleet.clients[away].battery = 90
    fleet.arrive(away)
    assert fleet.has[away] == [1, 2]


def test_a_device_that_comes_during_a_rollout_joins_by_its_place_and_goes_back_with_others() -> (
    None
):
    fleet = released()
    away = max(DEVICES, key=place)
    fleet.leave(away)
    fleet.campaign("later", {})
    fleet.roll_out("second", campaign="later")
    fleet.arrive(away)
    assert fleet.has[away] == [1], "the first step does not reach it"
    fleet.steer("promote", campaign="later")
    fleet.steer("promote", campaign="later")
    assert fleet.has[away] == [1, 2]
    fleet.steer("end", campaign="later")
    assert {taken[-1] for taken in fleet.has.values()} == {1}


def test_a_silent_device_holds_a_step_up_for_no_longer_than_the_patience() -> None:
    fleet = Rollouts("new", "earlier")
    fleet.roll_out("first", steps=(Step(1.0),), gate=Gate(quorum=1.0, patience_s=100.0))
    fleet.answer("new")
    fleet.tick(50)
    assert fleet.progress().phase == "running"
    fleet.tick(100)
    assert fleet.progress().phase == "done"


@given(
    honest=st.integers(2, 40),
    liars=st.integers(1, 40),
    worse=st.booleans(),
    windows=st.integers(30, 500),
    seed=st.integers(0, 99),
)
def test_a_minority_of_liars_neither_passes_a_worse_release_nor_fails_another(
    honest: int, liars: int, worse: bool, windows: int, seed: int
) -> None:
    draw, liars = random.Random(seed), min(liars, honest - 1)
    gate = Gate(quorum=0.8, max_drop=0.05, patience_s=10.0)
    had = [draw.uniform(0.7, 1.0) for _ in range(honest)]
    reports = [
        (accuracy, accuracy - draw.uniform(0.2, 0.6) if worse else accuracy) for accuracy in had
    ]
    lies = [(0.0, 1.0) if worse else (1.0, 0.0)] * liars
    devices = [confirmed(before, after, windows) for before, after in [*reports, *lies]]
    assert judge(gate, tally(*devices), 100.0)[0] == ("fail" if worse else "pass")


def test_a_release_that_nobody_has_windows_to_measure_passes_and_says_so() -> None:
    gate = Gate(quorum=1.0, patience_s=60.0)
    blind = [confirmed(0.0, 0.0, 0)] * 3
    unmeasured = (
        "3 of 3 devices have confirmed; none has test windows, so accuracy was not measured"
    )
    assert judge(gate, tally(*blind), 0.0) == ("pass", unmeasured)
    assert judge(gate, tally(*blind, confirmed(0.9, 0.9, 100)), 0.0) == (
        "pass",
        "4 of 4 devices have confirmed",
    )
    report = InUse("d", 2, 2, evaluated=metrics(0.9), latency_ms=1.0)
    first = replace(confirmed(0.9, 0.9, 100), in_use=report)
    against_none = (
        "1 of 1 devices have confirmed; none had a model before, so accuracy was not compared"
    )
    assert judge(gate, tally(first), 0.0) == ("pass", against_none)


def test_who_comes_first_is_another_device_in_another_rollout() -> None:
    """So that nobody who may choose an id can choose one that comes first."""
    firsts = {min(DEVICES, key=lambda d: place(d, f"{salt:016x}")) for salt in range(100)}
    assert len(firsts) > 15
    fleet, reached = released(), set[frozenset[str]]()
    for salt in "abcd":
        reached.add(frozenset(fleet.roll_out(salt, steps=(Step(0.5), Step(1.0)), salt=salt)))
        fleet.steer("end")
    assert len(reached) == 4


def confirmed(before: float, after: float, windows: int) -> Device:
    """A device that has confirmed release 2, after release 1."""
    report = InUse(
        "d",
        2,
        2,
        evaluated=metrics(after, windows),
        before=metrics(before, windows),
        latency_ms=1.0,
    )
    return Device(online=True, last_offer=LastOffer(2, 2), settled=LastOffer(1, 1), in_use=report)


def tally(*devices: Device) -> StepAnswers:
    """The answers of devices, counted as the machine counts them."""
    counts = Counter(mark for device in devices for mark in answer_marks(device))
    rollout = Rollout(campaign="c", releases={"0": 2}, steps=STEPS, gate=Gate())
    return tally_of(Turn(replace(Fleet(), counts=Map(counts))), rollout)
