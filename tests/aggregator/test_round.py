"""The round as a state machine: examples of each rule."""

import logging
import os
import signal
import time
from typing import Any

import msgspec
import pytest

from aggregator.core import state as s
from aggregator.core.plan import round_seed
from aggregator.core.record import RoundRecord, record_of
from aggregator.core.round.machine import step
from aggregator.core.state import DeviceBarred, DeviceForgotten
from algorithms.core.contract import Programs
from shoal.commands.serve import ask_to_stop, log_rounds
from tests.aggregator.round_cases import RECEIVED, Run, kinds
from tests.contracts.store import PROGRAMS, SETTINGS
from wire.messages import Evaluate, Train


def test_first_round_opens_when_enough_devices_are_there() -> None:
    run = Run(min_devices=2)
    assert run.check_in("a") == []
    assert kinds(run.check_in("b")) == ["SetDeadline", "SendPlan", "SendPlan"]
    assert (run.state.phase, run.state.round, sorted(run.state.cohort)) == (
        "training",
        1,
        ["a", "b"],
    )


def test_full_cohort_is_aggregated_once() -> None:
    run = Run(min_devices=2)
    run.check_in("a")
    run.check_in("b")
    assert kinds(run.update("a")) == ["Acknowledge"]
    assert kinds(run.update("b")) == ["Acknowledge", "Aggregate"]
    assert kinds(run.update("b")) == []


def test_last_round_is_followed_by_an_evaluation_and_the_end() -> None:
    run = Run(rounds=1)
    run.check_in("a")
    run.update("a")
    commands = run.aggregated()
    assert run.state.phase == "evaluating"
    plan = next(c.plan for c in commands if isinstance(c, s.SendPlan))
    assert plan.verbs == (Evaluate(),)
    assert plan.model == "3" * 64
    assert kinds(run.update("a")) == ["Acknowledge", "FinishRun"]
    assert run.state.phase == "finished"  # type: ignore[comparison-overlap]  # the update moved it on
    assert kinds(run.check_in("late")) == ["FinishRun"]


def encodings_of(commands: list[s.Command]) -> dict[str, str]:
    return {c.plan.device_id: c.plan.encoding for c in commands if isinstance(c, s.SendPlan)}


def test_an_encoding_is_named_only_to_a_device_that_can_make_it() -> None:
    run = Run(min_devices=3, update_encoding="int8", rounds=3)
    run.check_in("earlier")
    run.check_in("later", encodings=("one-bit", "int8"))
    wanted = {"earlier": "float32", "later": "int8", "other": "float32"}
    assert encodings_of(run.check_in("other", encodings=("one-bit",))) == wanted
    assert encodings_of(run.check_in("earlier", encodings=("int8",))) == {"earlier": "int8"}, (
        "it has a newer client now"
    )
    assert encodings_of(run.check_in("later")) == {"later": "float32"}, "it has an older client now"


def test_nobody_is_asked_for_an_encoding_unless_the_run_is_to_have_it() -> None:
    assert encodings_of(Run().check_in("a", encodings=("int8",))) == {"a": "float32"}


def graphs_of(commands: list[s.Command]) -> dict[str, list[str]]:
    return {
        c.plan.device_id: [getattr(v, "graph", "") for v in c.plan.verbs]
        for c in commands
        if isinstance(c, s.SendPlan)
    }


def test_a_device_gets_the_program_said_for_it_or_for_its_model() -> None:
    own: Programs = {
        "start:initial": (Evaluate("train", "survey"), Train(32)),
        "device:c": (Train(32, graph="other"),),
    }
    run = Run(programs={**PROGRAMS, **own}, rounds=3)
    assert graphs_of(run.check_in("a")) == {"a": ["survey", "step"]}
    run.update("a")
    run.check_in("b")
    run.check_in("c")
    commands = run.aggregated(starts={"a": "0", "": "initial"})
    assert graphs_of(commands) == {
        "a": ["evaluate", "step"],
        "b": ["survey", "step"],
        "c": ["other"],
    }


def test_preparations_come_before_the_rounds_of_training_and_do_not_count() -> None:
    run = Run(preparing=True, rounds=1)
    run.check_in("a")
    assert run.state.phase == "preparing"
    assert kinds(run.update("a")) == ["Acknowledge", "Aggregate"]
    run.aggregated(starts={}, preparing=True)
    assert (run.state.phase, run.state.round, run.state.trained) == ("preparing", 2, 0)
    run.update("a")
    run.aggregated(starts={})
    assert (run.state.phase, run.state.round, run.state.trained) == ("training", 3, 0)
    run.update("a")
    run.aggregated()
    assert (run.state.phase, run.state.trained) == ("evaluating", 1)


def test_after_the_last_round_the_closing_program_is_carried_out() -> None:
    run = Run(programs={**PROGRAMS, "closing": (Train(32, report=False), Evaluate())}, rounds=1)
    run.check_in("a")
    run.update("a")
    assert graphs_of(run.aggregated()) == {"a": ["step", "evaluate"]}


def test_device_that_checks_in_again_gets_the_same_plan() -> None:
    run = Run(min_devices=1)
    first = next(c.plan for c in run.check_in("a") if isinstance(c, s.SendPlan))
    again = run.check_in("a", at_s=1.5)
    assert again == [s.SendPlan(first)]


def test_device_that_joins_in_mid_round_waits_for_the_next() -> None:
    run = Run(min_devices=1)
    run.check_in("a")
    assert run.check_in("b") == []
    run.update("a")
    assert sorted(c.plan.device_id for c in run.aggregated() if isinstance(c, s.SendPlan)) == [
        "a",
        "b",
    ]


def test_lost_device_is_waited_for_until_its_grace_is_over() -> None:
    run = Run(min_devices=2, min_updates=2, grace_s=5.0, deadline_s=100.0)
    run.check_in("a")
    run.check_in("b")
    assert run.feed(s.DeviceLost(2.0, "b")) == [s.SetDeadline(1, 7.0)]
    assert kinds(run.update("a", at_s=3.0)) == ["Acknowledge"]
    assert kinds(run.feed(s.DeadlinePassed(7.0, 1))) == []
    assert kinds(run.check_in("c", at_s=8.0)) == ["SendPlan"]
    assert kinds(run.update("c", at_s=9.0)) == ["Acknowledge", "Aggregate"]


def test_lost_device_that_returns_in_time_counts() -> None:
    run = Run(min_devices=2, grace_s=5.0, deadline_s=100.0)
    run.check_in("a")
    run.check_in("b")
    run.feed(s.DeviceLost(2.0, "b"))
    run.update("a", at_s=3.0)
    assert kinds(run.check_in("b", at_s=4.0)) == ["SendPlan"]
    assert run.feed(s.DeadlinePassed(7.0, 1)) == []
    assert kinds(run.update("b", at_s=8.0)) == ["Acknowledge", "Aggregate"]


def three() -> Run:
    """A run whose first round has three devices, of which two updates are enough."""
    run = Run(min_devices=3, deadline_s=10.0, grace_s=1.0, rounds=30)
    for device in "abc":
        run.check_in(device)
    run.state = msgspec.structs.replace(
        run.state, settings=msgspec.structs.replace(run.state.settings, min_updates=2)
    )
    return run


def plans_of(commands: list[s.Command]) -> dict[str, int]:
    """By device, the attempt of the plan that it is sent."""
    return {c.plan.device_id: c.plan.attempt for c in commands if isinstance(c, s.SendPlan)}


def test_deadline_closes_with_what_is_there() -> None:
    run = three()
    run.update("a")
    run.update("b")
    assert kinds(run.feed(s.DeadlinePassed(11.0, 1))) == ["Aggregate"]


def test_deadline_reopens_with_what_is_there_when_that_is_too_little() -> None:
    run = three()
    run.update("a")
    assert plans_of(run.feed(s.DeadlinePassed(11.0, 1))) == {"b": 1, "c": 1}
    assert (
        run.state.phase,
        run.state.attempt,
        run.state.deadline_at_s,
        sorted(run.state.received),
    ) == ("training", 1, 21.0, ["a"])
    assert kinds(run.update("b", at_s=12.0)) == ["Acknowledge", "Aggregate"]


def test_no_round_is_aggregated_with_fewer_devices_than_the_least_number() -> None:
    run = three()
    run.update("a")
    run.feed(s.DeviceDeclined(2.0, "b", 1))
    assert run.feed(s.DeviceDeclined(2.0, "c", 1)) == []
    assert run.state.phase == "training"


def test_when_all_have_declined_a_newcomer_is_asked_at_once() -> None:
    run = three()
    for device in "abc":
        run.feed(s.DeviceDeclined(2.0, device, 1))
    assert plans_of(run.check_in("d", at_s=3.0)) == {"d": 0}
    assert plans_of(run.check_in("e", at_s=3.0)) == {"e": 0}
    assert plans_of(run.check_in("f", at_s=3.0)) == {}
    run.update("d")
    assert kinds(run.update("e")) == ["Acknowledge", "Aggregate"]


def drawn_from(*devices: str, **settings: Any) -> Run:
    """A run whose open round asks two of these devices, and needs both."""
    run = Run(
        **{
            "min_devices": len(devices),
            "min_updates": 2,
            "cohort": 2,
            "deadline_s": 10.0,
            "grace_s": 1.0,
            "rounds": 30,
        }
        | settings
    )
    for device in devices:
        run.check_in(device)
    return run


class TestShortRound:
    def test_asks_another_device_at_once_for_each_that_declines(self) -> None:
        run = drawn_from(*"abcd")
        first, second = sorted(run.state.cohort)
        asked = plans_of(run.feed(s.DeviceDeclined(2.0, first, 1)))
        assert list(asked.values()) == [0]
        assert asked.keys() <= set("abcd") - {first, second}
        assert run.state.cohort.keys() == {second, *asked}
        run.update(second, at_s=3.0)
        assert kinds(run.update(min(asked), at_s=3.0)) == ["Acknowledge", "Aggregate"]

    def test_asks_nobody_twice(self) -> None:
        run, asked = drawn_from(*"abcd"), []
        while run.state.cohort:
            asked.append(min(run.state.cohort))
            run.feed(s.DeviceDeclined(2.0, asked[-1], 1, failed=False))
        assert sorted(asked) == list("abcd")
        assert run.check_in("a", at_s=3.0) == run.feed(s.DeviceHeard(3.0, "b")) == []
        assert kinds(run.feed(s.DeadlinePassed(11.0, 1))) == ["SetDeadline", "SendPlan", "SendPlan"]

    def test_with_more_asked_than_needed_asks_nobody_before_too_many_declined(self) -> None:
        run = drawn_from(*"abcdef", over_select=1.5)
        first, second, _ = sorted(run.state.cohort)
        assert run.feed(s.DeviceDeclined(2.0, first, 1)) == []
        assert len(plans_of(run.feed(s.DeviceDeclined(2.0, second, 1)))) == 1

    def test_asks_those_that_rest_where_nobody_else_is_there(self) -> None:
        run = drawn_from(*"abc")
        first, second = sorted(run.state.cohort)
        (spare,) = set("abc") - {first, second}
        device = msgspec.structs.replace(run.state.devices[spare], failures=3, rests_until=8)
        run.state = msgspec.structs.replace(run.state, devices=run.state.devices.set(spare, device))
        assert plans_of(run.feed(s.DeviceDeclined(2.0, first, 1))) == {spare: 0}

    def test_asks_nobody_who_is_offline_barred_or_was_asked_too_recently(self) -> None:
        run = drawn_from(*"abcdef", pace_s=100.0)
        first, second = sorted(run.state.cohort)
        run.feed(s.DeviceDeclined(2.0, first, 1))
        third = next(d for d in run.state.cohort if d != second)
        assert run.state.devices[third].asked_s == 2.0
        run.update(second, at_s=3.0)
        run.update(third, at_s=3.0)
        run.aggregated(at_s=4.0)
        idle = sorted(set("abcdef") - {first, second, third})
        spare = next(d for d in idle if d not in run.state.cohort)
        run.feed(DeviceBarred(5.0, spare))
        assert run.feed(s.DeviceDeclined(6.0, min(run.state.cohort), 2)) == []

    @pytest.mark.parametrize("kind", [DeviceBarred, DeviceForgotten])
    def test_asks_another_for_one_that_is_banned_or_forgotten(
        self, kind: type[DeviceBarred] | type[DeviceForgotten]
    ) -> None:
        run = drawn_from(*"abcd")
        first, second = sorted(run.state.cohort)
        gone = DeviceBarred(2.0, first) if kind is DeviceBarred else DeviceForgotten(2.0, first, {})
        asked = plans_of(run.feed(gone))
        assert len(asked) == 1
        assert not asked.keys() & {first, second}

    def test_asks_another_for_one_that_was_lost_once_its_grace_is_over(self) -> None:
        run = drawn_from(*"abcd")
        first, second = sorted(run.state.cohort)
        assert kinds(run.feed(s.DeviceLost(2.0, first))) == ["SetDeadline"]
        (asked,) = plans_of(run.feed(s.DeadlinePassed(3.0, 1)))
        assert asked not in (first, second)
        assert plans_of(run.check_in(first, at_s=4.0)) == {first: 0}, (
            "who comes back is still asked"
        )

    def test_after_a_restart_asks_whom_it_asked_before(self) -> None:
        run = drawn_from(*"abcd")
        first, _ = sorted(run.state.cohort)
        run.feed(s.DeviceDeclined(2.0, first, 1))
        assert run.replayed() == run.state
        assert plans_of(run.resume(3.0)).keys() == run.state.cohort.keys()
        assert run.check_in(first, at_s=4.0) == []


def test_a_device_that_missed_a_deadline_is_absent_until_it_is_heard() -> None:
    run = three()
    run.update("a")
    run.update("b")
    run.feed(s.DeadlinePassed(11.0, 1))
    assert not run.state.devices["c"].online
    assert sorted(plans_of(run.aggregated(at_s=12.0))) == ["a", "b"]
    assert run.feed(s.DeviceHeard(13.0, "c")) == []
    assert run.state.devices["c"].online
    run.update("a", at_s=14.0)
    run.update("b", at_s=14.0)
    assert sorted(plans_of(run.aggregated(at_s=15.0))) == ["a", "b", "c"]


def test_a_device_that_always_declines_is_asked_less_and_less() -> None:
    run, asked = three(), []
    for _ in range(24):
        if "c" in run.state.cohort:
            asked.append(run.state.round)
            run.feed(s.DeviceDeclined(1.5, "c", run.state.round))
        run.update("a")
        run.update("b")
        run.aggregated()
    assert asked == [1, 2, 4, 8, 16]
    run.state = msgspec.structs.replace(run.state, round=31)
    run.update("a")
    run.update("b")
    run.aggregated()
    assert "c" in run.state.cohort
    run.update("c")
    assert (run.state.devices["c"].failures, run.state.devices["c"].rests_until) == (0, 0)


def test_a_plan_that_came_too_late_is_not_held_against_a_device() -> None:
    run = three()
    run.feed(s.DeviceDeclined(1.5, "c", 1, failed=False))
    assert (run.state.devices["c"].failures, sorted(run.state.cohort)) == (0, ["a", "b"])


def test_unknown_ids_are_waited_for_as_long_again_as_the_others_took() -> None:
    run = three()
    for device in "abc":
        run.update(device)
    for number in range(2000):
        run.check_in(f"x{number}", at_s=2.5)
    run.state = msgspec.structs.replace(
        run.state,
        settings=msgspec.structs.replace(run.state.settings, deadline_s=600.0, grace_s=20.0),
    )
    run.aggregated(at_s=3.0)
    assert len(run.state.cohort) == 2003
    run.update("a", at_s=33.0)
    run.update("b", at_s=33.0)
    assert run.update("c", at_s=33.0)[1:] == [s.SetDeadline(2, 63.0)]
    assert run.feed(s.DeadlinePassed(62.0, 2)) == []
    assert kinds(run.feed(s.DeadlinePassed(63.0, 2))) == ["Aggregate"]


def test_lost_updates_are_asked_for_again() -> None:
    run = three()
    for device in "abc":
        run.update(device)
    assert run.state.phase == "aggregating"
    assert plans_of(run.feed(s.UpdatesLost(5.0, 1, ("b",)))) == {"b": 1}
    assert (run.state.phase, sorted(run.state.received)) == ("training", ["a", "c"])
    assert kinds(run.update("b", at_s=6.0)) == ["Acknowledge", "Aggregate"]


def test_device_that_declines_is_not_waited_for() -> None:
    run = three()
    assert run.feed(s.DeviceDeclined(1.5, "b", 1)) == []
    run.update("a")
    assert kinds(run.update("c")) == ["Acknowledge", "Aggregate"]
    assert run.feed(s.DeviceDeclined(1.5, "a", 1)) == []


def test_deadline_of_an_earlier_round_changes_nothing() -> None:
    run = Run()
    run.check_in("a")
    run.update("a")
    run.aggregated()
    before = run.state
    assert run.feed(s.DeadlinePassed(1000.0, 1)) == []
    assert run.state == before


def test_resume_commands_what_is_still_open_with_the_new_epoch() -> None:
    run = Run(min_devices=2)
    run.check_in("a")
    run.check_in("b")
    run.update("a")
    commands = run.resume(5.0, epoch=7)
    assert kinds(commands) == ["SetDeadline", "SendPlan", "Acknowledge"]
    assert [c.plan.epoch for c in commands if isinstance(c, s.SendPlan)] == [7]
    run.update("b")
    assert kinds(run.resume(6.0)) == ["Acknowledge", "Acknowledge", "Aggregate"]


def test_time_does_not_go_back() -> None:
    run = Run()
    run.check_in("a", at_s=50.0)
    run.feed(s.DeviceLost(20.0, "a"))
    assert run.state.at_s == 50.0


def test_seeds_of_rounds_differ_between_rounds_and_runs() -> None:
    runs = [msgspec.structs.replace(SETTINGS, seed=seed) for seed in range(3)]
    assert round_seed(runs[2], 7) == 2_000_013
    assert len({round_seed(settings, number) for settings in runs for number in range(100)}) == 300


def test_every_closed_round_has_one_record() -> None:
    run = Run(preparing=True, rounds=1)
    records: list[RoundRecord | None] = []
    original = run.feed

    def feed(event: s.Event) -> list[s.Command]:
        before = run.state
        commands = original(event)
        records.append(record_of(before, event, run.state))
        return commands

    run.feed = feed  # type: ignore[method-assign]  # this run alone is watched
    run.check_in("a")
    run.update("a")
    run.aggregated(starts={}, notes={"p": 0.5})
    run.update("a")
    run.aggregated()
    run.update("a", at_s=9.0)
    made = [record for record in records if record is not None]
    assert [(r.round, r.phase, r.notes) for r in made] == [
        (1, "preparing", {"p": 0.5}),
        (2, "training", {}),
        (3, "evaluating", {}),
    ]
    assert [r.groups for r in made] == [{}, {"a": "0"}, {"a": "0"}]
    assert made[0].trained == RECEIVED.trained
    assert (made[2].evaluated, made[2].bytes_up, made[2].bytes_down, made[2].closed_at_s) == (
        {"a": RECEIVED.evaluated},
        100,
        50,
        9.0,
    )


def test_an_event_before_the_start_is_a_defect() -> None:
    with pytest.raises(ValueError, match="before the run has started"):
        step(None, s.Resumed(0.0, 1))


def test_a_service_says_at_once_that_it_was_asked_to_stop(caplog: pytest.LogCaptureFixture) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    stopping: list[int] = []
    try:
        ask_to_stop(stopping)
        with caplog.at_level(logging.INFO, "shoal"):
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGTERM)
            until_s = time.monotonic() + 10
            while not caplog.records and time.monotonic() < until_s:
                time.sleep(0.01)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert stopping == [signal.SIGTERM, signal.SIGTERM]
    assert [r.getMessage().partition(":")[0] for r in caplog.records] == ["SIGTERM"], (
        "once, however often it is asked"
    )


def test_the_log_of_a_round_says_when_it_opens_and_is_aggregated_and_how_many_devices_took_part(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run, observe = Run(min_devices=2, rounds=3), log_rounds()
    with caplog.at_level(logging.INFO, "shoal"):
        for device in "abc":
            run.check_in(device)
            observe(run.state, run.log[-1])
        for device in "ab":
            run.update(device)
            observe(run.state, run.log[-1])
        run.aggregated()
        observe(run.state, run.log[-1])
    assert [record.getMessage() for record in caplog.records] == [
        "round=1 is open: devices=2 phase=training",
        "round=1 is aggregated: updates=2",
        "round=1 devices=2 groups=1",
        "round=2 is open: devices=3 phase=training",
    ]
