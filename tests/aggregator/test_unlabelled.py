"""Devices without labels: none trains or is waited for; each is asked once what its inputs are
like, and is placed."""

from typing import Any

import msgspec
import pytest

from aggregator.core import state as s
from aggregator.core.admission import Duplicate, Refused, admit
from aggregator.core.plan import plan_for, without_labels
from aggregator.core.record import record_of
from aggregator.core.round.asking import (
    all_placed,
    groups_of,
    key_now,
    num_trainers,
    placed_of,
    start_key,
)
from aggregator.core.round.machine import step
from aggregator.core.state import DeviceBarred, DeviceForgotten, Placed, Retuned
from aggregator.core.summary import summarize
from aggregator.releases.policy import group_of
from aggregator.transfer.offered import needed, offered
from algorithms.algorithm import SURVEY_INPUTS
from tests.aggregator.round_cases import MEMORY, MODEL, RECEIVED, Run, kinds
from tests.aggregator.unlabelled_cases import (
    FOUR_OF_FIVE,
    LARGEST,
    NOTHING,
    PROGRAMS,
    TRAINS,
    aggregate,
    come,
    started,
    tell,
    with_unlabelled,
)
from wire.codec import digest
from wire.messages import Evaluate, Train, Update


def train(run: Run, at_s: float = 3.0, **others: Any) -> list[s.Command]:
    """Both labelled devices send their updates, and the round is aggregated into two groups."""
    commands = [*run.update("a", at_s=at_s), *run.update("b", at_s=at_s)]
    return (
        [*commands, *aggregate(run, at_s, **others)]
        if run.state.phase == "aggregating"
        else commands
    )


def plans(commands: list[s.Command]) -> dict[str, tuple[int, tuple[Any, ...]]]:
    """By device, the round and the verbs of the plan that it is sent."""
    return {
        c.plan.device_id: (c.plan.round, c.plan.verbs)
        for c in commands
        if isinstance(c, s.SendPlan)
    }


class TestAsking:
    def test_it_opens_no_round_and_counts_among_no_devices(self) -> None:
        run = Run(programs=PROGRAMS, min_devices=2, min_batch=2)
        run.check_in("a")
        assert come(run) == []
        assert (run.state.phase, run.state.num_online, num_trainers(run.state)) == ("waiting", 2, 1)
        assert plans(run.check_in("b")) == {
            "a": (1, TRAINS),
            "b": (1, TRAINS),
            "u": (1, (SURVEY_INPUTS,)),
        }
        assert sorted(run.state.cohort) == ["a", "b"]

    def test_it_is_asked_once_for_its_inputs_from_the_bundles_model_and_trains_in_no_round(
        self,
    ) -> None:
        run, commands = with_unlabelled()
        assert plans(commands) == {"u": (1, (SURVEY_INPUTS,))}
        assert plan_for(run.state, "u").model == run.state.models["initial"]
        assert kinds(tell(run)) == ["Acknowledge"]
        assert run.state.received == {}
        for _ in range(3):
            assert "u" not in plans(train(run))
            assert "u" not in run.state.cohort
        assert come(run) == []

    def test_a_fleet_of_labelled_devices_and_an_earlier_bundle_are_asked_as_ever(self) -> None:
        run = Run(min_devices=1)
        assert plans(come(run)) == {"u": (1, run.state.programs[""])}

    def test_where_inputs_tell_nothing_nobody_is_asked(self) -> None:
        _, commands = with_unlabelled(
            programs={k: v for k, v in PROGRAMS.items() if k != "unlabelled"}
        )
        assert commands == []

    def test_its_plan_outlives_the_round_that_asked_and_is_sent_again_when_it_comes_back(
        self,
    ) -> None:
        run, _ = with_unlabelled()
        before = plan_for(run.state, "u")
        train(run)
        assert (run.state.round, plan_for(run.state, "u")) == (2, before)
        assert come(run) == [s.SendPlan(before)]
        assert kinds(tell(run, number=1)) == ["Acknowledge"]
        assert run.state.inputs["u"].round == 2

    def test_a_plan_that_is_overdue_is_given_up_and_asked_again_less_often(self) -> None:
        run, _ = with_unlabelled(deadline_s=10.0)
        train(run)
        run.feed(s.DeadlinePassed(12.0, run.state.round))
        assert "u" not in run.state.placing
        assert (run.state.devices["u"].failures, run.state.devices["u"].online) == (1, False)
        run.feed(s.DeviceHeard(12.5, "u"))
        asked = [number for number in range(2, 8) if "u" in plans(train(run, 13.0))]
        assert asked == [2], "in round 3, and not again while it works on that plan"

    def test_no_more_are_asked_at_a_time_than_a_round_trains(self) -> None:
        run = started(cohort=2, min_updates=1)
        for device in ("u", "v", "w", "x"):
            come(run, device)
        assert len(run.state.placing) == 2
        tell(run, next(iter(run.state.placing)))
        train(run)
        assert len(run.state.placing) == 2
        assert len(run.state.inputs) == 1

    def test_outside_the_hours_it_is_not_asked(self) -> None:
        run = started(hours="00:00-00:01")
        run.state = msgspec.structs.replace(run.state, idle=True)
        assert come(run) == []

    def test_one_that_has_moved_is_asked_again_and_stays_where_it_is_until_then(self) -> None:
        run, _ = with_unlabelled()
        tell(run)
        train(run)
        assert plans(come(run, moved=True)) == {"u": (2, (SURVEY_INPUTS,))}
        assert placed_of(run.state, "u") == FOUR_OF_FIVE
        tell(run, number=2)
        assert not run.state.devices["u"].moved

    def test_in_a_buffered_run_it_takes_nobodys_place(self) -> None:
        run, commands = with_unlabelled(buffer=2, concurrency=2, min_updates=1)
        assert plans(commands) == {"u": (1, (SURVEY_INPUTS,))}
        assert sorted(run.state.flights) == ["a", "b"]
        tell(run)
        assert run.state.received == {}
        assert sorted(plans(train(run))) == ["a", "b"]
        assert start_key(run.state, "u") == "1"

    def test_a_device_whose_labels_are_gone_leaves_the_round_and_is_asked_of_its_inputs_in_the_next(
        self,
    ) -> None:
        run = started(min_updates=1)
        assert come(run, "b") == [], "a plan of the same attempt would be the same to it"
        assert (list(run.state.cohort), run.state.declined) == (["a"], ("b",))
        assert kinds(run.update("a")) == ["Acknowledge", "Aggregate"], "nobody waits for it"
        assert plans(aggregate(run))["b"] == (2, (SURVEY_INPUTS,))

    def test_a_buffered_round_does_not_wait_for_it_either(self) -> None:
        run = started(min_updates=1, buffer=1, concurrency=2)
        come(run, "b")
        assert ("b" in run.state.cohort, "b" in run.state.flights) == (False, False)


class TestPlacing:
    def test_it_starts_from_its_groups_model_in_the_last_plan_and_does_what_takes_no_labels(
        self,
    ) -> None:
        run, _ = with_unlabelled(rounds=1)
        tell(run)
        assert plans(train(run))["u"] == (2, (Train(32, least=2), Evaluate()))
        assert (run.state.cohort["u"], plan_for(run.state, "u").model) == ("1", "4" * 64)
        for device in ("a", "b", "u"):
            commands = run.update(device)
        assert run.state.phase == "finished"
        assert s.FinishRun("u", "4" * 64) in commands

    def test_one_that_has_told_nothing_is_in_the_largest_group(self) -> None:
        run, _ = with_unlabelled(rounds=2)
        train(run)
        assert (placed_of(run.state, "u"), start_key(run.state, "u")) == (LARGEST, "0")
        assert groups_of(run.state, all_placed(run.state)) == {"a": "0", "b": "1", "u": "0"}
        assert placed_of(run.state, "a") is None

    def test_a_group_that_is_gone_is_nobodys(self) -> None:
        run, _ = with_unlabelled()
        tell(run)
        train(run)
        run.state = msgspec.structs.replace(run.state, models={"initial": MODEL, "0": "3" * 64})
        assert placed_of(run.state, "u") == LARGEST

    def test_the_last_round_waits_for_it_as_for_a_newcomer(self) -> None:
        run, _ = with_unlabelled(rounds=1, grace_s=5.0)
        run.update("a", at_s=3.0)
        assert run.update("b", at_s=3.0)[1:] == [s.SetDeadline(1, 6.0)]
        assert run.state.phase == "training"
        assert kinds(tell(run, at_s=4.0)) == ["Acknowledge", "Aggregate"]

    @pytest.mark.parametrize(
        "event",
        [
            s.DeadlinePassed(6.0, 1),
            s.DeviceDeclined(4.0, "u", 1),
            s.DeviceDeclined(4.0, "u", 1, forbidden=True),
        ],
        ids=str,
    )
    def test_but_not_for_ever(self, event: s.Event) -> None:
        run, _ = with_unlabelled(rounds=1, grace_s=5.0)
        train(run)
        run.feed(event)
        assert run.state.phase == "aggregating"
        assert plans(aggregate(run))["u"][1][-1] == Evaluate()
        assert start_key(run.state, "u") == "0"

    def test_one_that_gains_labels_trains_as_a_newcomer_and_is_placed_by_its_inputs_no_more(
        self,
    ) -> None:
        run, _ = with_unlabelled()
        tell(run)
        train(run)
        assert come(run, num_train=12) == []
        assert ("u" in run.state.inputs, "u" in run.state.placed, start_key(run.state, "u")) == (
            False,
            False,
            "initial",
        )
        assert plans(train(run))["u"] == (3, TRAINS)
        assert run.state.cohort["u"] == "initial"

    def test_in_the_round_that_asked_it_gets_no_second_plan(self) -> None:
        run, _ = with_unlabelled(min_updates=3)
        assert come(run, num_train=12) == [], (
            "the round is short of devices, but a device takes a plan of the same round for the "
            "same"
        )
        assert run.state.placing == {}

    def test_a_record_and_a_summary_say_how_sure_it_is(self) -> None:
        run, _ = with_unlabelled()
        tell(run)
        run.update("a")
        run.update("b")
        before = run.state
        aggregate(run)
        event = s.RoundAggregated(
            3.0, 1, run.state.models, MEMORY, run.state.starts, PROGRAMS, placed=run.state.placed
        )
        record = record_of(before, event, run.state)
        assert record is not None
        assert (record.groups, record.placed) == (
            {"a": "0", "b": "1", "u": "1"},
            {"u": FOUR_OF_FIVE},
        )
        assert sorted(record.evaluated) == ["a", "b"]
        assert (record.bytes_up, record.bytes_down) == (300, 150), "what it has told is moved, too"
        summary = summarize(run.state, [record], 1.0)
        assert (summary.devices["u"].group, str(summary.devices["u"].placed)) == (
            1,
            "placed by its inputs, 4 of 5 neighbours",
        )
        assert (summary.groups.count, summary.devices["a"].placed) == (2, None)

    @pytest.mark.parametrize(
        ("placed", "text"),
        [
            (Placed("0", 1.0, 5), "placed by its inputs, 5 of 5 neighbours"),
            (Placed("0", 2 / 3, 3), "placed by its inputs, 2 of 3 neighbours"),
            (Placed("0", 1.0), "the only group"),
            (Placed("0", 0.625), "in the largest group, 62 % of the devices"),
        ],
    )
    def test_what_people_read(self, placed: Placed, text: str) -> None:
        assert str(placed) == text

    def test_verbs_that_need_labels_are_left_out(self) -> None:
        assert without_labels(PROGRAMS["closing"]) == (Train(32, least=2), Evaluate())


class TestFailures:
    def test_an_owner_who_does_not_permit_it_is_asked_once(self) -> None:
        run, _ = with_unlabelled()
        run.feed(s.DeviceDeclined(2.0, "u", 1, forbidden=True))
        assert (run.state.devices["u"].untold, run.state.placing) == (True, {})
        for _ in range(4):
            assert "u" not in plans(train(run))
            assert come(run) == []
        assert placed_of(run.state, "u") == LARGEST

    def test_an_owner_of_labels_who_does_not_permit_the_survey_has_the_largest_groups_model(
        self,
    ) -> None:
        run = started(rounds=2)
        come(run, "f", num_train=10)
        train(run)
        assert run.state.cohort["f"] == "initial"
        assert (placed_of(run.state, "f"), group_of(run.state, "f")) == (None, "")
        run.feed(s.DeviceDeclined(4.0, "f", 2, forbidden=True))
        assert (placed_of(run.state, "f"), start_key(run.state, "f")) == (LARGEST, "0")
        assert (key_now(run.state, "f"), group_of(run.state, "f")) == ("initial", "run-1/0"), (
            "it would train as a newcomer"
        )
        train(run)
        assert (run.state.phase, run.state.cohort) == ("evaluating", {"a": "0", "b": "1", "f": "0"})
        assert plan_for(run.state, "f").model == run.state.models["0"], (
            "its accuracy is that of the model that it is given"
        )
        for device in "abf":
            commands = run.update(device)
        assert s.FinishRun("f", run.state.models["0"]) in commands
        summary = summarize(run.state, [], 1.0).devices["f"]
        assert (summary.group, str(summary.placed)) == (
            0,
            "in the largest group, 75 % of the devices",
        )
        assert run.replayed() == run.state

    def test_an_owner_who_permits_it_later_is_placed_by_the_training(self) -> None:
        run = started()
        come(run, "f", num_train=10)
        train(run)
        run.feed(s.DeviceDeclined(4.0, "f", 2, forbidden=True))
        train(run, starts={"a": "0", "b": "1", "f": "1", "": "initial"})
        assert (placed_of(run.state, "f"), start_key(run.state, "f")) == (None, "1")

    def test_a_device_that_came_in_the_last_round_tests_the_model_that_it_is_given(self) -> None:
        run = started(rounds=1)
        come(run, "late", num_train=10)
        train(run)
        assert run.state.cohort == {"a": "0", "b": "1", "late": "0"}
        come(run, "later", num_train=10)
        assert (
            str(summarize(run.state, [], 1.0).devices["later"].placed)
            == "in the largest group, 75 % of the devices"
        )

    def test_one_without_a_window_is_asked_again_less_and_less_often(self) -> None:
        run, _ = with_unlabelled()
        asked = []
        for _ in range(8):
            if "u" in run.state.placing:
                asked.append(run.state.round)
                tell(run, number=run.state.round, norms={})
            train(run)
        assert asked == [1, 2, 4, 8]
        assert run.state.inputs == {}

    def test_after_a_restart_its_plan_is_sent_again(self) -> None:
        run, commands = with_unlabelled()
        state = s.decode_state(s.encode_state(run.state))
        assert state == run.state
        _, again = step(state, s.Resumed(5.0, 2))
        assert plans(again)["u"] == plans(commands)["u"]

    def test_what_it_told_outlives_a_restart_and_its_blob_is_needed(self) -> None:
        run, _ = with_unlabelled()
        assert run.state.placing["u"].model in offered(run.state)
        tell(run)
        train(run)
        state = s.decode_state(s.encode_state(run.state))
        assert (state.inputs, state.placed) == (run.state.inputs, run.state.placed)
        assert state.inputs["u"].blob in needed(state)

    def test_what_it_told_is_asked_for_again_where_it_is_lost(self) -> None:
        run, _ = with_unlabelled()
        tell(run)
        run.update("a")
        run.update("b")
        assert run.feed(s.UpdatesLost(3.0, 1, ("u",))) == [s.Aggregate(1)], (
            "the round has all that it needs"
        )
        assert run.state.inputs == {}
        assert plans(aggregate(run))["u"] == (2, (SURVEY_INPUTS,))

    def test_a_device_that_is_banned_or_forgotten_leaves_nothing_to_wait_for(self) -> None:
        run, _ = with_unlabelled()
        run.feed(DeviceBarred(2.0, "u"))
        assert (run.state.placing, num_trainers(run.state)) == ({}, 2)
        run, _ = with_unlabelled()
        tell(run)
        train(run)
        run.feed(DeviceForgotten(4.0, "u", {}, ()))
        assert "u" not in {*run.state.inputs, *run.state.placed, *run.state.devices}
        assert (run.state.num_online, run.state.num_unlabelled) == (2, 0)

    def test_settings_that_say_anew_who_can_train_count_anew(self) -> None:
        run, _ = with_unlabelled(min_batch=0)
        assert num_trainers(run.state) == 3
        run.feed(Retuned(2.0, msgspec.structs.replace(run.state.settings, min_batch=2), PROGRAMS))
        assert (run.state.num_online, num_trainers(run.state)) == (3, 2)
        assert all_placed(run.state) == {}


class TestAdmission:
    def update(self, number: int = 1, **values: Any) -> Update:
        said: dict[str, Any] = {
            "run_id": "run",
            "epoch": 0,
            "round": number,
            "attempt": 0,
            "device_id": "u",
            "model": MODEL,
        } | values
        return Update(num_train=0, num_steps=0, evaluated=NOTHING, trained=NOTHING, **said)

    def verdict(self, run: Run, update: Update) -> Any:
        update = msgspec.structs.replace(update, run_id=run.state.settings.run_id)
        return admit(run.state, "u", update, {}, "c" * 64, 10, lambda _: {})

    def test_an_update_of_a_device_without_windows_is_empty_and_taken(self) -> None:
        run, _ = with_unlabelled()
        verdict = self.verdict(run, self.update())
        assert (verdict.start, verdict.norms, verdict.num_steps) == ("initial", {}, 0)

    def test_it_is_taken_in_a_later_round_and_by_its_own_number_alone(self) -> None:
        run, _ = with_unlabelled()
        train(run)
        assert isinstance(self.verdict(run, self.update()), s.Received)
        refused = self.verdict(run, self.update(2))
        assert isinstance(refused, Refused)
        assert refused.reason == "wrong-round"

    def test_a_second_one_is_a_duplicate_or_has_no_plan(self) -> None:
        run, _ = with_unlabelled()
        run.feed(s.UpdateAdmitted(2.0, "u", 1, self.verdict(run, self.update())))
        assert isinstance(self.verdict(run, self.update()), Duplicate)
        run.state = msgspec.structs.replace(
            run.state, devices=run.state.devices.set("u", s.Device(0, 4, True, 0.0))
        )
        refused = self.verdict(run, self.update())
        assert isinstance(refused, Refused)
        assert refused.reason == "not-in-cohort"


def test_who_comes_late_or_never_trained_is_not_left_with_the_model_from_before_training() -> None:
    run, _ = with_unlabelled(rounds=1)
    tell(run)
    train(run)
    for device in ("a", "b", "u"):
        run.update(device)
    assert (run.state.phase, run.state.placed[""].group) == ("finished", "0")
    trained = run.state.models["0"]
    assert come(run, "late", num_train=50, at_s=9.0) == [s.FinishRun("late", trained)]
    assert come(run, "u", num_train=50, at_s=9.5) == [s.FinishRun("u", trained)], (
        "it has labels now, and was never trained"
    )
    assert groups_of(run.state, all_placed(run.state))["late"] == "0"
    assert placed_of(run.state, "late") == LARGEST, (
        "it is told as of devices without labels that have told nothing"
    )


class TestAfterTheEnd:
    def test_who_comes_then_tells_first_and_keeps_of_the_model_of_its_group(self) -> None:
        run = ended()
        commands = come(run, "late", at_s=50.0)
        assert (kinds(commands), plans(commands)["late"][1]) == (
            ["SetDeadline", "SendPlan"],
            (SURVEY_INPUTS,),
        )
        commands = tell_late(run, FOUR_OF_FIVE)
        assert kinds(commands) == ["Acknowledge", "SetDeadline", "SendPlan"]
        (plan,) = [c.plan for c in commands if isinstance(c, s.SendPlan)]
        assert (plan.model, plan.verbs) == (
            run.state.models["1"],
            without_labels(PROGRAMS["closing"]),
        )
        assert (placed_of(run.state, "late"), start_key(run.state, "late")) == (FOUR_OF_FIVE, "1")
        chosen = msgspec.structs.replace(RECEIVED, blob=digest(b"chosen"), start="1", num_train=0)
        commands = run.feed(s.UpdateAdmitted(53.0, "late", run.state.round, chosen))
        assert s.FinishRun("late", run.state.models["1"]) in commands
        assert come(run, "late", at_s=54.0) == [s.FinishRun("late", run.state.models["1"])]
        assert run.replayed() == run.state

    def test_where_devices_choose_nothing_it_is_told_its_model_at_once(self) -> None:
        run = ended(candidates=())
        come(run, "late", at_s=50.0)
        assert tell_late(run, FOUR_OF_FIVE)[-1] == s.FinishRun("late", run.state.models["1"])

    def test_who_may_not_tell_or_cannot_has_the_model_of_those_of_whom_nothing_is_known(
        self,
    ) -> None:
        run = ended(candidates=())
        come(run, "late", at_s=50.0)
        commands = run.feed(s.DeviceDeclined(51.0, "late", run.state.round, forbidden=True))
        assert (commands, placed_of(run.state, "late")) == (
            [s.FinishRun("late", run.state.models["0"])],
            LARGEST,
        )

    def test_one_that_has_no_window_yet_is_asked_again_once_it_says_something_else_of_itself(
        self,
    ) -> None:
        run = ended(candidates=())
        come(run, "empty", at_s=50.0, terms="none")
        assert tell_late(run, None, "empty", norms={})[-1] == s.FinishRun(
            "empty", run.state.models["0"]
        )
        assert kinds(come(run, "empty", at_s=60.0, terms="none")) == ["FinishRun"]
        assert plans(come(run, "empty", at_s=70.0, terms="five"))["empty"][1] == (SURVEY_INPUTS,)

    def test_one_whose_data_have_moved_is_placed_again_once(self) -> None:
        run = ended(candidates=())
        come(run, "late", at_s=50.0)
        tell_late(run, FOUR_OF_FIVE)
        assert plans(come(run, "late", at_s=60.0, moved=True))["late"][1] == (SURVEY_INPUTS,)
        tell_late(run, FOUR_OF_FIVE, at_s=61.0)
        assert kinds(come(run, "late", at_s=70.0)) == ["FinishRun"]

    def test_its_plan_outlives_a_restart_and_is_given_up_at_its_deadline(self) -> None:
        run = ended(candidates=())
        sent = plans(come(run, "late", at_s=50.0))
        state = s.decode_state(s.encode_state(run.state))
        _, again = step(state, s.Resumed(51.0, 2))
        assert plans(again)["late"] == sent["late"]
        commands = run.feed(s.DeadlinePassed(1e6, run.state.round))
        assert commands[-1] == s.FinishRun("late", run.state.models["0"])


def ended(**settings: Any) -> Run:
    """A run with two groups that is over."""
    run = started(**{"rounds": 1, "candidates": ("general", "tuned")} | settings)
    train(run, placed={"": LARGEST})
    for device in "ab":
        run.update(device)
    assert run.state.phase == "finished"
    return run


def tell_late(
    run: Run,
    placed: Placed | None,
    device: str = "late",
    at_s: float = 52.0,
    norms: dict[str, float] | None = None,
) -> list[s.Command]:
    nothing = {"num_train": 0, "num_steps": 0, "evaluated": NOTHING, "trained": NOTHING}
    found = {"response": 1.0} if norms is None else norms
    update = msgspec.structs.replace(
        RECEIVED, blob=digest(f"{device} {at_s}".encode()), norms=found, **nothing
    )
    return run.feed(s.UpdateAdmitted(at_s, device, run.state.round, update, placed))
