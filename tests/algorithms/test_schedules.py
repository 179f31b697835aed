"""Learning rates over rounds: against torch's schedulers, in simulations on every backend, and in a
service over restarts."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LRScheduler, StepLR

import wire.messages as m
from aggregator.aggregation.orders import configured, rolled_back
from aggregator.aggregation.stored import make_programs
from aggregator.core.settings import with_rate
from algorithms.algorithm import State
from algorithms.composition import make_algorithm, read_algorithm
from algorithms.schedules import SCHEDULES, check_schedule, rate_in, read_schedule, share_of
from simulation.datasets.windows import FleetData
from simulation.engine.options import EngineOptions
from simulation.engine.progress import RunProgress
from simulation.settings import SimulationSettings
from simulation.simulate import SimulationResult, simulate
from tests.aggregator.training import Training
from tests.support.engines import same
from tests.support.fleets import synthetic_fleet
from wire.errors import ConfigError

TORCH: dict[str, Callable[[torch.optim.Optimizer], LRScheduler]] = {
    "step:every=3:factor=0.2": lambda o: StepLR(o, 3, 0.2),
    "exponential:factor=0.9": lambda o: ExponentialLR(o, 0.9),
    "cosine": lambda o: CosineAnnealingLR(o, 12),
    "cosine:rounds=8:final=0.1": lambda o: CosineAnnealingLR(o, 8, eta_min=0.1),
}


@pytest.mark.parametrize("text", TORCH)
def test_rates_are_those_of_torch(text: str) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    schedule = TORCH[text](optimizer)
    rounds = 8 if "rounds=8" in text else 12
    for trained in range(rounds + 1):
        assert share_of(read_schedule(text), trained, 12) == pytest.approx(
            schedule.get_last_lr()[0], abs=1e-12
        )
        with warnings.catch_warnings(action="ignore"):
            schedule.step()


def test_after_a_warm_up_a_curve_begins_at_its_full_height() -> None:
    shares = [share_of(read_schedule("cosine:warmup=3"), trained, 7) for trained in range(8)]
    assert shares[:4] == [0.25, 0.5, 0.75, 1.0]
    assert shares[3:] == pytest.approx(
        [share_of(read_schedule("cosine"), trained, 4) for trained in range(5)]
    )


@given(
    st.sampled_from(list(SCHEDULES)),
    st.integers(0, 20),
    st.integers(0, 10_000),
    st.integers(1, 200),
)
def test_a_rate_is_never_negative_and_never_more_than_the_runs_own(
    name: str, warmup: int, trained: int, rounds: int
) -> None:
    assert 0.0 <= share_of(read_schedule(f"{name}:warmup={warmup}"), trained, rounds) <= 1.0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "linear",
            "No learning rate schedule 'linear'. Known learning rate schedules: constant, step, "
            "exponential, cosine",
        ),
        ("step:factor=0", "factor must be a number above 0 to 1.*, got '0'"),
        ("exponential:factor=1.5", "factor must be a number above 0 to 1.*, got '1.5'"),
        ("step:every=0", "every must be a whole number from 1.*, got '0'"),
        ("cosine:final=-1", "final must be a number from 0 to 1.*, got '-1'"),
        ("cosine:warmup=5", "warmup must be below the number of rounds, 5, got 5"),
        ("constant:every=2", "'every' is not an option of constant; it has warmup=0"),
    ],
)
def test_what_is_no_schedule_is_one_clear_error(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        check_schedule(text, 5)


def run(
    schedule: str, backend: Any = "eager", algorithm: str = "distfl", **others: Any
) -> SimulationResult:
    settings = SimulationSettings(read_algorithm(algorithm), 3, batch_size=8, lr_schedule=schedule)
    return simulate(
        synthetic_fleet(4, shift=1.0), settings, engine=EngineOptions(backend, **others)
    )


class TestSimulation:
    SCHEDULE = "exponential:factor=0.5"
    RATES = (0.005, 0.0025, 0.00125)

    @pytest.mark.full
    def test_messages_give_the_same_bits_and_the_summary_names_the_rates(self) -> None:
        fast, by_messages = (
            run(self.SCHEDULE, backend, "dbe+distfl") for backend in ("eager", "messages")
        )
        same(fast, by_messages)
        for outcome in (fast, by_messages):
            assert outcome.summary.lr_by_round == list(self.RATES)
            assert outcome.summary.preparations == 1

    @pytest.mark.full
    def test_batches_of_devices_train_with_the_same_rates(self) -> None:
        eager, batched = run(self.SCHEDULE), run(self.SCHEDULE, "batched", device="cpu")
        assert batched.summary.lr_by_round == list(self.RATES)
        assert batched.summary.accuracy.mean == pytest.approx(eager.summary.accuracy.mean, abs=0.03)

    @pytest.mark.full
    def test_a_full_rate_changes_nothing_and_another_does(self) -> None:
        plain, constant, falling = (run(schedule) for schedule in ("", "constant", self.SCHEDULE))
        assert plain.campaign.models == constant.campaign.models != falling.campaign.models
        assert plain.summary.lr_by_round == []

    def test_an_interrupted_run_goes_on_with_the_same_bits(self, tmp_path: Path) -> None:
        settings = SimulationSettings(read_algorithm("fedavg"), 3, lr_schedule=self.SCHEDULE)

        def stop(told: RunProgress) -> None:
            if told.trained == 1:
                raise KeyboardInterrupt

        options = EngineOptions("eager", checkpoint=tmp_path)
        with pytest.raises(KeyboardInterrupt):
            simulate(synthetic_fleet(3), settings, stop, engine=options)
        resumed = simulate(synthetic_fleet(3), settings, engine=options)
        same(simulate(synthetic_fleet(3), settings, engine=EngineOptions("eager")), resumed)
        assert resumed.summary.lr_by_round == list(self.RATES)

    def test_after_the_last_round_devices_train_with_the_runs_own_rate(self) -> None:
        settings = SimulationSettings(
            read_algorithm("lg-net"), 3, hyper={"lr": 0.01}, lr_schedule="cosine"
        )
        state = State({"initial": {}}, rounds=3)
        programs = make_programs(make_algorithm(settings.algorithm), state, settings, {})
        assert rate_in(programs["closing"]) == 0.01
        assert rate_in(programs[""]) == pytest.approx(0.0)
        halfway = make_programs(
            make_algorithm(settings.algorithm), replace(state, rounds=1), settings, {}
        )
        assert rate_in(halfway[""]) == pytest.approx(0.0075)


class TestCampaign:
    """The rates that assignments carry."""

    SETTINGS: ClassVar[dict[str, Any]] = {
        "hyper": {"lr": 0.8},
        "lr_schedule": "step:every=1:factor=0.5",
        "keep_models": 3,
    }

    def rates(self, bench: Training) -> set[float]:
        works = [device.assignment for device in bench.fleet.devices.values()]
        verbs = [verb for work in works if work is not None for verb in work.verbs]
        return {verb.hyper["lr"] for verb in verbs if isinstance(verb, m.Train)}

    def close(self, bench: Training) -> tuple[Any, float]:
        noted = bench.close(a=(1.0, 2), b=(1.0, 2))["lr"]
        (following,) = self.rates(bench)
        return noted, following

    def test_every_round_has_its_own_also_after_an_order_and_a_rollback(
        self, fleet: FleetData
    ) -> None:
        bench = Training(fleet, settings={**self.SETTINGS, "rounds": 9})
        assert self.close(bench) == (0.8, 0.4)
        assert self.close(bench) == (0.4, 0.2)
        campaign, schedule = bench.campaign, "exponential:factor=0.1"
        settings = msgspec.structs.replace(campaign.next_settings, lr_schedule=schedule)
        bench.feed(configured(campaign, settings, bench.algorithm, bench.blobs, bench.now_s))
        bench.ring()
        assert self.rates(bench) == {0.2}, "the open round stays as it is"
        noted, following = self.close(bench)
        assert noted == 0.2
        assert following == pytest.approx(0.0008)
        bench.feed(rolled_back(bench.campaign, 1, bench.algorithm, bench.blobs, bench.now_s))
        bench.ring()
        assert self.rates(bench) == {following}, (
            "rounds that were given up have been trained all the same"
        )


def test_a_schedule_is_about_a_rate_that_the_run_always_has(fleet: FleetData) -> None:
    manifest = Training(fleet).bundle.manifest
    assert with_rate({}, "cosine", manifest) == {"lr": manifest.hyper["lr"]}
    assert with_rate({"lr": 1.0}, "cosine", manifest) == {"lr": 1.0}
    assert with_rate({}, "", manifest) == {}
    with pytest.raises(
        ConfigError, match="learning rate schedule 'cosine': fedavg has no hyper-parameter 'lr'"
    ):
        with_rate({}, "cosine", msgspec.structs.replace(manifest, hyper={}))
