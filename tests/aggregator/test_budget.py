"""How long a campaign trains: rounds, days, and as long as its models get better."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.core import state as s
from aggregator.core.budget import DAY_S, improvement_of, why_ended
from aggregator.core.state import Aborted, Retuned
from aggregator.service.start import check_retuned
from tests.aggregator.round_cases import RECEIVED, Run, kinds
from tests.contracts.store import PROGRAMS, SETTINGS
from wire.codec import digest
from wire.errors import ConfigError
from wire.messages import Metrics

NONE = Metrics()


def run_of(**settings: Any) -> Run:
    run = Run(**{"rounds": 100, "deadline_s": 100.0, **settings})
    run.check_in("a", 1.0)
    return run


def train(run: Run, right: int | None, at_s: float = 2.0) -> None:
    """A round of training in which the device had so many of 100 test windows right; None: it tells
    no accuracy."""
    told = NONE if right is None else Metrics(100, 50.0, right)
    update = msgspec.structs.replace(
        RECEIVED, blob=digest(f"{run.state.round}".encode()), evaluated=told
    )
    run.feed(s.UpdateAdmitted(at_s, "a", run.state.round, update))
    assert run.state.phase == "aggregating"
    run.aggregated(at_s)


def retuned(run: Run, at_s: float, **changes: Any) -> list[str]:
    return kinds(
        run.feed(
            Retuned(at_s, msgspec.structs.replace(run.state.next_settings, **changes), PROGRAMS)
        )
    )


class TestDays:
    def test_no_round_is_opened_after_them_and_the_open_one_counts(self) -> None:
        run = run_of(days=2.0, deadline_s=DAY_S)
        train(run, 50, 1.9 * DAY_S)
        assert run.state.phase == "training"
        train(run, 50, 2.1 * DAY_S)
        assert (run.state.phase, run.state.trained) == ("evaluating", 2)
        assert kinds(run.update("a", at_s=2.2 * DAY_S)) == ["Acknowledge", "FinishRun"]
        assert why_ended(run.state) == "its 2 days are over"

    def test_a_round_that_nobody_answers_is_given_up_for_the_evaluation(self) -> None:
        run = run_of(days=1.0)
        run.feed(s.DeadlinePassed(101.0, 1))
        assert (run.state.phase, run.state.attempt) == ("training", 1)
        run.feed(s.DeadlinePassed(DAY_S, 1))
        assert (run.state.phase, run.state.round, run.state.attempt, run.state.trained) == (
            "evaluating",
            1,
            2,
            0,
        )

    def test_a_round_that_waits_for_the_hour_is_given_up_too(self) -> None:
        run = run_of(days=1.0, pace_s=1e6, min_updates=1)
        train(run, 50, 10.0)
        assert run.state.idle
        run.feed(s.DeadlinePassed(DAY_S + 20, 2))
        assert run.state.phase == "evaluating"

    def test_more_of_them_let_a_finished_campaign_go_on_and_more_rounds_do_not(self) -> None:
        run = run_of(days=1.0)
        train(run, 50, 2 * DAY_S)
        run.update("a", at_s=2 * DAY_S)
        assert run.state.phase == "finished"
        assert retuned(run, 2 * DAY_S, rounds=500) == []
        assert "SendPlan" in retuned(run, 2 * DAY_S, days=3.0)
        assert (run.state.phase, run.state.ended) == ("training", "")


class TestPatience:
    def test_training_ends_when_the_accuracy_has_not_got_better_for_so_many_rounds(self) -> None:
        run = run_of(patience=3, min_delta=0.02)
        for right in (50, 60, 61, 62):
            train(run, right)
            assert run.state.phase == "training"
        train(run, 60)
        assert (run.state.phase, run.state.best, run.state.unimproved) == ("evaluating", 0.6, 3)
        assert (
            why_ended(run.state)
            == "the mean accuracy has not got better by more than 0.02 for 3 rounds (best: 0.6000)"
        )

    def test_more_patience_goes_on_and_a_better_round_ends_the_count(self) -> None:
        run = run_of(patience=1)
        train(run, 50)
        train(run, 50)
        run.update("a")
        assert run.state.phase == "finished"
        assert "SendPlan" in retuned(run, 50.0, patience=3)
        train(run, 55, 51.0)
        assert (run.state.phase, run.state.unimproved) == ("training", 0)

    def test_devices_that_tell_no_accuracy_are_named_and_end_nothing(self) -> None:
        run = run_of(patience=1)
        for _ in range(5):
            train(run, None)
        assert run.state.phase == "training"
        assert why_ended(run.state) == "its devices tell no accuracy: --patience cannot end it"

    @given(
        st.lists(st.one_of(st.none(), st.integers(0, 100)), max_size=30),
        st.integers(1, 5),
        st.sampled_from([0.0, 0.05]),
    )
    def test_whatever_devices_say_it_ends_where_the_definition_says(
        self, told: list[int | None], patience: int, min_delta: float
    ) -> None:
        run = run_of(patience=patience, min_delta=min_delta, rounds=31)
        for number, right in enumerate(told, start=1):
            train(run, right)
            said = [None if r is None else r / 100 for r in told[:number]]
            best, unimproved = improvement_of(said, min_delta)
            assert (run.state.best, run.state.unimproved) == (best, unimproved)
            assert (run.state.phase == "evaluating") == (unimproved >= patience)
            if run.state.phase == "evaluating":
                assert s.decode_state(s.encode_state(run.state)) == run.state
                return


def test_rounds_and_an_order_are_named_too() -> None:
    run = run_of(rounds=1)
    train(run, 50)
    assert why_ended(run.state) == "its 1 round is over"
    run = run_of()
    run.feed(Aborted(5.0))
    assert why_ended(run.state) == "it was aborted"


@pytest.mark.parametrize(
    "changes",
    [{"days": -1.0}, {"days": float("inf")}, {"patience": -1}, {"min_delta": float("nan")}],
)
def test_budgets_that_cannot_be_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigError, match=f"{next(iter(changes))} .*: expected a finite number from 0"
    ):
        check_retuned(SETTINGS, msgspec.structs.replace(SETTINGS, **changes), tmp_path)
