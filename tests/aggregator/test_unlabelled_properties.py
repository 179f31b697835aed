"""Devices without labels in any history: none trains, and what is counted of them is right."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.core import state as s
from aggregator.core.round.asking import start_key
from aggregator.core.round.machine import OPEN
from aggregator.core.state import DeviceForgotten
from tests.aggregator.round_cases import Run, kinds
from tests.aggregator.unlabelled_cases import PROGRAMS, aggregate, come, tell

events = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(
                ["labelled", "unlabelled", "moved", "lost", "tell", "tell nothing", "update"]
            ),
            st.sampled_from("abuv"),
        ),
        st.tuples(st.sampled_from(["declined", "forbidden", "forgotten"]), st.sampled_from("abuv")),
        st.tuples(st.just("deadline"), st.floats(0, 20)),
        st.tuples(st.sampled_from(["aggregated", "resumed"]), st.none()),
    ),
    max_size=60,
)


@pytest.mark.representatives("cohort")
@pytest.mark.parametrize(
    "policy",
    [{}, {"buffer": 2, "concurrency": 2}, {"cohort": 1}],
    ids=["sync", "buffered", "cohort"],
)
@given(events)
def test_in_any_history_nobody_without_labels_trains_and_the_log_gives_the_same_state(
    policy: dict[str, int], history: list[tuple[str, Any]]
) -> None:
    chosen: dict[str, Any] = {
        "min_devices": 2,
        "min_updates": 1,
        "min_batch": 2,
        "rounds": 3,
        "deadline_s": 8.0,
        "grace_s": 2.0,
    }
    run = Run(programs=PROGRAMS, **(chosen | policy))
    for at_s, (kind, value) in enumerate(history, start=1):
        before = run.state
        match kind:
            case "labelled" | "unlabelled" | "moved":
                come(run, value, 10 if kind == "labelled" else 1, at_s, moved=kind == "moved")
            case "lost":
                run.feed(s.DeviceLost(at_s, value))
            case "tell" | "tell nothing" if value in before.placing:
                assert (
                    kinds(
                        tell(
                            run,
                            value,
                            at_s,
                            before.placing[value].round,
                            None if kind == "tell" else {},
                        )
                    )[0]
                    == "Acknowledge"
                )
                assert (value in run.state.inputs) == (kind == "tell")
            case "update" if (
                value in before.cohort and value not in before.placing and before.phase in OPEN
            ):
                number = before.flights[value].round if value in before.flights else before.round
                assert kinds(run.update(value, number, at_s))[0] == "Acknowledge"
            case "declined" | "forbidden":
                run.feed(s.DeviceDeclined(at_s, value, before.round, forbidden=kind == "forbidden"))
            case "forgotten":
                run.feed(DeviceForgotten(at_s, value, {}, ()))
            case "deadline":
                run.feed(s.DeadlinePassed(at_s + value, before.round))
            case "aggregated" if before.phase == "aggregating":
                aggregate(run, at_s)
            case "resumed":
                run.resume(at_s, before.epoch + 1)
        state = run.state
        lacking = {d for d, device in state.devices.items() if device.num_train < 2}
        asked = {d for d in state.cohort if d not in before.cohort or state.round != before.round}
        assert state.phase == "evaluating" or not asked & lacking - before.flights.keys(), (
            "nobody without labels is asked to train"
        )
        assert state.placing.keys() <= lacking
        assert not state.placing.keys() & (state.cohort.keys() - state.received.keys())
        assert not state.inputs.keys() - lacking
        assert state.num_unlabelled == sum(state.devices[d].online for d in lacking)
        assert {start_key(state, d) for d in state.devices} <= set(state.models)
    assert run.replayed() == run.state
    assert s.decode_state(s.encode_state(run.state)) == run.state
