"""A device whose data have moved: it is surveyed again, in the next round of training, once."""

from typing import Any

import msgspec
import pytest

from aggregator.core import state as s
from aggregator.core.plan import plan_for
from algorithms.core.contract import Programs
from tests.aggregator.round_cases import RECEIVED, Run
from wire.codec import digest
from wire.messages import Evaluate, Plan, Train

SURVEY = Evaluate("train", "survey", "initial")
SURVEYING: Programs = {
    "": (Evaluate(), Train(32)),
    "start:initial": (SURVEY, Train(32)),
    "device:a": (Train(32, epochs=5),),
    "closing": (Evaluate(),),
}
STARTS = {"a": "0", "b": "0", "": "initial"}


def second_round(**options: object) -> Run:
    """A run in whose second round two devices have a group."""
    run = Run(min_devices=2, rounds=9, **options)  # type: ignore[arg-type]
    run.check_in("a")
    run.check_in("b")
    turn(run)
    assert run.state.round == 2
    return run


def turn(run: Run, at_s: float = 3.0, **others: Any) -> None:
    """All devices of the round send their updates, which are aggregated."""
    for device in list(run.state.cohort):
        update = msgspec.structs.replace(
            RECEIVED,
            blob=digest(f"{device} {run.state.round}".encode()),
            start=run.state.cohort[device],
        )
        run.feed(s.UpdateAdmitted(at_s, device, run.state.round, update))
    run.aggregated(at_s, STARTS, **others)


def move(run: Run, device: str = "a") -> list[s.Command]:
    return run.feed(s.DeviceCheckedIn(2.0, device, 11, 4, moved=True))


def surveys(plan: Plan) -> bool:
    return SURVEY in plan.verbs


def test_it_is_a_newcomer_in_the_next_round_and_no_longer_after_it() -> None:
    run = second_round(programs=SURVEYING)
    before = plan_for(run.state, "a")
    assert move(run) == [s.SendPlan(before)]  # the open round's plan stays what it was
    turn(run)
    assert (run.state.cohort, surveys(plan_for(run.state, "a"))) == (
        {"a": "initial", "b": "0"},
        True,
    )
    assert not surveys(plan_for(run.state, "b"))
    assert plan_for(run.state, "a").model == run.state.models["initial"]
    turn(run)
    assert (run.state.cohort, run.state.devices["a"].moved) == ({"a": "0", "b": "0"}, False)
    assert not surveys(plan_for(run.state, "a"))


def test_a_check_in_that_does_not_say_it_takes_nothing_back() -> None:
    run = second_round(programs=SURVEYING)
    move(run)
    run.check_in("a")
    turn(run)
    assert surveys(plan_for(run.state, "a"))


@pytest.mark.parametrize("others", [{"left_out": ("a",)}, {"made_in": 1}])
def test_it_is_asked_again_if_its_survey_did_not_count(others: dict[str, Any]) -> None:
    run = second_round(programs=SURVEYING)
    move(run)
    turn(run)
    turn(run, **others)
    assert surveys(plan_for(run.state, "a"))


def test_it_is_asked_again_if_it_did_not_answer() -> None:
    run = second_round(programs=SURVEYING)
    move(run)
    turn(run)
    run.update("b")
    run.feed(s.DeviceDeclined(2.5, "a", run.state.round, False))
    run.aggregated(3.0, STARTS)
    assert surveys(plan_for(run.state, "a"))


def test_where_newcomers_do_nothing_of_their_own_nothing_changes() -> None:
    run = second_round()
    move(run)
    turn(run)
    assert run.state.cohort == {"a": "0", "b": "0"}


def test_it_evaluates_and_keeps_its_groups_model() -> None:
    run = second_round(programs=SURVEYING)
    run.state = msgspec.structs.replace(
        run.state, settings=msgspec.structs.replace(run.state.settings, rounds=2)
    )
    move(run)
    turn(run)
    assert (run.state.phase, run.state.cohort["a"]) == ("evaluating", "0")


def test_it_survives_a_restart() -> None:
    run = second_round(programs=SURVEYING)
    move(run)
    assert s.decode_state(s.encode_state(run.state)).devices["a"].moved
