"""The models of a run's last rounds: they stay, a round that devices say is much worse is given up,
and the operator can go back."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.core.state import ModelVersion, RolledBack, RunState
from aggregator.core.versions import worse_than
from aggregator.storage.memory import MemoryBlobs
from simulation.datasets.windows import FleetData
from tests.aggregator.bench import Bench
from tests.aggregator.round_cases import MEMORY, MODEL, RECEIVED, Run, kinds
from wire import messages as m
from wire.messages import Metrics

SETTINGS = {"keep_models": 3, "max_drop": 0.3, "rounds": 9}


class KeptBlobs(MemoryBlobs):
    """Blobs that say which there are."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: set[str] = set()

    def keep(self, digests: set[str]) -> None:
        super().keep(digests)
        self.kept = digests


def made_in(bench: Bench) -> list[int]:
    return [version.round for version in bench.state.history]


def test_the_models_of_the_last_rounds_stay_with_what_devices_said_of_them(
    fleet: FleetData,
) -> None:
    blobs = KeptBlobs()
    bench = Bench(fleet, blobs=blobs, settings=SETTINGS)
    offered = []
    for number in range(5):
        offered.append((bench.state.models, bench.state.memory))
        bench.close(a=(1.0, 2), b=(1.0, number % 2 + 2))
    assert made_in(bench) == [2, 3, 4]
    assert [(v.models, v.memory) for v in bench.state.history] == offered[2:]
    assert [v.evaluated["b"].num_correct for v in bench.state.history] == [2, 3, 2]
    for version in bench.state.history:
        assert all(blobs.get(digest) for digest in (*version.models.values(), version.memory))
    gone = offered[1][0]["0"]
    assert gone not in blobs.kept


def test_models_that_are_much_worse_are_given_up_for_the_best_of_the_last(fleet: FleetData) -> None:
    bench = Bench(fleet, settings=SETTINGS)
    bench.close(a=(1.0, 1), b=(1.0, 1))
    best = bench.state.models
    bench.close(a=(1.0, 4), b=(1.0, 4))
    bench.close(a=(50.0, 3), b=(50.0, 3))
    assert bench.state.made_in == 3
    notes = bench.close(a=(1.0, 0), b=(1.0, 0))
    assert notes["rolled_back"] == {
        "from": 3,
        "to": 1,
        "reason": "the mean accuracy of devices that evaluated both fell by 1.000: more than 0.3",
        "made_by": ["a", "b"],
    }
    assert (bench.state.models, bench.state.made_in, made_in(bench), bench.state.trained) == (
        best,
        1,
        [0, 1],
        4,
    )
    plans = [answer for answer in bench.answers() if isinstance(answer, m.Plan)]
    assert {plan.model for plan in plans} <= {best["0"]}
    assert bench.close(a=(1.0, 4), b=(1.0, 4)) == {}, "the run goes on from there"
    assert (bench.state.made_in, made_in(bench)) == (5, [0, 1])


@pytest.mark.parametrize(
    ("settings", "second", "because"),
    [
        ({"max_drop": 1.0}, (0, 0), "it is off"),
        ({}, (0, 4), "one device alone says so"),
        ({}, (3, 3), "they are not much worse"),
        ({"keep_models": 0}, (0, 0), "nothing is remembered"),
    ],
)
def test_models_stay(
    fleet: FleetData, settings: dict[str, Any], second: tuple[int, int], because: str
) -> None:
    bench = Bench(fleet, settings={**SETTINGS, **settings})
    bench.close(a=(1.0, 4), b=(1.0, 4))
    assert "rolled_back" not in bench.close(a=(1.0, second[0]), b=(1.0, second[1])), because
    assert bench.state.made_in == 2


accuracies = st.lists(st.integers(0, 10), min_size=2, max_size=8)


def told(values: list[int]) -> dict[str, Metrics]:
    return {f"d{i}": Metrics(10, 1.0, right) for i, right in enumerate(values)}


def after(before: list[int], now: list[int]) -> RunState:
    """A run whose devices have met two versions, with so many of ten windows right."""
    run = Run(max_drop=0.3, keep_models=3, min_updates=1)
    version = ModelVersion(
        round=0,
        models={"initial": MODEL},
        memory=MEMORY,
        starts={},
        programs={},
        evaluated=told(before),
    )
    received = {
        d: msgspec.structs.replace(RECEIVED, evaluated=metrics) for d, metrics in told(now).items()
    }
    return msgspec.structs.replace(
        run.state, phase="aggregating", made_in=1, history=(version,), received=received
    )


@given(accuracies, st.integers(0, 10), st.integers(0, 10))
def test_no_single_device_has_models_given_up_that_others_do_not_find_worse(
    honest: list[int], before: int, now: int
) -> None:
    assert worse_than(after([*honest, before], [*honest, now])) is None


@given(accuracies)
def test_models_that_all_find_worse_are_given_up(before: list[int]) -> None:
    now = [max(0, right - 4) for right in before]
    fell = sorted((right - left) / 10 for right, left in zip(before, now, strict=True))[:-1]
    mean = sum(fell) / len(fell)
    if abs(mean - 0.3) > 1e-9:
        assert (worse_than(after(before, now)) is not None) == (mean > 0.3)


class TestOperator:
    def test_a_service_returns_to_the_models_of_a_round(self, fleet: FleetData) -> None:
        bench = Bench(fleet, settings=SETTINGS)
        offered = []
        for _ in range(3):
            offered.append(bench.state.models)
            bench.close(a=(1.0, 2), b=(1.0, 2))
        bench.verdict(bench.payload("a"))
        bench.answers()
        assert bench.campaign.roll_back(1)
        state = bench.state
        assert (state.models, state.made_in, state.round, state.attempt, state.received) == (
            offered[1],
            1,
            4,
            1,
            {},
        )
        assert made_in(bench) == [0, 1]
        plans = bench.answers()
        assert [(plan.device_id, plan.attempt, plan.model) for plan in plans] == [
            (d, 1, offered[1]["0"]) for d in "ab"
        ]
        assert bench.store.load() == state, "it is the same after a restart"
        assert bench.close(a=(1.0, 2), b=(1.0, 2)) == {}
        assert bench.state.made_in == 4

    @pytest.mark.parametrize("number", [7, 2])
    def test_a_round_that_is_not_remembered_changes_nothing(
        self, fleet: FleetData, number: int
    ) -> None:
        bench = Bench(fleet, settings=SETTINGS)
        bench.close(a=(1.0, 2), b=(1.0, 2))
        bench.close(a=(1.0, 2), b=(1.0, 2))
        before = bench.state
        bench.answers()
        assert bench.campaign.roll_back(number)
        assert msgspec.structs.replace(bench.state, at_s=before.at_s) == before
        assert bench.answers() == []

    def test_a_round_that_cannot_be_aggregated_is_left_behind(
        self, fleet: FleetData, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bench = Bench(fleet, settings=SETTINGS)
        bench.close(a=(1.0, 2), b=(1.0, 2))
        with monkeypatch.context() as patch:
            patch.setattr("aggregator.service.campaign.aggregate", lambda *_: 1 // 0)
            bench.verdict(bench.payload("a"))
            bench.verdict(bench.payload("b"), "b")
        assert (bench.state.phase, bool(bench.runner.paused)) == ("aggregating", True)
        assert bench.campaign.roll_back(0)
        assert (bench.state.phase, bench.state.round, bench.state.made_in) == ("training", 2, 0)
        bench.campaign.try_to_go_on(told=True)
        bench.close(a=(1.0, 2), b=(1.0, 2))


def test_a_finished_run_gives_every_device_its_earlier_model() -> None:
    run = Run(rounds=2, keep_models=2)
    run.check_in("a")
    for _ in range(2):
        run.update("a")
        run.aggregated()
    run.update("a")
    assert run.state.phase == "finished"
    epoch = run.state.epoch
    (finish,) = run.feed(RolledBack(99.0, 0))
    assert run.state.epoch == epoch + 1, "the offer of the later model is of an older epoch"
    assert (kinds([finish]), finish.model) == (["FinishRun"], MODEL)  # type: ignore[union-attr]
