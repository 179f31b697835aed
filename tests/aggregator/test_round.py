"""The round as a state machine: examples of each rule, and properties over random histories."""

import re
from itertools import product
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.core import round as core
from aggregator.core import state as s
from aggregator.core.plan import round_seed
from aggregator.core.record import RoundRecord, record_of
from aggregator.core.round import OPEN, TRANSITIONS, step
from algorithms.core.contract import Programs
from tests.contracts.store import PROGRAMS, SETTINGS
from wire.messages import Evaluate, Metrics, Train

MODEL, MEMORY = "1" * 64, "2" * 64
RECEIVED = s.Received(
    blob="a" * 64,
    start="initial",
    num_train=10,
    num_steps=2,
    evaluated=Metrics(4, 1.0, 3),
    trained=Metrics(10, 2.0, 5),
    bytes_up=100,
    bytes_down=50,
)


class Run:
    """A run under test: feeds events and keeps what followed."""

    def __init__(self, preparing: bool = False, programs: Programs = PROGRAMS, **settings: Any) -> None:
        chosen = msgspec.structs.replace(SETTINGS, **settings)
        self.state, _ = step(None, s.Started(0.0, chosen, {"initial": MODEL}, MEMORY, programs, preparing))

    def feed(self, event: s.Event) -> list[s.Command]:
        self.state, commands = step(self.state, event)
        return commands

    def check_in(self, device: str, at_s: float = 1.0) -> list[s.Command]:
        return self.feed(s.DeviceCheckedIn(at_s, device, 10, 4))

    def update(self, device: str, number: int | None = None, at_s: float = 2.0) -> list[s.Command]:
        return self.feed(s.UpdateAdmitted(at_s, device, number or self.state.round, RECEIVED))

    def aggregated(self, at_s: float = 3.0, starts: dict[str, str] | None = None, **others: Any) -> list[s.Command]:
        starts = dict.fromkeys(self.state.devices, "0") | {"": "0"} if starts is None else starts
        others = {"programs": self.state.programs, **others}
        return self.feed(s.RoundAggregated(at_s, self.state.round, {"initial": MODEL, "0": "3" * 64}, MEMORY, starts, **others))


def kinds(commands: list[s.Command]) -> list[str]:
    return [type(c).__name__ for c in commands]


def test_first_round_opens_when_enough_devices_are_there() -> None:
    run = Run(min_devices=2)
    assert run.check_in("a") == []
    assert kinds(run.check_in("b")) == ["SetDeadline", "SendPlan", "SendPlan"]
    assert (run.state.phase, run.state.round, sorted(run.state.cohort)) == ("training", 1, ["a", "b"])


def test_full_cohort_is_aggregated_once() -> None:
    run = Run(min_devices=2)
    run.check_in("a")
    run.check_in("b")
    assert kinds(run.update("a")) == ["Acknowledge"]
    assert kinds(run.update("b")) == ["Acknowledge", "Aggregate"]
    assert kinds(run.update("b")) == ["Acknowledge"]


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
    assert run.state.phase == "finished"
    assert kinds(run.check_in("late")) == ["FinishRun"]


def graphs_of(commands: list[s.Command]) -> dict[str, list[str]]:
    return {c.plan.device_id: [getattr(v, "graph", "") for v in c.plan.verbs] for c in commands if isinstance(c, s.SendPlan)}


def test_a_device_gets_the_program_said_for_it_or_for_its_model() -> None:
    own: Programs = {"start:initial": (Evaluate("train", "survey"), Train(32)), "device:c": (Train(32, graph="other"),)}
    run = Run(programs={**PROGRAMS, **own}, rounds=3)
    assert graphs_of(run.check_in("a")) == {"a": ["survey", "step"]}
    run.update("a")
    run.check_in("b")
    run.check_in("c")
    commands = run.aggregated(starts={"a": "0", "": "initial"})
    assert graphs_of(commands) == {"a": ["evaluate", "step"], "b": ["survey", "step"], "c": ["other"]}


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
    assert sorted(c.plan.device_id for c in run.aggregated() if isinstance(c, s.SendPlan)) == ["a", "b"]


def test_lost_device_is_waited_for_until_its_grace_is_over() -> None:
    run = Run(min_devices=2, grace_s=5.0, deadline_s=100.0)
    run.check_in("a")
    run.check_in("b")
    assert run.feed(s.DeviceLost(2.0, "b")) == [s.SetDeadline(1, 7.0)]
    assert kinds(run.update("a", at_s=3.0)) == ["Acknowledge"]
    assert kinds(run.feed(s.DeadlinePassed(7.0, 1))) == ["Aggregate"]


def test_lost_device_that_returns_in_time_counts() -> None:
    run = Run(min_devices=2, grace_s=5.0, deadline_s=100.0)
    run.check_in("a")
    run.check_in("b")
    run.feed(s.DeviceLost(2.0, "b"))
    run.update("a", at_s=3.0)
    assert kinds(run.check_in("b", at_s=4.0)) == ["SendPlan"]
    assert run.feed(s.DeadlinePassed(7.0, 1)) == []
    assert kinds(run.update("b", at_s=8.0)) == ["Acknowledge", "Aggregate"]


def test_deadline_closes_with_what_is_there_and_reopens_when_nothing_is() -> None:
    run = Run(min_devices=2, deadline_s=10.0)
    run.check_in("a")
    run.check_in("b")
    assert kinds(run.feed(s.DeadlinePassed(11.0, 1))) == ["SetDeadline", "SendPlan", "SendPlan"]
    assert run.state.deadline_at_s == 21.0
    run.update("a")
    assert kinds(run.feed(s.DeadlinePassed(21.0, 1))) == ["Aggregate"]


def test_device_that_declines_is_not_waited_for() -> None:
    run = Run(min_devices=2)
    run.check_in("a")
    run.check_in("b")
    assert run.feed(s.DeviceDeclined(1.5, "b", 1)) == []
    assert kinds(run.update("a")) == ["Acknowledge", "Aggregate"]
    assert run.feed(s.DeviceDeclined(1.5, "a", 1)) == []


def test_deadline_of_an_earlier_round_changes_nothing() -> None:
    run = Run()
    run.check_in("a")
    run.update("a")
    run.aggregated()
    before = run.state
    assert run.feed(s.DeadlinePassed(1000.0, 1)) == []
    assert run.state == before


def test_resume_commands_what_is_still_open() -> None:
    run = Run(min_devices=2)
    run.check_in("a")
    run.check_in("b")
    run.update("a")
    assert kinds(run.feed(s.Resumed(5.0))) == ["SetDeadline", "SendPlan", "Acknowledge"]
    run.update("b")
    assert kinds(run.feed(s.Resumed(6.0))) == ["Aggregate"]


def documented() -> dict[tuple[s.Phase, str], str]:
    """The table in the docstring of `aggregator.core.round`: by phase and event, the name of a function, or a dash."""
    assert core.__doc__ is not None
    found = re.search(r"^=[= ]+\n(.+?)\n=[= ]+\n(.+?)\n=[= ]+$", core.__doc__, re.MULTILINE | re.DOTALL)
    assert found is not None
    columns = [get_args(s.OpenPhase) if name == "open" else (name,) for name in found[1].split()[1:]]
    rows = [line.split() for line in found[2].splitlines()]
    return {(phase, row[0]): name for row in rows for phases, name in zip(columns, row[1:], strict=True) for phase in phases}


def test_the_docstring_says_of_every_event_in_every_phase_what_the_table_of_transitions_says() -> None:
    phases, events = get_args(s.Phase), set(get_args(s.Event)) - {s.Started}
    assert set(TRANSITIONS) == set(phases)
    named = {(phase, event.__name__): f.__name__[1:] for phase, row in TRANSITIONS.items() for event, f in row.items()}
    every = [(phase, event.__name__) for phase, event in product(phases, events)]
    assert named.keys() <= set(every)
    assert documented() == {pair: named.get(pair, "-") for pair in every}


def in_every_phase() -> dict[s.Phase, Run]:
    """A run of one device in each phase; its update is missing where a round is open."""
    runs = {phase: Run(rounds=1, preparing=phase == "preparing") for phase in get_args(s.Phase)}
    for phase, run in runs.items():
        if phase != "waiting":
            run.check_in("a")
        if phase in ("aggregating", "evaluating", "finished"):
            run.update("a")
        if phase in ("evaluating", "finished"):
            run.aggregated()
        if phase == "finished":
            run.update("a")
    assert {phase: run.state.phase for phase, run in runs.items()} == {phase: phase for phase in runs}
    return runs


def any_event(kind: Any, run: Run) -> s.Event:
    """An event of this kind that concerns the run's device and its latest round."""
    values = {"at_s": 1e6, "device_id": "a", "round": run.state.round, "num_train": 1, "num_test": 1, "models": run.state.models}
    values |= {"memory": MEMORY, "starts": {}, "programs": PROGRAMS, "update": RECEIVED}
    made: s.Event = kind(**{name: values[name] for name in kind.__struct_fields__ if name in values})
    return made


@pytest.mark.parametrize("phase", get_args(s.Phase))
@pytest.mark.parametrize("kind", [kind for kind in get_args(s.Event) if kind is not s.Started])
def test_an_event_is_ignored_where_the_table_has_no_transition_and_does_something_where_it_has(kind: Any, phase: s.Phase) -> None:
    run = in_every_phase()[phase]
    before = run.state
    commands = run.feed(any_event(kind, run))
    nobody_to_lose = phase == "waiting" and kind is s.DeviceLost  # no device has checked in
    assert ((run.state, commands) == (before, [])) == (kind not in TRANSITIONS[phase] or nobody_to_lose)


def test_open_phases_are_those_in_which_plans_are_sent_and_updates_count() -> None:
    assert {phase for phase, row in TRANSITIONS.items() if row.get(s.UpdateAdmitted) is core._receive} == set(OPEN)
    for phase, run in in_every_phase().items():
        assert (kinds(run.feed(s.Resumed(2.0))) == ["SetDeadline", "SendPlan"]) == (phase in OPEN)


def test_an_update_that_comes_when_its_round_is_closed_is_acknowledged_and_does_not_count() -> None:
    run = Run(min_devices=2)
    run.check_in("a")
    run.check_in("b")
    run.update("a")
    run.feed(s.DeadlinePassed(1e6, 1))
    assert kinds(run.update("b")) == ["Acknowledge"]
    assert sorted(run.state.received) == ["a"]


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

    run.feed = feed  # type: ignore[method-assign]
    run.check_in("a")
    run.update("a")
    run.aggregated(starts={}, notes={"p": 0.5})
    run.update("a")
    run.aggregated()
    run.update("a", at_s=9.0)
    made = [record for record in records if record is not None]
    assert [(r.round, r.phase, r.notes) for r in made] == [(1, "preparing", {"p": 0.5}), (2, "training", {}), (3, "evaluating", {})]
    assert [r.groups for r in made] == [{}, {"a": "0"}, {"a": "0"}]
    assert made[0].trained == RECEIVED.trained
    assert (made[2].evaluated, made[2].bytes_up, made[2].bytes_down, made[2].closed_at_s) == ({"a": RECEIVED.evaluated}, 100, 50, 9.0)


WRITTEN = """{"type":"started","at_s":0.0,"settings":{"run_id":"run-1","algorithm":"fedavg","data":"x","bundle":"%s","rounds":3,
"min_devices":1,"deadline_s":10.0,"grace_s":1.0,"seed":4,"local_epochs":2,"batch_size":8,"reported":{"step":[]},"responses":{},
"hyper":{"lr":0.1},"max_update_norm":1000000.0},"models":{"initial":"%s"},"memory":"%s","programs":{},"preparing":true,"starts":{}}"""


def test_an_event_whose_fields_are_in_another_order_is_the_same_event() -> None:
    event = msgspec.json.decode(WRITTEN % ("0" * 64, MODEL, MEMORY), type=s.Event)
    expected = msgspec.structs.replace(SETTINGS, seed=4, local_epochs=2, batch_size=8, hyper={"lr": 0.1})
    assert event == s.Started(0.0, expected, {"initial": MODEL}, MEMORY, {}, preparing=True)


def test_an_event_before_the_start_is_a_defect() -> None:
    with pytest.raises(ValueError, match="before the run has started"):
        step(None, s.Resumed(0.0))


events = st.lists(
    st.one_of(
        st.tuples(st.just("check-in"), st.sampled_from("abc")),
        st.tuples(st.just("lost"), st.sampled_from("abc")),
        st.tuples(st.just("update"), st.sampled_from("abc")),
        st.tuples(st.just("deadline"), st.integers(0, 30)),
        st.tuples(st.just("aggregated"), st.none()),
        st.tuples(st.just("resumed"), st.none()),
    ),
    max_size=60,
)


@settings(max_examples=200)
@given(events)
def test_any_history_keeps_the_invariants_and_replays_to_the_same_state(history: list[tuple[str, Any]]) -> None:
    run = Run(min_devices=2, rounds=2, deadline_s=5.0, grace_s=2.0)
    log: list[s.Event] = []
    original = run.feed

    def feed(event: s.Event) -> list[s.Command]:
        log.append(event)
        return original(event)

    run.feed = feed  # type: ignore[method-assign]
    for at_s, (kind, value) in enumerate(history, start=1):
        before = run.state
        if kind == "check-in":
            run.check_in(value, at_s)
        elif kind == "lost":
            run.feed(s.DeviceLost(at_s, value))
        elif kind == "update" and value in run.state.cohort and run.state.phase in ("training", "evaluating"):
            commands = run.update(value, at_s=at_s)
            assert s.Acknowledge(value, before.round) in commands
        elif kind == "deadline":
            run.feed(s.DeadlinePassed(at_s + value, run.state.round))
        elif kind == "aggregated" and run.state.phase == "aggregating":
            run.aggregated(at_s)
        elif kind == "resumed":
            run.feed(s.Resumed(at_s))
        assert run.state.received.keys() <= run.state.cohort.keys() <= run.state.devices.keys()
        assert before.round <= run.state.round <= 3
        assert before.phase != "finished" or run.state.phase == "finished"
        if run.state.round == before.round and run.state.phase == before.phase and kind != "deadline":
            assert before.received.keys() <= run.state.received.keys(), "an acknowledged update was lost"
    replayed, _ = step(None, s.Started(0.0, run.state.settings, {"initial": MODEL}, MEMORY, PROGRAMS))
    for event in log:
        decoded = msgspec.json.decode(msgspec.json.encode(event), type=s.Event)
        replayed, _ = step(replayed, decoded)
    assert replayed == run.state
    assert msgspec.json.decode(msgspec.json.encode(run.state), type=s.RunState) == run.state
