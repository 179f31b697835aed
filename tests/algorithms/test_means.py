"""Averages, medians, and what every mean promises: any order, any values, any number of devices."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import trim_mean

from algorithms.core.contract import Mean, Slice
from algorithms.core.stack import COLUMNS
from algorithms.means.credit import Credit
from algorithms.means.gra import GroupwiseRobust
from algorithms.means.irls import ResidualReweighting
from algorithms.means.krum import Krum, MultiKrum
from algorithms.means.median import Median, TrimmedMean
from algorithms.means.robust import RobustMean
from algorithms.means.weighted import UniformMean, WeightedMean
from tests.algorithms.mean_cases import ALL_CONVOLUTION, MEANS, SIZE, by_name, combine, models
from wire.errors import ConfigError

ROBUST: list[Mean] = [
    Median(),
    TrimmedMean(share=0.2),
    Krum(),
    MultiKrum(),
    Credit(),
    ResidualReweighting(),
    GroupwiseRobust(),
    RobustMean(),
]
each_mean = pytest.mark.parametrize("mean", MEANS, ids=by_name)
each_robust = pytest.mark.parametrize("mean", ROBUST, ids=by_name)


class TestEveryMean:
    @each_mean
    @given(
        num=st.integers(1, 12), seed=st.integers(0, 1000), scale=st.sampled_from([1e-30, 1.0, 1e30])
    )
    def test_does_not_depend_on_the_order(
        self, mean: Mean, num: int, seed: int, scale: float
    ) -> None:
        stack = (models(num, seed) * scale).astype(np.float32)
        rng = np.random.default_rng(seed)
        counts, order = rng.integers(1, 100, num), rng.permutation(num)
        one, two = combine(mean, stack, counts), combine(mean, stack[order], counts[order])
        assert np.abs(one.flat / scale - two.flat / scale).max() < 1e-5
        assert one.weights[order] == pytest.approx(two.weights, abs=1e-6, nan_ok=True)

    @each_mean
    @given(num=st.integers(1, 12), seed=st.integers(0, 1000))
    def test_is_deterministic(self, mean: Mean, num: int, seed: int) -> None:
        stack = models(num, seed)
        assert np.array_equal(combine(mean, stack).flat, combine(mean, stack.copy()).flat)

    @each_mean
    @given(data=st.data(), num=st.integers(1, 9))
    def test_stays_finite_whatever_comes(self, mean: Mean, data: st.DataObject, num: int) -> None:
        values = st.sampled_from(
            [0.0, -0.0, 1.0, -1.0, 1e-45, 1e-7, 3e38, -3.4e38, float(np.finfo(np.float32).max)]
        )
        stack = np.array(
            data.draw(st.lists(values, min_size=num * SIZE, max_size=num * SIZE)), np.float32
        ).reshape(num, SIZE)
        made = combine(
            mean,
            stack,
            np.array(data.draw(st.lists(st.integers(0, 2**53), min_size=num, max_size=num))),
        )
        assert made.flat.dtype == np.float32
        assert made.flat.shape == (SIZE,)
        assert np.isfinite(made.flat).all()
        assert made.weights.shape == (num,)
        assert np.isnan(made.weights).all() or (
            made.weights.sum() == pytest.approx(1) and (made.weights >= 0).all()
        )

    @each_mean
    def test_of_one_model_is_that_model(self, mean: Mean) -> None:
        stack = models(1, 0)
        assert np.array_equal(combine(mean, stack).flat, stack[0])

    @each_mean
    def test_of_two_models_is_their_mean(self, mean: Mean) -> None:
        stack = models(2, 0)
        assert combine(mean, stack).flat == pytest.approx(
            stack.astype(np.float64).mean(0), rel=1e-6
        )

    @each_mean
    @given(num=st.integers(1, 12))
    def test_of_equal_models_is_that_model(self, mean: Mean, num: int) -> None:
        stack = np.repeat(models(1, 3), num, axis=0)
        assert combine(mean, stack).flat == pytest.approx(stack[0], rel=1e-6)

    @each_mean
    def test_columns_are_taken_in_blocks(self, mean: Mean) -> None:
        """A model of more than one block has in every parameter what the same parameters have on
        their own, where columns are apart."""
        stack = models(7, 1, size=COLUMNS + SIZE)
        whole = combine(
            mean, stack, layout=[Slice("shared/w", 0, COLUMNS + SIZE, (COLUMNS + SIZE,))]
        )
        assert np.isfinite(whole.flat).all()
        if mean.name in ("weighted", "uniform", "median", "trimmed"):
            assert np.array_equal(whole.flat[-SIZE:], combine(mean, stack[:, -SIZE:]).flat)

    @each_robust
    @given(seed=st.integers(0, 1000), power=st.floats(3, 37), sign=st.sampled_from([-1.0, 1.0]))
    def test_few_attackers_move_it_little_however_large_their_values(
        self, mean: Mean, seed: int, power: float, sign: float
    ) -> None:
        stack = models(12, seed)
        honest = stack[:10]
        stack[10:] = sign * 10.0**power * np.abs(models(2, seed + 1))
        made = combine(mean, stack, layout=ALL_CONVOLUTION).flat
        margin = honest.std(0)
        assert (made >= honest.min(0) - margin).all()
        assert (made <= honest.max(0) + margin).all()


class TestAverages:
    def test_weighted_by_examples(self) -> None:
        stack, counts = models(5, 0), np.array([1, 5, 2, 100, 7])
        made = combine(WeightedMean(), stack, counts)
        assert made.flat == pytest.approx(
            np.average(stack.astype(np.float64), axis=0, weights=counts), rel=1e-6
        )
        assert made.weights == pytest.approx(counts / 115)

    def test_uniform_ignores_examples(self) -> None:
        stack = models(5, 0)
        made = combine(UniformMean(), stack, np.array([1, 5, 2, 100, 7]))
        assert made.flat == pytest.approx(stack.astype(np.float64).mean(0), rel=1e-6)
        assert made.weights == pytest.approx(np.full(5, 0.2))


class TestMedianAndTrimmedMean:
    @given(num=st.integers(1, 20), seed=st.integers(0, 1000))
    def test_equal_numpy_and_scipy(self, num: int, seed: int) -> None:
        stack = models(num, seed)
        assert np.array_equal(
            combine(Median(), stack).flat,
            np.median(stack.astype(np.float64), axis=0).astype(np.float32),
        )
        for share in (0.0, 0.1, 0.25, 0.49):
            expected = trim_mean(stack.astype(np.float64), share, axis=0)
            assert combine(TrimmedMean(share=share), stack).flat == pytest.approx(
                expected, rel=1e-6
            )

    def test_share_is_taken_as_written(self) -> None:
        """0.29 * 100 is 28.999... in floating point."""
        stack = np.zeros((100, 1), np.float32)
        stack[:29] = 100.0
        assert combine(TrimmedMean(share=0.29), stack).flat[0] == 0

    @pytest.mark.parametrize("share", [-0.1, 0.5, math.nan])
    def test_refuses_a_share_that_leaves_nothing(self, share: float) -> None:
        with pytest.raises(ConfigError, match=r"share must be a number from 0 below 0\.5, got"):
            TrimmedMean(share=share)
