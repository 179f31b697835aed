"""Devices that have lost what they had chosen to keep choose it again; what an owner no longer lets
a device say is in no record."""

import msgspec
import pytest

from aggregator.core import state as s
from aggregator.core.round.closings import MOST_ASKED
from aggregator.transfer.offered import needed
from tests.aggregator.closing_cases import (
    PROGRAMS,
    declined,
    finished,
    keeps,
    lost,
    over,
    plans,
    told,
    written,
)
from tests.aggregator.kept_cases import CLOSING
from tests.aggregator.round_cases import RECEIVED
from wire import messages as m


class TestLost:
    """A device that no longer holds what it chose, and one whose owner no longer lets it say so."""

    def test_who_has_lost_what_it_kept_chooses_anew_and_until_then_the_run_says_nothing_of_it(
        self,
    ) -> None:
        run = over()
        before = run.state
        (plan,) = plans(lost(run, "a", ()))
        assert (plan.verbs, plan.model) == (CLOSING, run.state.models["0"])
        assert list(run.state.received) == ["b"]
        record = written(before, run)
        assert (sorted(record.kept), sorted(record.evaluated)) == (["b"], ["b"])
        before = run.state
        told(run, "a")
        assert sorted(written(before, run).kept) == ["a", "b"]
        assert finished(lost(run, "a", (run.state.models["0"],), 23.0)) == ["a"]

    @pytest.mark.parametrize("held", [None, ("3" * 64,), ("e" * 64, "3" * 64)])
    def test_who_holds_it_or_does_not_say_is_told_its_model(
        self, held: tuple[str, ...] | None
    ) -> None:
        run = over()
        before = run.state.received
        assert finished(lost(run, "a", held)) == ["a"]
        assert run.state.received is before

    def test_who_holds_something_of_another_model_only_has_lost_it(self) -> None:
        assert plans(lost(over(), "a", ("e" * 64,)))

    def test_where_devices_find_their_model_themselves_what_is_kept_may_be_of_any(self) -> None:
        run = over()
        chooses = {**PROGRAMS, "closing": (m.Choose(("e" * 64, "3" * 64), "test"), *CLOSING)}
        run.state = msgspec.structs.replace(
            run.state, programs=chooses, models={**run.state.models, "1": "e" * 64}
        )
        assert finished(lost(run, "a", ("e" * 64,))) == ["a"]
        assert plans(lost(run, "a", ("f" * 64,)))

    def test_a_device_that_has_told_another_run_that_it_has_lost_it_is_asked_when_it_comes(
        self,
    ) -> None:
        run = over()
        run.feed(s.DeviceLost(19.0, "a"))
        before = run.state
        assert keeps(run, "a", held=()) == []
        assert sorted(written(before, run).kept) == ["b"]
        assert plans(run.check_in("a", 21.0))

    def test_one_that_said_so_before_the_run_was_over_and_is_there_is_asked_at_once(self) -> None:
        run = over()
        (plan,) = plans(keeps(run, "a", held=()))
        assert (plan.device_id, list(run.state.closings)) == ("a", ["a"])

    def test_who_declines_to_choose_again_is_not_asked_for_ever_although_it_holds_what_it_kept(
        self,
    ) -> None:
        run = over()
        held = (run.state.models["0"],)
        run.feed(s.DeviceCheckedIn(20.0, "u", 0, 0, terms="1"))
        told(run, "u", num_train=0)
        asked = 0
        for at_s in range(30, 90, 2):
            asked += len(plans(run.feed(s.DeviceCheckedIn(at_s, "u", 5, 0, terms="2", held=held))))
            declined(run, "u", at_s + 1.0)
        assert asked == 1

    def test_what_was_asked_in_vain_before_it_chose_does_not_count_when_it_loses_it(self) -> None:
        run = over()
        for at_s in (20.0, 40.0):
            run.check_in("late", at_s)
            run.feed(s.DeadlinePassed(at_s + 10.0, run.state.round))
        run.check_in("late", 60.0)
        told(run, "late", at_s=61.0)
        assert plans(lost(run, "late", (), 62.0))

    @pytest.mark.parametrize(("holds_it_between", "times"), [(False, MOST_ASKED - 1), (True, 10)])
    def test_who_loses_it_again_and_again_is_asked_a_few_times_unless_it_held_it_in_between(
        self, holds_it_between: bool, times: int
    ) -> None:
        run, asked = over(), 0
        for at_s in range(20, 60, 4):
            asked += len(plans(lost(run, "a", (), at_s)))
            told(run, "a", at_s=at_s + 1.0)
            if holds_it_between:
                assert finished(lost(run, "a", (run.state.models["0"],), at_s + 2.0)) == ["a"]
        assert asked == times
        assert finished(run.check_in("a", 99.0)) == ["a"]

    def test_what_an_owner_no_longer_lets_it_say_is_in_no_record(self) -> None:
        run = over()
        before = run.state
        assert keeps(run, "a", withholds=True) == []
        record = written(before, run)
        assert (sorted(record.kept), record.evaluated["a"]) == (["b"], RECEIVED.evaluated)
        before = run.state
        keeps(run, "b", withholds=True, min_windows=RECEIVED.evaluated.num_examples + 1)
        record = written(before, run)
        assert (record.kept, record.evaluated["b"]) == ({}, m.Metrics())
        assert (sorted(run.state.received), run.replayed()) == (["a", "b"], run.state)
        assert s.decode_state(s.encode_state(run.state)) == run.state

    def test_what_as_many_windows_are_behind_as_the_owner_wants_stays(self) -> None:
        run = over()
        before = run.state
        keeps(run, "a", min_windows=RECEIVED.evaluated.num_examples)
        assert run.state is before

    @pytest.mark.parametrize("phase", ["training", "aggregating", "evaluating"])
    def test_in_an_open_round_it_is_not_said_either(self, phase: s.Phase) -> None:
        run = over("c", hold=True)
        run.state = msgspec.structs.replace(run.state, phase=phase)
        assert keeps(run, "a", held=(), withholds=True, min_windows=99) == []
        said = run.state.received["a"]
        assert (said.kept, said.evaluated, run.state.phase) == (None, m.Metrics(), phase), (
            "its update counts as before"
        )

    def test_the_bytes_of_what_it_said_are_kept_no_longer_than_the_round_needs_them(self) -> None:
        evaluating, finished = over("c", hold=True).state, over().state
        assert {said.blob for said in evaluating.received.values()} <= needed(evaluating)
        assert not {said.blob for said in finished.received.values()} & needed(finished)
