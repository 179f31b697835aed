"""Devices that missed the plan after the last round choose later what they keep."""

import logging
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.core import state as s
from aggregator.core.admission import Refused, expect
from aggregator.core.plan import without_labels
from aggregator.core.record import record_of
from aggregator.core.round.closings import MOST_ASKED
from aggregator.core.state import (
    Aborted,
    DeviceBarred,
    DeviceForgotten,
    EligibilityChanged,
    Retuned,
    RolledBack,
)
from aggregator.core.summary import summarize
from aggregator.core.versions import latest
from aggregator.transfer.offered import offered
from shoal.commands.serve import log_rounds
from tests.aggregator.closing_cases import (
    PROGRAMS,
    declined,
    finished,
    keeps,
    over,
    plans,
    told,
)
from tests.aggregator.kept_cases import CHOICE, CLOSING, KEPT
from tests.aggregator.round_cases import RECEIVED, Run
from wire import messages as m


def test_the_log_says_that_a_run_is_over_and_what_devices_keep(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run, observe = over("c", hold=True), log_rounds()
    observe(run.state, run.log[-1])
    with caplog.at_level(logging.INFO, "shoal"):
        run.feed(s.DeadlinePassed(13.0, run.state.round))
        observe(run.state, run.log[-1])
        told(run, "c")
        observe(run.state, run.log[-1])
    name = run.state.settings.name
    assert [record.getMessage() for record in caplog.records] == [
        f"run={name} is over: devices=2; they keep {KEPT.candidate} (2)"
    ]


class TestWhoIsAsked:
    def test_a_device_that_comes_after_the_end_chooses_before_it_is_told_which_model_is_its_own(
        self,
    ) -> None:
        run = over()
        commands = run.check_in("late", 20.0)
        (plan,) = plans(commands)
        assert finished(commands) == [], "a finish would end its work"
        assert (plan.verbs, plan.round, plan.model) == (
            CLOSING,
            run.state.round,
            run.state.models["0"],
        )
        assert plan.attempt > run.state.attempt, "it is no plan that a device may have answered"
        assert plan.deadline_at_s == 30.0
        commands = told(run, "late")
        assert [type(c).__name__ for c in commands] == ["Acknowledge", "FinishRun"]
        assert finished(run.check_in("late", 22.0)) == ["late"]

    def test_devices_that_have_chosen_are_told_their_model(self) -> None:
        run = over()
        assert finished(run.check_in("a", 20.0)) == ["a"]

    @pytest.mark.parametrize("num_train", [0, 4])
    def test_a_device_with_too_few_labels_keeps_what_needs_none_and_chooses_again_once_it_has_them(
        self, num_train: int
    ) -> None:
        run = over()
        (plan,) = plans(run.feed(s.DeviceCheckedIn(20.0, "u", num_train, 0)))
        assert plan.verbs == without_labels(CLOSING)
        told(run, "u", num_train=num_train)
        assert finished(run.feed(s.DeviceCheckedIn(22.0, "u", num_train, 0))) == ["u"]
        (plan,) = plans(run.feed(s.DeviceCheckedIn(23.0, "u", 5, 0)))
        assert plan.verbs == CLOSING

    def test_a_device_that_chose_without_labels_chooses_again_with_them(self) -> None:
        run = over()
        update = msgspec.structs.replace(RECEIVED, start="0", num_train=0)
        run.state = msgspec.structs.replace(run.state, received={**run.state.received, "a": update})
        assert plans(run.check_in("a", 20.0))

    def test_nobody_is_asked_who_may_not_be_or_where_devices_keep_nothing_or_after_an_abort(
        self,
    ) -> None:
        assert finished(over().check_in("x", 20.0, eligible=False)) == ["x"]
        assert finished(over(candidates=()).check_in("x", 20.0)) == ["x"]
        run = Run(programs=PROGRAMS, **CHOICE)
        run.feed(Aborted(2.0))
        assert finished(run.check_in("x", 20.0)) == ["x"]

    def test_at_another_hour_nobody_is_asked_and_everybody_has_a_model(self) -> None:
        run = over()
        run.state = msgspec.structs.replace(
            run.state, settings=msgspec.structs.replace(run.state.settings, hours="22:00-06:00 UTC")
        )
        noon, night = 12 * 3600.0, 23 * 3600.0
        assert finished(run.check_in("late", noon)) == ["late"]
        assert plans(run.check_in("late", night))

    def test_a_device_that_may_not_tell_is_asked_for_no_scores(self) -> None:
        (plan,) = plans(over().check_in("late", 20.0, withholds=True))
        assert plan.verbs[1] == m.Apply("choose", report=False)


class TestMissedEvaluation:
    def test_who_came_meanwhile_is_asked_at_the_end_and_who_declined_when_it_comes_again(
        self,
    ) -> None:
        run = over("c", hold=True)
        run.check_in("new", 5.0)
        run.check_in("c", 5.0)
        declined(run, "c", 6.0)
        assert run.state.phase == "finished"
        assert list(run.state.closings) == ["new"]
        assert plans(run.check_in("c", 20.0))

    def test_who_was_away_is_told_nothing_before_it_is_back_and_then_goes_on_with_its_plan(
        self,
    ) -> None:
        run = over("c")
        held = run.state.closings["c"]
        (plan,) = plans(run.check_in("c", 14.0))
        assert (
            (plan.attempt, plan.deadline_at_s)
            == (held.attempt, held.deadline_at_s)
            == (run.state.attempt, 23.0)
        )

    def test_an_update_that_comes_after_the_end_still_says_what_is_kept(self) -> None:
        run = over("c")
        before = run.state
        assert expect(run.state, "c", run.state.settings.run_id, run.state.round, "f" * 64) is None
        assert finished(told(run, "c", at_s=15.0)) == ["c"]
        record = record_of(before, run.log[-1], run.state)
        assert record is not None
        assert (record.round, record.phase, record.closed_at_s, sorted(record.kept)) == (
            2,
            "evaluating",
            13.0,
            ["a", "b", "c"],
        )
        refused = expect(run.state, "c", run.state.settings.run_id, run.state.round, "f" * 64)
        assert isinstance(refused, Refused)
        assert refused.reason == "wrong-round"

    def test_who_is_away_when_its_time_is_over_is_asked_anew_when_it_is_back(self) -> None:
        run = over("c")
        first = run.state.closings["c"]
        assert finished(run.feed(s.DeadlinePassed(23.0, run.state.round))) == []
        (plan,) = plans(run.check_in("c", 99.0))
        assert plan.attempt > first.attempt

    def test_who_is_there_when_its_time_is_over_is_told_its_model(self) -> None:
        run = over()
        run.check_in("late", 20.0)
        assert finished(run.feed(s.DeadlinePassed(30.0, run.state.round))) == ["late"]
        assert run.state.closings == {}

    def test_a_service_that_starts_sends_plans_in_work_again_and_ends_nobodys_work(self) -> None:
        run = over("away")
        run.check_in("late", 20.0)
        commands = run.resume(21.0, epoch=9)
        assert [(plan.device_id, plan.epoch) for plan in plans(commands)] == [("late", 9)]
        assert finished(commands) == ["a", "b"]
        assert s.SetDeadline(run.state.round, 23.0) in commands
        assert {run.state.models["0"]} <= offered(run.state)


class TestInVain:
    def test_who_declines_has_its_model_and_is_asked_again_once_it_says_something_else_of_itself(
        self,
    ) -> None:
        run = over()
        run.check_in("late", 20.0, terms="1")
        assert finished(declined(run, "late")) == ["late"]
        for at_s in (30.0, 31.0, 1e6):
            assert finished(run.check_in("late", at_s, terms="1")) == ["late"]
        assert plans(run.check_in("late", 2e6, terms="2"))

    def test_who_is_too_late_each_time_is_asked_a_few_times(self) -> None:
        run, asked = over(), 0
        for at_s in range(20, 420, 20):
            asked += len(plans(run.check_in("late", float(at_s))))
            run.feed(s.DeadlinePassed(at_s + 10.0, run.state.round))
        assert asked == MOST_ASKED

    def test_who_fails_at_what_may_pass_is_asked_again_after_a_while_a_few_times(self) -> None:
        run, asked, looks = over(), 1, list[s.SetDeadline]()
        run.check_in("late", 20.0, terms="1")
        for _ in range(9):
            commands = declined(run, "late", run.state.at_s + 1.0, again=True)
            assert finished(commands) == ["late"], "it has a model meanwhile"
            looks = [c for c in commands if isinstance(c, s.SetDeadline)]
            assert [c.at_s for c in looks] == [run.state.at_s + run.state.settings.deadline_s]
            assert plans(run.feed(s.DeadlinePassed(looks[0].at_s - 1.0, run.state.round))) == []
            asked += len(found := plans(run.feed(s.DeadlinePassed(looks[0].at_s, run.state.round))))
            if not found:
                break
        assert (asked, run.state.retries) == (MOST_ASKED, {})
        assert run.replayed() == run.state

    def test_so_is_one_that_failed_in_the_evaluation_unless_it_has_come_back_before_or_is_gone(
        self,
    ) -> None:
        run = over("c", "d", "e", hold=True)
        for device in "cde":
            run.check_in(device, 5.0)
            declined(run, device, 6.0, again=True)
        assert (run.state.phase, run.state.retries) == ("finished", dict.fromkeys("cde", 16.0))
        assert s.SetDeadline(run.state.round, 16.0) in run.resume(7.0, epoch=9), (
            "a service that starts knows it too"
        )
        assert plans(run.check_in("d", 8.0))
        run.feed(s.DeviceLost(9.0, "e"))
        assert [
            plan.device_id for plan in plans(run.feed(s.DeadlinePassed(16.0, run.state.round)))
        ] == ["c"]
        told(run, "c", at_s=17.0)
        assert "c" in run.state.received
        assert [plan.device_id for plan in plans(run.feed(s.DeviceHeard(18.0, "e")))] == ["e"], (
            "it is heard, and its time has come"
        )
        assert run.state.retries == {}

    def test_a_retry_waits_for_the_hour(self) -> None:
        run = over()
        run.state = msgspec.structs.replace(
            run.state, settings=msgspec.structs.replace(run.state.settings, hours="22:00-06:00 UTC")
        )
        last = 24 * 3600.0 + 6 * 3600.0 - 5.0
        assert plans(run.check_in("late", last))
        (look,) = [
            c for c in declined(run, "late", last + 1.0, again=True) if isinstance(c, s.SetDeadline)
        ]
        assert look.at_s == 24 * 3600.0 + 22 * 3600.0
        assert plans(run.feed(s.DeadlinePassed(look.at_s, run.state.round)))

    def test_a_plan_that_expired_on_the_device_is_made_again(self) -> None:
        run = over()
        (first,) = plans(run.check_in("late", 20.0))
        declined(run, "late", failed=False)
        (second,) = plans(run.check_in("late", 22.0))
        assert second.attempt > first.attempt

    @pytest.mark.parametrize(
        "event", [DeviceBarred(21.0, "late"), DeviceForgotten(21.0, "late", {})]
    )
    def test_a_banned_or_forgotten_device_works_on_nothing(self, event: Any) -> None:
        run = over()
        run.check_in("late", 20.0)
        run.feed(event)
        assert run.state.closings == {}

    def test_a_device_that_may_no_longer_be_asked_is_told_its_model_when_it_comes(self) -> None:
        run = over()
        run.check_in("late", 20.0)
        run.feed(EligibilityChanged(21.0, excluded=("late",)))
        assert finished(run.check_in("late", 22.0, eligible=False)) == ["late"]
        assert run.state.closings == {}


class TestOtherModels:
    def test_after_a_rollback_all_that_are_there_choose_anew_and_the_others_when_they_are_back(
        self,
    ) -> None:
        run = over()
        run.feed(s.DeviceLost(14.0, "b"))
        before = run.state
        commands = run.feed(RolledBack(15.0, 0))
        assert [(plan.device_id, plan.model) for plan in plans(commands)] == [
            ("a", run.state.models["initial"])
        ]
        assert finished(commands) == []
        assert plans(run.check_in("b", 16.0))
        record = record_of(before, run.log[-2], msgspec.structs.replace(run.state, received={}))
        assert record is not None
        assert (record.evaluated, record.kept) == ({}, {}), (
            "what was said is of models that are given up"
        )
        summary = summarize(run.state, [record], 1.0)
        assert (summary.accuracy.mean, summary.devices["a"].kept) == (None, None)

    def test_models_of_rounds_are_compared_as_they_are_and_not_by_what_devices_keep_of_them(
        self,
    ) -> None:
        run = over()
        assert latest(run.state).evaluated == {}, (
            "nobody has said how the last models answer by themselves"
        )
        (first,) = run.state.history
        run.feed(RolledBack(15.0, 0))
        told(run, "a", at_s=16.0)
        assert latest(run.state).evaluated == first.evaluated != {}

    def test_a_run_that_trains_on_forgets_late_closings_and_asks_for_them_after_its_new_end(
        self,
    ) -> None:
        run = over("c")
        run.check_in("late", 20.0)
        run.feed(Retuned(21.0, msgspec.structs.replace(run.state.settings, rounds=2), PROGRAMS))
        assert (run.state.phase, run.state.closings) == ("training", {})


HELD = st.sampled_from((None, None, (), ("3" * 64,)))
events = st.lists(
    st.one_of(
        st.tuples(
            st.just("check-in"),
            st.sampled_from("acd"),
            st.sampled_from("12"),
            st.sampled_from((10, 10, 2)),
            HELD,
        ),
        st.tuples(
            st.sampled_from(("lost", "update", "declined", "expired", "failed")),
            st.sampled_from("acd"),
        ),
        st.tuples(st.just("deadline"), st.integers(1, 12)),
        st.tuples(st.just("keeps"), st.sampled_from("acd"), HELD, st.booleans()),
        st.tuples(st.just("rolled back"), st.just(0)),
        st.tuples(st.just("resumed"), st.none()),
    ),
    max_size=50,
)


@given(events)
def test_any_history_after_the_end_ends_nobodys_work_and_asks_in_vain_only_a_few_times(
    history: list[tuple[Any, ...]],
) -> None:
    run = over("c")
    attempts = {"c": run.state.attempt}
    vain: dict[str, int] = {}
    terms: dict[str, str] = {}
    for at_s, (kind, *values) in enumerate(history, start=20):
        before, value = run.state, values[0]
        match kind:
            case "check-in":
                vain = vain if terms.get(value) == values[1] else {**vain, value: 0}
                terms[value] = values[1]
                commands = run.feed(
                    s.DeviceCheckedIn(at_s, value, values[2], 4, terms=values[1], held=values[3])
                )
                assert len(plans(commands)) + len(finished(commands)) == 1, (
                    "a device that comes is told one thing"
                )
            case "lost":
                commands = run.feed(s.DeviceLost(at_s, value))
            case "update":
                commands = told(run, value, at_s=at_s)
            case "declined" | "expired" | "failed":
                commands = declined(
                    run, value, at_s, failed=kind != "expired", again=kind == "failed"
                )
            case "deadline":
                commands = run.feed(s.DeadlinePassed(at_s + value, run.state.round))
            case "keeps":
                commands = keeps(run, value, at_s, held=values[1], withholds=values[2])
                assert run.state.received.keys() <= before.received.keys()
                assert {
                    plan.device_id for plan in plans(commands)
                } <= before.received.keys() - run.state.received.keys()
            case "rolled back":
                commands, vain = run.feed(RolledBack(at_s, 0)), {}
            case _:
                commands = run.resume(at_s, run.state.epoch + 1)
        assert not set(finished(commands)) & run.state.closings.keys(), (
            "a finish would end its work"
        )
        vain = (
            {**vain, value: 0}
            if value in run.state.received.keys() - before.received.keys()
            else vain
        )  # it has chosen
        for plan in plans(commands):
            device = plan.device_id
            if (
                device not in before.closings
                or before.closings[device] != run.state.closings[device]
            ):
                assert plan.attempt > attempts.get(device, -1), (
                    "the device would take it for a plan that it has answered"
                )
                attempts[device] = plan.attempt
        for device in before.closings.keys() - run.state.closings.keys():
            if kind in ("deadline", "declined", "expired", "failed"):
                vain[device] = vain.get(device, 0) + 1
                assert vain[device] <= MOST_ASKED
        assert run.state.phase == "finished"
        assert s.decode_state(s.encode_state(run.state)) == run.state
    assert run.replayed() == run.state
