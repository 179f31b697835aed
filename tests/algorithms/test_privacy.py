"""Clipping and noise to the last bit, epsilon against the library and against theory."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from opacus.accountants import RDPAccountant
from scipy.stats import norm

from algorithms.composition import make_algorithm, read_algorithm
from algorithms.core.contract import LocalModel, Work
from algorithms.privacy.base import NoPrivacy, counts_from
from algorithms.privacy.dp_sgd import DpSgd
from algorithms.privacy.gaussian import (
    CentralGaussian,
    LocalGaussian,
    Mechanism,
    SharedGaussian,
    spent,
)
from algorithms.sums import check_in_clear, check_in_sums
from tests.support.known import known
from wire.arrays.privacy import add_noise, clip
from wire.arrays.tensors import Array
from wire.errors import ConfigError
from wire.messages import Protect
from wire.secret.noise import rounded_norm
from wire.secret.question import LEAST_DEVIATION

floats32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
updates = arrays(np.float32, st.integers(0, 40), elements=floats32)
norms = st.floats(1e-300, 1e38) | st.sampled_from([1.0, 1e-45, 1e-40, 1e-38, 0.5, 3.4e38])


def length(update: Array) -> float:
    return math.sqrt(math.fsum(float(value) ** 2 for value in update))


class TestClip:
    @given(update=updates, limit=norms)
    def test_result_is_never_longer(self, update: Array, limit: float) -> None:
        clipped = clip(update, limit)
        assert clipped.dtype == np.float32
        assert length(clipped) <= limit
        assert np.linalg.norm(clipped.astype(np.float64)) <= limit
        assert np.array_equal(clip(clipped, limit), clipped), (
            "a second time it changes nothing: the server may clip again"
        )

    @given(update=updates, limit=norms)
    def test_unchanged_when_within_and_in_the_same_direction_otherwise(
        self, update: Array, limit: float
    ) -> None:
        clipped, before = clip(update, limit), length(update)
        if before <= limit * (1 - 1e-12):
            assert np.array_equal(clipped, update)
        elif before > limit > 1e-30:
            expected = update.astype(np.float64) * (limit / before)
            assert clipped == pytest.approx(expected, rel=2e-7, abs=2e-45)

    @given(seed=st.integers(0, 1000), limit=st.floats(1e-3, 1e3), size=st.integers(1, 60_000))
    def test_of_models(self, seed: int, limit: float, size: int) -> None:
        update = np.random.default_rng(seed).normal(size=size).astype(np.float32)
        assert min(length(update), limit) * (1 - 1e-6) <= length(clip(update, limit)) <= limit

    def test_does_not_change_its_input(self) -> None:
        update = np.ones(4, np.float32)
        clip(update, 0.1)
        assert (update == 1).all()


class TestNoise:
    def test_has_the_standard_deviation_asked_for(self) -> None:
        noise = add_noise(np.full(200_000, 3, np.float32), 0.5, np.random.default_rng(0)) - 3
        assert noise.dtype == np.float32
        assert noise.std() == pytest.approx(0.5, rel=0.01)
        assert abs(noise.mean()) < 0.005

    def test_without_a_deviation_nothing_happens(self) -> None:
        update = np.ones(3, np.float32)
        assert np.array_equal(add_noise(update, 0.0, np.random.default_rng(0)), update)


def model_of(num_examples: int, num_steps: int) -> LocalModel:
    return LocalModel("d", num_examples, num_steps, "1", {})


def by_library(noise_multiplier: float, rate: float, steps: int, delta: float) -> float:
    accountant = RDPAccountant()
    for _ in range(steps):
        accountant.step(noise_multiplier=noise_multiplier, sample_rate=rate)
    return float(accountant.get_epsilon(delta=delta))


def least_epsilon(noise_multiplier: float, steps: int, delta: float) -> float:
    """The smallest true epsilon of Gaussian mechanisms in a row (Balle and Wang, ICML 2018, Theorem
    8): no bound may be below it."""
    mu, low, high = math.sqrt(steps) / noise_multiplier, 0.0, 1000.0
    for _ in range(100):
        middle = (low + high) / 2
        # the second term as exp(log): e^epsilon alone overflows
        chance = norm.cdf(mu / 2 - middle / mu) - math.exp(
            middle + norm.logcdf(-mu / 2 - middle / mu)
        )
        low, high = (middle, high) if chance > delta else (low, middle)
    return high


class TestEpsilon:
    work = Work(32, 1)

    @pytest.mark.parametrize(
        ("noise_multiplier", "rounds", "delta"),
        [(1.0, 1, 1e-5), (0.7, 20, 1e-6), (4.0, 50, 1e-3), (10.0, 200, 1e-5)],
    )
    def test_of_devices_equals_the_library(
        self, noise_multiplier: float, rounds: int, delta: float
    ) -> None:
        options = {"noise_multiplier": noise_multiplier, "delta": delta, "clip_norm": 3.0}
        central = CentralGaussian(**options).epsilon_after(rounds, [], self.work)
        local = LocalGaussian(**options).epsilon_after(rounds, [], self.work)
        assert central == pytest.approx(by_library(noise_multiplier, 1.0, rounds, delta))
        assert local == pytest.approx(by_library(noise_multiplier / 2, 1.0, rounds, delta)), (
            "two clipped updates can be 2 C apart"
        )

    @pytest.mark.parametrize(
        ("noise_multiplier", "rounds", "delta"),
        [(1.0, 1, 1e-5), (0.7, 20, 1e-6), (4.0, 50, 1e-3), (10.0, 200, 1e-5)],
    )
    def test_of_devices_is_above_the_true_one_and_not_far(
        self, noise_multiplier: float, rounds: int, delta: float
    ) -> None:
        true = least_epsilon(noise_multiplier, rounds, delta)
        assert true <= spent(noise_multiplier, 1.0, rounds, delta) <= 1.3 * true

    def test_of_examples_is_that_of_the_worst_device(self) -> None:
        private = DpSgd(noise_multiplier=1.1, delta=1e-4)
        few, many_steps, neither = model_of(100, 4), model_of(1000, 60), model_of(1000, 32)
        rounds = 5
        expected = [
            by_library(1.1, 32 / m.num_examples, m.num_steps * rounds, 1e-4)
            for m in (few, many_steps, neither)
        ]
        assert private.epsilon_after(
            rounds, [few, many_steps, neither], self.work
        ) == pytest.approx(max(expected))
        assert private.epsilon_after(rounds, [many_steps, neither], self.work) == pytest.approx(
            expected[1]
        )

    def test_of_fewer_examples_than_a_batch_has_no_sampling(self) -> None:
        assert DpSgd().epsilon_after(3, [model_of(10, 2)], self.work) == pytest.approx(
            by_library(1.0, 1.0, 6, 1e-5)
        )

    @pytest.mark.parametrize("kind", [LocalGaussian, CentralGaussian, DpSgd])
    def test_grows_with_rounds_and_is_infinite_without_noise(
        self, kind: type[LocalGaussian | CentralGaussian | DpSgd]
    ) -> None:
        models = [model_of(64, 2)]
        values = [
            known(kind().epsilon_after(rounds, models, self.work)) for rounds in (0, 1, 2, 10)
        ]
        assert values[0] == 0
        assert values == sorted(values)
        assert kind(noise_multiplier=0).epsilon_after(1, models, self.work) == math.inf

    def test_without_a_mechanism_is_none(self) -> None:
        assert NoPrivacy().epsilon_after(1, [model_of(64, 2)], self.work) is None


class TestMechanisms:
    def test_who_clips_and_who_adds_noise(self) -> None:
        update = np.full(100, 1, np.float32)
        local, central = (
            LocalGaussian(clip_norm=2.0, noise_multiplier=1.5),
            CentralGaussian(clip_norm=2.0, noise_multiplier=1.5),
        )
        assert local.verbs() == (Protect(2.0, 3.0),)
        assert local.clip(update) is update
        assert local.noise(update, 7, 0) is update
        assert central.verbs() == (Protect(2.0, 0.0),)
        assert length(central.clip(update)) == pytest.approx(2, rel=1e-6)
        for private in (NoPrivacy(), DpSgd()):
            assert private.verbs() == ()
            assert private.clip(update) is update
            assert private.noise(update, 7, 0) is update

    def test_the_aggregators_noise_covers_one_device_of_the_mean(self) -> None:
        private = CentralGaussian(clip_norm=2.0, noise_multiplier=1.5)
        mean = np.zeros(100_000, np.float32)
        made = private.noise(mean, 10, seed=3)
        assert made.std() == pytest.approx(1.5 * 2.0 / 10, rel=0.02)
        assert np.array_equal(made, private.noise(mean, 10, seed=3))
        assert not np.array_equal(made, private.noise(mean, 10, seed=4))

    @pytest.mark.parametrize("kind", [LocalGaussian, CentralGaussian, DpSgd])
    @pytest.mark.parametrize(
        ("option", "value"),
        [
            ("clip_norm", 0.0),
            ("clip_norm", math.inf),
            ("clip_norm", math.nan),
            ("noise_multiplier", -1.0),
            ("delta", 0.0),
            ("delta", 1.0),
        ],
    )
    def test_refuse_impossible_options(
        self, kind: type[LocalGaussian], option: str, value: float
    ) -> None:
        with pytest.raises(ConfigError, match=rf"{option} must be .*, got '{value:g}'"):
            kind(**{option: value})


class TestBudget:
    """The option `epsilon`: the noise is found for the rounds planned."""

    @pytest.mark.parametrize("kind", [LocalGaussian, CentralGaussian, DpSgd])
    @pytest.mark.parametrize(
        ("epsilon", "delta", "rounds"),
        [(8, 1e-5, 20), (0.7, 1e-4, 1), (2.5, 1e-6, 100), (60, 1e-5, 3), (1, 1e-3, 7)],
    )
    def test_the_noise_spends_the_budget_and_no_more(
        self, kind: type[Mechanism], epsilon: float, delta: float, rounds: int
    ) -> None:
        work, counts = Work(16, 2), (90, 97, 400)
        noise = known(kind(epsilon=epsilon, delta=delta).noise_for(rounds, counts, work))
        models = [model_of(n, 2 * math.ceil(n / 16)) for n in counts]
        cost = known(kind(noise_multiplier=noise, delta=delta).epsilon_after(rounds, models, work))
        assert 0.98 * epsilon <= cost <= epsilon
        assert float(f"{noise:.4g}") == noise, "a text of four digits names it exactly"

    def test_the_device_that_spends_most_decides(self) -> None:
        work, private = Work(32, 1), DpSgd(epsilon=2)
        alone = [known(private.noise_for(10, [n], work)) for n in (32, 33, 64, 1000)]
        assert max(alone) == alone[1], "two steps, with nearly all windows in each"
        assert private.noise_for(10, [1000, 64, 33, 32], work) == alone[1]
        assert {*counts_from(32, 32)} == {32, 33}
        assert known(private.noise_for(10, counts_from(20, 32), work)) == alone[1]
        assert counts_from(0, 32) == ()

    def test_an_epsilon_that_no_noise_reaches_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"gaussian: epsilon must be at least 0\.\d+ with"):
            CentralGaussian(epsilon=0.001).noise_for(20, [], Work(32, 1))

    def test_noise_beside_the_budget_must_be_enough(self) -> None:
        private = CentralGaussian(epsilon=8, noise_multiplier=2.9)
        assert private.noise_for(20, [], Work(32, 1)) == 2.9
        with pytest.raises(ConfigError, match=r"must be at least 11.* in 40 rounds, got 8"):
            private.noise_for(40, [], Work(32, 1))

    def test_dp_sgd_in_a_service_needs_the_fewest_windows(self) -> None:
        with pytest.raises(ConfigError, match=r"dp-sgd: min_examples must be above 0 with epsilon"):
            DpSgd(epsilon=8).noise_for(20, [], Work(32, 1))

    def test_without_a_budget_nothing_is_found(self) -> None:
        assert DpSgd().noise_for(20, [], Work(32, 1)) is None
        assert NoPrivacy().noise_for(20, [40], Work(32, 1)) is None
        spec = read_algorithm("fedavg+gaussian")
        assert spec.with_noise(20, [40], Work(32, 1)) is spec

    @pytest.mark.parametrize("privacy", ["gaussian", "local-gaussian", "dp-sgd"])
    def test_is_written_beside_the_budget_in_the_algorithms_name(self, privacy: str) -> None:
        spec = read_algorithm("fedprox").with_privacy(f"{privacy}:epsilon=4:clip_norm=2")
        if privacy == "dp-sgd":
            spec = read_algorithm(f"fedavg+{privacy}:epsilon=4:clip_norm=2")
        found = spec.with_noise(30, [120], Work(32, 1))
        noise = found.privacy.options["noise_multiplier"]
        assert str(found) == f"{spec}:noise_multiplier={noise:g}"
        assert read_algorithm(str(found)) == found
        assert found.with_noise(30, [120], Work(32, 1)) is found
        with pytest.raises(ConfigError, match="plan fewer rounds"):
            found.with_noise(31 * 2, [120], Work(32, 1))

    def test_the_plan_carries_what_the_step_needs(self) -> None:
        spec = read_algorithm("fedavg+dp-sgd:epsilon=4").with_noise(30, [120], Work(32, 1))
        assert spec.hyper["noise_multiplier"] == spec.privacy.options["noise_multiplier"]

    @pytest.mark.parametrize("kind", [LocalGaussian, CentralGaussian, DpSgd])
    def test_the_cost_is_a_sentence(self, kind: type[Mechanism]) -> None:
        text = kind(noise_multiplier=1.5).cost(12, [64], Work(32, 1))
        epsilon = known(kind(noise_multiplier=1.5).epsilon_after(12, [model_of(64, 2)], self.work))
        assert f"12 rounds cost epsilon={epsilon:.4g} at delta=1e-05" in text
        assert "guarantees nothing" in kind(noise_multiplier=0).cost(12, [64], Work(32, 1))
        assert NoPrivacy().cost(12, [64], Work(32, 1)) == ""

    work = Work(32, 1)


class TestShares:
    @pytest.mark.parametrize("numbers", [1, 100, 45_190, 1_000_000])
    @pytest.mark.parametrize(("min_sum", "honest"), [(5, 1.0), (20, 0.5), (1000, 0.8)])
    @pytest.mark.parametrize("multiplier", [0.5, 2.0, 12.0])
    def test_the_noise_of_the_honest_devices_is_that_of_the_accounting(
        self, numbers: int, min_sum: int, honest: float, multiplier: float
    ) -> None:
        shared = SharedGaussian(noise_multiplier=multiplier, honest=honest)
        noise = shared.shares(numbers, min_sum)
        together = noise.deviation * math.sqrt(honest * min_sum)
        assert together / rounded_norm(noise.norm, numbers) == pytest.approx(multiplier)
        assert noise.deviation >= LEAST_DEVIATION
        assert rounded_norm(noise.norm, numbers) <= 1.2 * noise.norm
        assert shared.epsilon_after(9, [], Work(32, 1)) == spent(multiplier, 1.0, 9, 1e-5)

    def test_a_large_model_loses_nothing_to_rounding(self) -> None:
        noise = SharedGaussian().shares(45_190, 20)
        assert rounded_norm(noise.norm, 45_190) <= 1.01 * noise.norm

    @pytest.mark.parametrize(
        ("multiplier", "problem"),
        [
            (0.0, "noise_multiplier must be above 0, got 0"),
            (40.0, r"must be at most 32\.5 with min_sum 5, got 40; raise min_sum"),
        ],
    )
    def test_noise_that_cannot_be_shared_is_refused(self, multiplier: float, problem: str) -> None:
        with pytest.raises(ConfigError, match=problem):
            SharedGaussian(noise_multiplier=multiplier).shares(1_000_000, 5)

    def test_it_protects_in_secret_mode_alone(self) -> None:
        spec = read_algorithm("fedavg+shared-gaussian")
        check_in_sums(spec)
        with pytest.raises(ConfigError, match="shared-gaussian protects in secret mode alone"):
            check_in_clear(spec)
        check_in_clear(read_algorithm("fedavg+gaussian"))

    def test_no_survey_goes_with_it(self) -> None:
        with pytest.raises(ConfigError, match="no privacy mechanism covers"):
            make_algorithm(read_algorithm("distfl+uniform+shared-gaussian"))
