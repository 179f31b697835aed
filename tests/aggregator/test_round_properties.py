"""The round as a state machine: its table of transitions, and properties over random histories."""

import re
from itertools import product
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.core import state as s
from aggregator.core.round import machine as core
from aggregator.core.round.asking import is_awaited, may_be_asked
from aggregator.core.round.machine import OPEN, TRANSITIONS
from aggregator.core.state import (
    DeviceBarred,
    DeviceForgotten,
    EligibilityChanged,
    KeptChanged,
    Retuned,
    RolledBack,
    Says,
)
from tests.aggregator.round_cases import MEMORY, RECEIVED, Run, kinds
from tests.contracts.store import PROGRAMS


def documented() -> dict[tuple[s.Phase, str], str]:
    """The table in the docstring of `aggregator.core.round.machine`: by phase and event, the name
    of a function, or a dash."""
    assert core.__doc__ is not None
    found = re.search(
        r"^=[= ]+\n(.+?)\n=[= ]+\n(.+?)\n=[= ]+$", core.__doc__, re.MULTILINE | re.DOTALL
    )
    assert found is not None
    columns = [
        get_args(s.OpenPhase) if name == "open" else (name,) for name in found[1].split()[1:]
    ]
    rows = [line.split() for line in found[2].splitlines()]
    return {
        (phase, row[0]): name
        for row in rows
        for phases, name in zip(columns, row[1:], strict=True)
        for phase in phases
    }


def test_the_docstring_says_of_every_event_in_every_phase_what_the_table_of_transitions_says() -> (
    None
):
    phases, events = get_args(s.Phase), set(get_args(s.Event)) - {s.Started}
    assert set(TRANSITIONS) == set(phases)
    named = {
        (phase, event.__name__): f.__name__.removeprefix("_")
        for phase, row in TRANSITIONS.items()
        for event, f in row.items()
    }
    every = [(phase, event.__name__) for phase, event in product(phases, events)]
    assert named.keys() <= set(every)
    assert documented() == {pair: named.get(pair, "-") for pair in every}


def in_every_phase() -> dict[s.Phase, Run]:
    """A run of one device in each phase; its update is missing where a round is open."""
    runs = {
        phase: Run(rounds=1, preparing=phase == "preparing", keep_models=1, candidates=("x",))
        for phase in get_args(s.Phase)
    }
    for phase, run in runs.items():
        if phase != "waiting":
            run.check_in("a")
        if phase in ("aggregating", "evaluating", "finished"):
            run.update("a")
        if phase in ("evaluating", "finished"):
            run.aggregated()
        if phase == "finished":
            run.feed(s.DeadlinePassed(run.state.deadline_at_s, run.state.round))
            assert "a" in run.state.closings, "it may still choose"
    assert {phase: run.state.phase for phase, run in runs.items()} == {
        phase: phase for phase in runs
    }
    return runs


def any_event(kind: Any, run: Run) -> s.Event:
    """An event of this kind that concerns the run's device and its latest round."""
    values = {
        "at_s": 1e6,
        "device_id": "a",
        "round": run.state.round,
        "num_train": 1,
        "num_test": 1,
        "models": run.state.models,
    }
    values |= {
        "memory": MEMORY,
        "starts": {},
        "programs": PROGRAMS,
        "update": RECEIVED,
        "epoch": 5,
        "device_ids": ("a",),
        "to": 0,
    }
    values |= {
        "included": (),
        "excluded": ("a",),
        "memories": {},
        "devices": {"a": Says((), True, 99)},
    }
    values |= {"settings": msgspec.structs.replace(run.state.settings, rounds=9)}
    made: s.Event = kind(
        **{name: values[name] for name in kind.__struct_fields__ if name in values}
    )
    return made


@pytest.mark.parametrize("phase", get_args(s.Phase))
@pytest.mark.parametrize("kind", [kind for kind in get_args(s.Event) if kind is not s.Started])
def test_an_event_is_ignored_where_the_table_has_no_transition_and_does_something_where_it_has(
    kind: Any, phase: s.Phase
) -> None:
    run = in_every_phase()[phase]
    if kind is KeptChanged:
        run.state = msgspec.structs.replace(run.state, received={"a": RECEIVED})
    before = run.state
    commands = run.feed(any_event(kind, run))
    nobody = phase == "waiting" and kind in (
        s.DeviceLost,
        s.DeviceHeard,
        EligibilityChanged,
        DeviceBarred,
        DeviceForgotten,
    )  # no device has checked in
    nobody |= kind is RolledBack and not before.history
    unmoved = msgspec.structs.replace(run.state, at_s=before.at_s), commands
    assert (unmoved == (before, [])) == (kind not in TRANSITIONS[phase] or nobody)


def test_open_phases_are_those_in_which_plans_are_sent_and_updates_count() -> None:
    assert {
        phase for phase, row in TRANSITIONS.items() if row.get(s.UpdateAdmitted) is core._receive
    } == set(OPEN)
    for phase, run in in_every_phase().items():
        assert (kinds(run.feed(s.Resumed(2.0, 5))) == ["SetDeadline", "SendPlan"]) == (
            phase in OPEN
        )


events = st.lists(
    st.one_of(
        st.tuples(st.just("check-in"), st.sampled_from("abc")),
        st.tuples(st.just("lost"), st.sampled_from("abc")),
        st.tuples(st.just("update"), st.sampled_from("abc")),
        st.tuples(st.just("deadline"), st.integers(0, 30)),
        st.tuples(st.just("aggregated"), st.none()),
        st.tuples(st.just("heard"), st.sampled_from("abc")),
        st.tuples(st.just("declined"), st.sampled_from("abc")),
        st.tuples(st.just("keeps"), st.sampled_from("abc")),
        st.tuples(st.just("updates lost"), st.sampled_from("abc")),
        st.tuples(st.just("rolled back"), st.integers(0, 3)),
        st.tuples(st.just("retuned"), st.integers(1, 4)),
        st.tuples(st.just("resumed"), st.none()),
    ),
    max_size=60,
)


@given(events)
def test_any_history_keeps_the_invariants_and_replays_to_the_same_state(
    history: list[tuple[str, Any]],
) -> None:
    run = Run(
        min_devices=2,
        min_updates=2,
        rounds=2,
        preparing=True,
        deadline_s=5.0,
        grace_s=2.0,
        keep_models=2,
    )
    for at_s, (kind, value) in enumerate(history, start=1):
        before = run.state
        if kind == "check-in":
            run.check_in(value, at_s)
        elif kind == "lost":
            run.feed(s.DeviceLost(at_s, value))
        elif kind == "update" and value in run.state.cohort and run.state.phase in OPEN:
            commands = run.update(value, at_s=at_s)
            assert kinds(commands)[0] == "Acknowledge"
        elif kind == "heard":
            run.feed(s.DeviceHeard(at_s, value))
        elif kind == "declined":
            run.feed(s.DeviceDeclined(at_s, value, run.state.round))
        elif kind == "keeps":
            assert run.feed(KeptChanged(at_s, {value: Says((), True, 99)})) == []
        elif kind == "updates lost":
            run.feed(s.UpdatesLost(at_s, run.state.round, (value,)))
        elif kind == "rolled back":
            run.feed(RolledBack(at_s, value))
            known = {v.round: v for v in before.history}
            assert run.state.models == (known[value].models if value in known else before.models)
        elif kind == "retuned":
            wanted = msgspec.structs.replace(
                run.state.next_settings, rounds=value, min_devices=value, batch_size=8 * value
            )
            run.feed(Retuned(at_s, wanted, PROGRAMS))
            assert run.state.next_settings == wanted
        elif kind == "deadline":
            run.feed(s.DeadlinePassed(at_s + value, run.state.round))
        elif kind == "aggregated" and run.state.phase == "aggregating":
            assert len(run.state.received) >= 2
            run.aggregated(at_s, preparing=run.state.round == 1)
        elif kind == "resumed":
            run.resume(at_s, run.state.epoch + 1)
        assert run.state.received.keys() <= run.state.cohort.keys() <= set(run.state.devices)
        assert run.state.num_online == sum(device.online for device in run.state.devices.values())
        assert (
            before.round
            <= run.state.round
            <= (4 if all(kind != "retuned" for kind, _ in history) else len(history))
        )
        rounds = [version.round for version in run.state.history]
        assert rounds == sorted(set(rounds))
        assert len(rounds) <= 2
        assert all(number <= run.state.made_in for number in rounds)
        assert before.phase != "finished" or run.state.phase == "finished" or kind == "retuned"
        if (
            run.state.round == before.round
            and run.state.phase == before.phase
            and kind not in ("updates lost", "rolled back")
        ):
            assert before.received.keys() <= run.state.received.keys(), (
                "an acknowledged update was lost"
            )
    assert run.replayed() == run.state
    assert s.decode_state(s.encode_state(run.state)) == run.state


names = st.sampled_from("abcdef")
hours_of_a_fleet = st.lists(
    st.one_of(
        st.tuples(st.just("check-in"), names),
        st.tuples(st.just("declined"), names),
        st.tuples(st.just("declined"), names),
        st.tuples(st.just("excused"), names),
        st.tuples(st.just("lost"), names),
        st.tuples(st.just("update"), names),
        st.tuples(st.just("deadline"), st.integers(0, 20)),
        st.tuples(st.just("resumed"), st.none()),
    ),
    max_size=50,
)


@given(hours_of_a_fleet, st.sampled_from([1.0, 1.5]), st.sampled_from([0.0, 20.0]))
def test_a_short_round_asks_whoever_is_there_and_nobody_who_declined(
    history: list[tuple[str, Any]], over: float, pace_s: float
) -> None:
    run = Run(
        min_devices=2,
        min_updates=2,
        cohort=2,
        over_select=over,
        pace_s=pace_s,
        rounds=3,
        deadline_s=15.0,
        grace_s=2.0,
    )
    declined: set[str] = set()
    for at_s, (kind, value) in enumerate(history, start=1):
        before, commands = run.state, []
        if kind == "check-in":
            commands = run.check_in(value, at_s)
        elif (
            kind in ("declined", "excused")
            and value in before.cohort.keys() - before.received.keys()
        ):
            commands = run.feed(
                s.DeviceDeclined(at_s, value, before.round, failed=kind == "declined")
            )
            declined |= {value}
        elif kind == "lost":
            commands = run.feed(s.DeviceLost(at_s, value))
        elif kind == "update" and value in before.cohort and before.phase in OPEN:
            commands = run.update(value, at_s=at_s)
        elif kind == "deadline":
            commands = run.feed(s.DeadlinePassed(at_s + value, before.round))
        elif kind == "resumed":
            commands = run.resume(at_s, before.epoch + 1)
        if run.state.phase == "aggregating":
            commands += run.aggregated(at_s)
        if (run.state.round, run.state.attempt, run.state.phase) != (
            before.round,
            before.attempt,
            before.phase,
        ):
            declined = set()
            continue
        assert not declined & run.state.cohort.keys(), (
            "who declined is asked again in the same attempt"
        )
        assert not declined & {c.plan.device_id for c in commands if isinstance(c, s.SendPlan)}
        if before.cohort.keys() - run.state.cohort.keys() and run.state.phase == "training":
            hoped = [
                d
                for d in run.state.cohort
                if d in run.state.received or is_awaited(run.state, run.state.devices[d], at_s)
            ]
            online = {
                d
                for d, device in run.state.devices.items()
                if device.online and may_be_asked(run.state, device, at_s)
            }
            assert len(hoped) >= 2 or online <= run.state.cohort.keys() | declined, (
                "a short round lets a device idle"
            )
    assert run.replayed() == run.state
    assert s.decode_state(s.encode_state(run.state)) == run.state
