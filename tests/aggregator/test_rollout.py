"""Rollouts step by step: who is given what, when a step is passed, and the ways back."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.core.release.gate import judge
from aggregator.core.release.progress import in_use, progress_of
from aggregator.core.release.reach import needed, place_of
from aggregator.core.release.state import (
    Begun,
    Gate,
    Holder,
    Made,
    Presence,
    Promoted,
    RolloutOrder,
    RolloutStep,
    Said,
    WentBack,
)
from tests.aggregator.rollout_cases import STEPS, Rig, draft, metrics
from wire.messages import InUse

DEVICES = [f"d{i}" for i in range(20)]
TENTH = {d for d in DEVICES if place_of(d, "") < 0.1}
HALF = {d for d in DEVICES if place_of(d, "") < 0.5}


def released(*device_ids: str) -> Rig:
    """A fleet that has its first release, number 1."""
    rig = Rig()
    rig.check_in(*(device_ids or DEVICES))
    rig.release(draft())
    rig.finish()
    return rig


def test_devices_that_answer_without_what_they_keep_are_counted_among_those_that_confirm() -> None:
    rig = released()
    rig.release(draft(model="second"))
    (device_id,) = TENTH
    for why, counted in (("what is kept was made of another model", 1), ("", 0)):
        rig.feed(Said(rig.at_s, InUse(device_id, 2, 2, "", metrics(0.9), metrics(0.9), alone=why)))
        step = progress_of(rig.state, "c", rig.state.rollouts["c"]).steps[0]
        assert (step.offered, step.confirmed, step.alone) == (1, 1, counted)


def test_each_step_reaches_those_of_the_step_before_and_more() -> None:
    rig = released()
    assert 0 < len(TENTH) < len(HALF) < len(DEVICES)
    assert {give.device_id for give in rig.release(draft(model="second"))} == TENTH
    rig.tick()
    assert rig.state.rollouts["c"].reason == f"0 of {len(TENTH)} devices have confirmed"
    for device_id in TENTH:
        rig.answer(device_id)
    assert {give.device_id for give in rig.tick()} == HALF - TENTH
    for device_id in HALF - TENTH:
        rig.answer(device_id)
    assert {give.device_id for give in rig.tick()} == set(DEVICES) - HALF
    assert rig.state.catalogue.releases[2].state == "canary"
    rig.finish()
    assert [r.state for _, r in sorted(rig.state.catalogue.releases.items())] == [
        "retired",
        "released",
    ]
    assert (rig.state.catalogue.releases[2].parent, in_use(rig.state)) == (1, {2: 20})


def test_a_device_that_appears_meanwhile_joins_by_the_same_rule() -> None:
    rig = released()
    rig.release(draft(model="second"))
    early = next(d for d in (f"n{i}" for i in range(1000)) if place_of(d, "") < 0.1)
    late = next(d for d in (f"n{i}" for i in range(1000)) if place_of(d, "") > 0.6)
    assert [give.number for give in rig.check_in(early)] == [2]
    assert [give.number for give in rig.check_in(late, group="")] == [1]


def test_canaries_are_chosen_by_tag_and_a_tag_that_nobody_has_waits() -> None:
    rig = released()
    steps = (RolloutStep(tags=("canary",)), RolloutStep(1.0))
    assert rig.release(draft(model="second"), steps=steps) == []
    rig.tick(1000)
    assert rig.state.rollouts["c"].reason.startswith("no device is in this step")
    assert [give.number for give in rig.check_in("d3", tags=("canary",))] == [2]
    rig.answer("d3")
    assert {give.device_id for give in rig.tick()} == set(DEVICES) - {"d3"}


def test_a_worse_canary_is_rolled_back_to_the_former_model_under_a_higher_number() -> None:
    rig = released()
    former = rig.model("d0")
    rig.release(draft(model="second"))
    for device_id in TENTH:
        rig.answer(device_id, accuracy=0.5)
    gives = rig.tick()
    assert {give.device_id for give in gives} == TENTH
    assert {give.number for give in gives} == {3}
    assert {rig.model(d) for d in DEVICES} == {former}
    releases = rig.state.catalogue.releases
    assert [releases[n].state for n in (1, 2, 3)] == ["retired", "withdrawn", "released"]
    assert (releases[3].returns_to, releases[3].model) == (1, releases[1].model)
    rollout = rig.state.rollouts["c"]
    assert (rollout.phase, rollout.reason[:21]) == ("rolled-back", "accuracy fell by 0.40")
    assert progress_of(rig.state, "c", rollout).returned.waiting == len(TENTH)
    for device_id in TENTH:
        rig.answer(device_id)
    assert progress_of(rig.state, "c", rollout).returned.confirmed == len(TENTH)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"problem": "no graph"}, "it failed on 1 of"),
        ({"latency_ms": 50.0}, "a prediction takes 50.0 times as long as before"),
    ],
)
def test_failures_and_slowness_fail_the_gate(answer: dict[str, object], reason: str) -> None:
    rig = released()
    rig.release(draft(model="second"))
    for device_id in sorted(TENTH)[: 1 if "problem" in answer else None]:
        rig.answer(device_id, **answer)  # type: ignore[arg-type]
    assert rig.tick()
    assert rig.state.rollouts["c"].reason.startswith(reason)


def test_an_unclear_answer_waits_for_others_and_then_what_there_is_counts() -> None:
    for change, outcome in ((0.02, "running"), (-0.05, "rolled-back")):
        rig = released()
        rig.release(draft(model="second"), steps=(RolloutStep(0.5), RolloutStep(1.0)))
        rig.feed(Presence(rig.at_s, left=(min(HALF),)))
        there = sorted(HALF - {min(HALF)})
        for i, device_id in enumerate(there):
            swing = 0.2 * (i % 2 * 2 - 1) * (i < len(there) // 2 * 2)
            rig.answer(device_id, accuracy=0.7 + change + swing, before=0.7)
        assert rig.tick() == []
        assert rig.state.rollouts["c"].reason.startswith("too few windows"), rig.state.rollouts["c"]
        assert rig.tick(200)
        assert (rig.state.rollouts["c"].phase, rig.state.rollouts["c"].step) == (
            outcome,
            int(outcome == "running"),
        )


def test_pause_resume_promote_and_call_off() -> None:
    rig = released()
    rig.release(draft(model="second"))
    rig.feed(RolloutOrder(rig.at_s, "c", "pause"))
    for device_id in TENTH:
        rig.answer(device_id)
    assert rig.tick() == []
    rig.feed(RolloutOrder(rig.at_s, "c", "resume"))
    assert rig.tick()
    assert rig.feed(Promoted(rig.at_s, "c", 0)) == [], "it is past that step"
    assert {give.device_id for give in rig.feed(Promoted(rig.at_s, "c", 1))} == set(DEVICES) - HALF
    assert {give.number for give in rig.feed(RolloutOrder(rig.at_s, "c", "end"))} == {3}
    assert len({rig.model(d) for d in DEVICES}) == 1


def test_a_later_rollout_supersedes_and_its_failure_brings_back_what_was_there_before_both() -> (
    None
):
    rig = released()
    former = rig.model("d0")
    rig.release(draft(model="second"))
    rig.feed(Promoted(rig.at_s, "c", 0))
    assert {give.device_id for give in rig.release(draft(model="third"))} == TENTH
    assert [rig.state.catalogue.releases[n].state for n in (1, 2, 3)] == [
        "released",
        "superseded",
        "canary",
    ]
    rig.answer(min(TENTH), problem="it does not load")
    assert {give.device_id for give in rig.tick()} == HALF
    assert {rig.model(d) for d in DEVICES} == {former}
    assert [rig.state.catalogue.releases[n].state for n in (1, 2, 3)] == [
        "retired",
        "superseded",
        "withdrawn",
    ]


def test_the_operator_returns_a_group_to_an_earlier_release() -> None:
    rig = released()
    first = rig.model("d0")
    for name in ("second", "third"):
        rig.release(draft(model=name))
        rig.finish()
    assert {give.number for give in rig.feed(WentBack(rig.at_s, 1, "0"))} == {4}
    assert {rig.model(d) for d in DEVICES} == {first}
    assert rig.feed(WentBack(rig.at_s, 1, "0")) == [], "said twice, it is done once"
    assert rig.feed(WentBack(rig.at_s, 99, "0")) == []
    assert rig.state.catalogue.releases[3].state == "withdrawn"


def test_groups_have_releases_of_their_own_and_return_to_their_own() -> None:
    rig = Rig()
    rig.check_in(*DEVICES)
    groups = {d: str(i % 2) for i, d in enumerate(DEVICES)}
    rig.release(draft("0"), draft("1"), groups=groups)
    rig.finish()
    had = {d: rig.model(d) for d in DEVICES}
    assert len(set(had.values())) == 2
    swapped = {d: "1" if group == "0" else "0" for d, group in groups.items()}
    rig.release(draft("0", "second"), draft("1", "second"), groups=swapped)
    rig.feed(Promoted(rig.at_s, "c", 0))
    rig.feed(Promoted(rig.at_s, "c", 1))
    rig.answer("d0", accuracy=0.2)
    rig.tick()
    assert {d: rig.model(d) for d in DEVICES} == had
    assert {d: holder.group for d, holder in rig.state.devices.items()} == groups


def test_a_candidate_that_devices_have_passed_by_is_made_again_with_a_greater_number() -> None:
    rig = released()
    rig.feed(Made(rig.at_s, (draft(model="early"),)))  # 2, which nobody rolls out yet
    rig.release(draft(model="second"))
    rig.finish()
    begun = Begun(
        at_s=rig.at_s,
        campaign="c",
        numbers=(2,),
        steps=STEPS,
        gate=Gate(),
        groups={},
        newcomers="0",
    )
    assert {give.number for give in rig.feed(begun)} == {4}
    assert rig.state.catalogue.releases[4].model == rig.state.catalogue.releases[2].model


def test_after_a_restart_what_may_be_lost_is_given_again_until_it_is_answered() -> None:
    rig = released()
    rig.release(draft(model="second"))
    rig.feed(Presence(rig.at_s, left=tuple(rig.state.devices)))
    device_id = min(TENTH)
    assert [give.number for give in rig.check_in(device_id)] == [2]
    rig.answer(device_id)
    assert rig.check_in(device_id) == []


def test_devices_that_know_greater_numbers_are_given_greater_ones_if_they_are_many() -> None:
    rig = Rig()
    rig.check_in("a", "b", "c")
    for device_id in ("a", "b"):
        rig.feed(Said(0.0, InUse(device_id, 7, 7)))
    rig.feed(Said(0.0, InUse("c", 900, 900)))
    assert {give.number for give in rig.release(draft(), steps=(RolloutStep(1.0),))} == {8}


def test_models_are_kept_while_devices_may_need_them_and_the_last_of_each_group() -> None:
    rig = released("d0", "d1")
    for number in range(4):
        rig.release(draft(model=str(number)))
        rig.finish()
    assert needed(rig.state, keep=1) == {4, 5}
    assert needed(rig.state, keep=3) == {3, 4, 5}


def test_a_device_that_was_away_for_a_later_campaigns_rollout_gets_its_release_when_back() -> None:
    rig = released()
    here = dict.fromkeys(sorted(rig.state.devices)[1:], "later/0")
    away = min(rig.state.devices)
    rig.release(draft("later/0", "second", "later"), groups=here)
    rig.finish("later")
    assert rig.has[away] == [1]
    rig.check_in(away, group="0")
    assert rig.has[away] == [1], "a campaign that does not ask for it"
    rig.check_in(away, group="later/0")
    assert rig.has[away] == [1, 2]


def test_a_device_that_comes_during_a_rollout_joins_by_its_place_and_goes_back_with_others() -> (
    None
):
    rig = released()
    away = max(rig.state.devices, key=lambda d: place_of(d, ""))
    rig.release(
        draft("later/0", "second", "later"),
        groups={d: "later/0" for d in rig.state.devices if d != away},
    )
    rig.check_in(away, group="later/0")
    assert rig.has[away] == [1], "the first step does not reach it"
    rig.feed(RolloutOrder(rig.at_s, "later", "end"))
    assert {rig.state.catalogue.releases[given[-1]].model for given in rig.has.values()} == {
        rig.state.catalogue.releases[1].model
    }


def test_a_silent_device_holds_a_step_up_for_no_longer_than_the_patience() -> None:
    rig = Rig()
    rig.check_in("new", "earlier")
    rig.release(draft(), steps=(RolloutStep(1.0),), gate=Gate(quorum=1.0, patience_s=100.0))
    rig.answer("new")
    rig.tick(50)
    assert progress_of(rig.state, "c", rig.state.rollouts["c"]).phase == "running"
    rig.tick(100)
    assert progress_of(rig.state, "c", rig.state.rollouts["c"]).phase == "done"


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
    says = [
        (accuracy, accuracy - draw.uniform(0.2, 0.6) if worse else accuracy) for accuracy in had
    ]
    lies = [(0.0, 1.0) if worse else (1.0, 0.0)] * liars
    devices = [(_confirmed(before, after, windows), 2) for before, after in [*says, *lies]]
    assert judge(gate, devices, waited_s=100.0)[0] == ("fail" if worse else "pass")


def test_a_release_that_nobody_has_windows_to_measure_passes_and_says_so() -> None:
    gate = Gate(quorum=1.0, patience_s=60.0)
    blind = [(_confirmed(0.0, 0.0, 0), 1)] * 3
    unmeasured = (
        "3 of 3 devices have confirmed; none has test windows, so nobody has measured how right "
        "it is"
    )
    assert judge(gate, blind, waited_s=0.0) == ("pass", unmeasured)
    assert (
        judge(gate, [*blind, (_confirmed(0.9, 0.9, 100), 1)], 0.0)[1]
        == "4 of 4 devices have confirmed"
    )
    first = Holder(
        group="0",
        given=2,
        settled=1,
        online=True,
        said=InUse("d", 2, 2, evaluated=metrics(0.9), latency_ms=1.0),
    )
    against_none = (
        "1 of 1 devices have confirmed; none had a model before it, so it was held against none"
    )
    assert judge(gate, [(first, 1)], 0.0)[1] == against_none


def test_who_comes_first_is_another_device_in_another_rollout() -> None:
    """So that nobody who may choose an id can choose one that comes first."""
    firsts = {min(DEVICES, key=lambda d: place_of(d, f"{salt:016x}")) for salt in range(100)}
    assert len(firsts) > 15


def _confirmed(before: float, after: float, windows: int) -> Holder:
    said = InUse(
        "d",
        2,
        2,
        evaluated=metrics(after, windows),
        before=metrics(before, windows),
        latency_ms=1.0,
    )
    return Holder(group="0", given=2, settled=1, online=True, said=said)
