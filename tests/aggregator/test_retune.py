"""Other settings for a run that goes on: which, from when on, and what else they open."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.core.settings import RunSettings
from aggregator.core.state import DeadlinePassed, Retuned
from aggregator.service.start import check_retuned
from algorithms.core.contract import Programs
from host.settings import marked
from simulation.datasets.windows import FleetData
from tests.aggregator.bench import Bench
from tests.aggregator.round_cases import Run, kinds
from tests.contracts.store import PROGRAMS, SETTINGS
from wire.errors import ConfigError
from wire.messages import Evaluate, Metrics, Train

FASTER: Programs = {"": (Train(64, 3),), "closing": (Evaluate(),)}


def changed(settings: RunSettings, **changes: Any) -> RunSettings:
    return msgspec.structs.replace(settings, **changes)


def retuned(run: Run, at_s: float = 50.0, **changes: Any) -> list[str]:
    """Give a run other settings, and say what followed."""
    wanted = changed(run.state.next_settings, **changes)
    return kinds(run.feed(Retuned(at_s, wanted, {**PROGRAMS, **FASTER})))


def finished(rounds: int = 1) -> Run:
    run = Run(rounds=rounds)
    run.check_in("a")
    for _ in range(rounds):
        run.update("a")
        run.aggregated()
    run.update("a")
    assert run.state.phase == "finished"
    return run


class TestCore:
    def test_a_finished_run_goes_on_for_as_many_rounds_as_it_is_given(self) -> None:
        run = finished()
        assert retuned(run, rounds=3) == ["SetDeadline", "SendPlan"]
        assert (run.state.phase, run.state.round, run.state.trained, run.state.programs[""]) == (
            "training",
            3,
            1,
            FASTER[""],
        )
        for _ in range(2):
            run.update("a")
            run.aggregated()
        assert run.state.phase == "evaluating"
        assert kinds(run.update("a")) == ["Acknowledge", "FinishRun"]
        assert retuned(run, rounds=4) == ["SetDeadline", "SendPlan"], "and again"

    def test_a_finished_run_whose_rounds_are_over_stays_finished(self) -> None:
        run = finished(2)
        assert retuned(run, rounds=1, grace_s=9.0) == []
        assert (run.state.phase, run.state.settings.grace_s) == ("finished", 9.0)

    def test_more_rounds_during_the_last_evaluation_follow_it(self) -> None:
        run = Run(rounds=1)
        run.check_in("a")
        run.update("a")
        run.aggregated()
        assert run.state.phase == "evaluating"
        assert retuned(run, rounds=2) == []
        assert kinds(run.update("a")) == ["Acknowledge", "SetDeadline", "SendPlan"]
        assert (run.state.phase, run.state.round) == ("training", 3)

    def test_devices_do_in_the_open_round_what_its_plans_say(self) -> None:
        run = Run(rounds=3)
        run.check_in("a")
        before = run.state
        assert retuned(run, batch_size=64, local_epochs=3, hyper={"lr": 1.0}, deadline_s=7.0) == []
        assert (run.state.programs, run.state.deadline_at_s) == (
            before.programs,
            before.deadline_at_s,
        )
        assert [getattr(run.state.settings, name) for name in marked(RunSettings, "epsilon")] == [
            getattr(before.settings, name) for name in marked(RunSettings, "epsilon")
        ]
        run.update("a")
        run.aggregated(at_s=60.0, programs={**PROGRAMS, **FASTER})
        assert (run.state.settings.batch_size, run.state.settings.hyper, run.state.retuned) == (
            64,
            {"lr": 1.0},
            None,
        )
        assert run.state.deadline_at_s == 67.0

    def test_a_round_that_waits_for_too_many_ends_when_fewer_are_asked_for(self) -> None:
        run = Run(rounds=3, min_updates=2)
        run.check_in("a")
        run.update("a")
        assert run.state.phase == "training"
        assert retuned(run, min_updates=1) == ["Aggregate"]

    def test_a_run_that_waits_for_too_many_begins_when_fewer_are_asked_for(self) -> None:
        run = Run(rounds=3, min_devices=2)
        run.check_in("a")
        assert run.state.phase == "waiting"
        assert retuned(run, min_devices=1) == ["SetDeadline", "SendPlan"]

    @given(
        st.dictionaries(
            st.sampled_from(["rounds", "min_updates", "local_epochs"]), st.integers(1, 5)
        ),
        st.integers(0, 6),
    )
    def test_whenever_it_comes_the_run_ends_with_as_many_rounds_as_it_was_given(
        self, changes: dict[str, int], when: int
    ) -> None:
        run = Run(rounds=3)
        for device in "abcde":
            run.check_in(device)
        for turn in range(40):
            if turn == when:
                retuned(run, **changes)
            if run.state.phase == "aggregating":
                run.aggregated()
            elif run.state.phase != "finished":
                run.update("abcde"[turn % 5])
                run.feed(DeadlinePassed(1e6 + turn, run.state.round))
        wanted = changes.get("rounds", 3)
        assert (run.state.phase, run.state.retuned) == ("finished", None)
        assert run.state.trained >= wanted
        assert run.state.settings.rounds == wanted


class TestRunner:
    def restarted(self, bench: Bench, **changes: Any) -> None:
        """The service again, from the same store and blobs."""
        wanted = changed(bench.state.next_settings, **changes)
        bench.start(wanted, bench.store, bench.blobs)

    def test_a_service_goes_on_with_what_its_command_says(self, fleet: FleetData) -> None:
        bench = Bench(fleet, settings={"rounds": 2})
        for _ in range(2):
            bench.close(a=(1.0, 2), b=(1.0, 2))
        tensors, bench.tensors = bench.tensors, {}
        for device_id in ("a", "b"):
            bench.verdict(bench.payload(device_id, num_steps=0, trained=Metrics()), device_id)
        assert bench.state.phase == "finished"
        bench.tensors = tensors
        models = bench.state.models
        bench.answers()
        self.restarted(bench, rounds=3, local_epochs=4)
        plans = [answer for answer in bench.answers() if hasattr(answer, "verbs")]
        assert {
            verb.epochs for plan in plans for verb in plan.verbs if isinstance(verb, Train)
        } == {4}
        assert (bench.state.phase, bench.state.models) == ("training", models), (
            "from the models that it had"
        )
        bench.close(a=(1.0, 2), b=(1.0, 2))
        assert [record.phase for record in bench.store.rounds()] == [
            "training",
            "training",
            "evaluating",
            "training",
        ]
        epoch = bench.state.epoch
        self.restarted(bench)
        assert (bench.state.retuned, bench.state.epoch) == (None, epoch), (
            "the same command changes nothing"
        )


@pytest.mark.parametrize(
    "name", ["rounds", "min_devices", "deadline_s", "norm_cap", "batch_size", "update_encoding"]
)
def test_what_may_change(tmp_path: Path, name: str) -> None:
    assert check_retuned(SETTINGS, SETTINGS, tmp_path) == ""
    assert (
        check_retuned(SETTINGS, changed(SETTINGS, **{name: 64}), tmp_path)
        == f"{name} {getattr(SETTINGS, name)!r}, not 64"
    )


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [
        ({}, {"seed": 7}),
        ({}, {"bundle": "9" * 64}),
        ({"algorithm": "distfl"}, {"algorithm": "fedavg"}),
        ({"algorithm": "fedavg"}, {"algorithm": "fedprox"}),
        ({"algorithm": "fedavg+fedadam"}, {"algorithm": "fedavg+fedyogi"}),
        ({"algorithm": "fedavg"}, {"algorithm": "fedavg+gaussian"}),
        ({"algorithm": "fedavg+gaussian"}, {"local_epochs": 5}),
        ({"algorithm": "fedavg+gaussian"}, {"hyper": {"lr": 1.0}}),
    ],
)
def test_what_makes_another_run(
    tmp_path: Path, stored: dict[str, Any], wanted: dict[str, Any]
) -> None:
    had = changed(SETTINGS, **stored)
    with pytest.raises(
        ConfigError,
        match=rf"was started with other settings \({next(iter(wanted))} .*; give it another --run",
    ):
        check_retuned(had, changed(had, **wanted), tmp_path)


def test_the_mean_may_change(tmp_path: Path) -> None:
    had = changed(SETTINGS, algorithm="distfl")
    check_retuned(had, changed(had, algorithm="distfl+median"), tmp_path)
    assert "algorithm" not in marked(RunSettings, "live")
