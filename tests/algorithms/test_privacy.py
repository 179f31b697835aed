"""Clipping and noise to the last bit, epsilon against the library and against theory."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from opacus.accountants import RDPAccountant
from scipy.stats import norm

from algorithms.core.contract import LocalModel, Work
from algorithms.privacy.base import NoPrivacy
from algorithms.privacy.dp_sgd import DpSgd
from algorithms.privacy.gaussian import CentralGaussian, LocalGaussian, spent
from tests.support.known import known
from wire.arrays.privacy import add_noise, clip
from wire.arrays.tensors import Array
from wire.errors import ConfigError
from wire.messages import Protect

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
        central = CentralGaussian(**options).epsilon(rounds, [], self.work)
        local = LocalGaussian(**options).epsilon(rounds, [], self.work)
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
        assert private.epsilon(rounds, [few, many_steps, neither], self.work) == pytest.approx(
            max(expected)
        )
        assert private.epsilon(rounds, [many_steps, neither], self.work) == pytest.approx(
            expected[1]
        )

    def test_of_fewer_examples_than_a_batch_has_no_sampling(self) -> None:
        assert DpSgd().epsilon(3, [model_of(10, 2)], self.work) == pytest.approx(
            by_library(1.0, 1.0, 6, 1e-5)
        )

    @pytest.mark.parametrize("kind", [LocalGaussian, CentralGaussian, DpSgd])
    def test_grows_with_rounds_and_is_infinite_without_noise(
        self, kind: type[LocalGaussian | CentralGaussian | DpSgd]
    ) -> None:
        models = [model_of(64, 2)]
        values = [known(kind().epsilon(rounds, models, self.work)) for rounds in (0, 1, 2, 10)]
        assert values[0] == 0
        assert values == sorted(values)
        assert kind(noise_multiplier=0).epsilon(1, models, self.work) == math.inf

    def test_without_a_mechanism_is_none(self) -> None:
        assert NoPrivacy().epsilon(1, [model_of(64, 2)], self.work) is None


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
