"""Every mean against a plain, slow reference; and what all of them promise: any order, any values, any number of devices."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import siegelslopes, trim_mean
from sklearn.cluster import AgglomerativeClustering

from algorithms.core.contract import Combined, Mean, Slice
from algorithms.core.stack import COLUMNS, Stack
from algorithms.means.credit import Credit
from algorithms.means.gra import GroupwiseRobust, weighted_median
from algorithms.means.irls import ResidualReweighting
from algorithms.means.krum import Krum, MultiKrum
from algorithms.means.median import Median, TrimmedMean
from algorithms.means.weighted import UniformMean, WeightedMean
from algorithms.registry import make_algorithm, read_algorithm
from wire.errors import ConfigError
from wire.tensors import Array

MEANS: list[Mean] = [
    WeightedMean(),
    UniformMean(),
    Median(),
    TrimmedMean(),
    TrimmedMean(share=0.4),
    Krum(),
    MultiKrum(),
    Credit(),
    ResidualReweighting(),
    GroupwiseRobust(),
]
ROBUST: list[Mean] = [Median(), TrimmedMean(share=0.2), Krum(), MultiKrum(), Credit(), ResidualReweighting(), GroupwiseRobust()]
SIZE = 24
LAYOUT = [
    Slice("shared/conv.weight", 0, 12, (2, 2, 3)),
    Slice("shared/head.weight", 12, 20, (4, 2)),
    Slice("statistic/norm.running_mean", 20, 24, (4,)),
]
ALL_CONVOLUTION = [Slice("shared/conv.weight", 0, SIZE, (4, 2, 3))]


def by_name(mean: Mean) -> str:
    return f"{mean.name}{vars(mean) or ''}"


many = settings(deadline=None, max_examples=50)
each_mean = pytest.mark.parametrize("mean", MEANS, ids=by_name)
each_robust = pytest.mark.parametrize("mean", ROBUST, ids=by_name)


def models(num: int, seed: int, size: int = SIZE, spread: float = 0.3) -> Array:
    """Models that differ by `spread` around one that they share."""
    rng = np.random.default_rng(seed)
    return (rng.normal(size=size) + spread * rng.normal(size=(num, size))).astype(np.float32)


def combine(mean: Mean, stack: Array, counts: Array | None = None, layout: list[Slice] = LAYOUT) -> Combined:
    return mean.combine(Stack(stack), np.full(len(stack), 10) if counts is None else counts, layout, 0)


class TestEveryMean:
    @each_mean
    @many
    @given(num=st.integers(1, 12), seed=st.integers(0, 1000), scale=st.sampled_from([1e-30, 1.0, 1e30]))
    def test_does_not_depend_on_the_order(self, mean: Mean, num: int, seed: int, scale: float) -> None:
        stack = (models(num, seed) * scale).astype(np.float32)
        rng = np.random.default_rng(seed)
        counts, order = rng.integers(1, 100, num), rng.permutation(num)
        one, two = combine(mean, stack, counts), combine(mean, stack[order], counts[order])
        assert np.abs(one.flat / scale - two.flat / scale).max() < 1e-5
        assert one.weights[order] == pytest.approx(two.weights, abs=1e-6, nan_ok=True)

    @each_mean
    @many
    @given(num=st.integers(1, 12), seed=st.integers(0, 1000))
    def test_is_deterministic(self, mean: Mean, num: int, seed: int) -> None:
        stack = models(num, seed)
        assert np.array_equal(combine(mean, stack).flat, combine(mean, stack.copy()).flat)

    @each_mean
    @many
    @given(data=st.data(), num=st.integers(1, 9))
    def test_stays_finite_whatever_comes(self, mean: Mean, data: st.DataObject, num: int) -> None:
        values = st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-45, 1e-7, 3e38, -3.4e38, float(np.finfo(np.float32).max)])
        stack = np.array(data.draw(st.lists(values, min_size=num * SIZE, max_size=num * SIZE)), np.float32).reshape(num, SIZE)
        made = combine(mean, stack, np.array(data.draw(st.lists(st.integers(0, 2**53), min_size=num, max_size=num))))
        assert made.flat.dtype == np.float32
        assert made.flat.shape == (SIZE,)
        assert np.isfinite(made.flat).all()
        assert made.weights.shape == (num,)
        assert np.isnan(made.weights).all() or (made.weights.sum() == pytest.approx(1) and (made.weights >= 0).all())

    @each_mean
    def test_of_one_model_is_that_model(self, mean: Mean) -> None:
        stack = models(1, 0)
        assert np.array_equal(combine(mean, stack).flat, stack[0])

    @each_mean
    def test_of_two_models_is_their_mean(self, mean: Mean) -> None:
        stack = models(2, 0)
        assert combine(mean, stack).flat == pytest.approx(stack.astype(np.float64).mean(0), rel=1e-6)

    @each_mean
    @many
    @given(num=st.integers(1, 12))
    def test_of_equal_models_is_that_model(self, mean: Mean, num: int) -> None:
        stack = np.repeat(models(1, 3), num, axis=0)
        assert combine(mean, stack).flat == pytest.approx(stack[0], rel=1e-6)

    @each_mean
    def test_columns_are_taken_in_blocks(self, mean: Mean) -> None:
        """A model of more than one block has in every parameter what the same parameters have on their own, where columns are apart."""
        stack = models(7, 1, size=COLUMNS + SIZE)
        whole = combine(mean, stack, layout=[Slice("shared/w", 0, COLUMNS + SIZE, (COLUMNS + SIZE,))])
        assert np.isfinite(whole.flat).all()
        if mean.name in ("weighted", "uniform", "median", "trimmed"):
            assert np.array_equal(whole.flat[-SIZE:], combine(mean, stack[:, -SIZE:]).flat)

    @each_robust
    @many
    @given(seed=st.integers(0, 1000), power=st.floats(3, 37), sign=st.sampled_from([-1.0, 1.0]))
    def test_few_attackers_move_it_little_however_large_their_values(self, mean: Mean, seed: int, power: float, sign: float) -> None:
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
        assert made.flat == pytest.approx(np.average(stack.astype(np.float64), axis=0, weights=counts), rel=1e-6)
        assert made.weights == pytest.approx(counts / 115)

    def test_uniform_ignores_examples(self) -> None:
        stack = models(5, 0)
        made = combine(UniformMean(), stack, np.array([1, 5, 2, 100, 7]))
        assert made.flat == pytest.approx(stack.astype(np.float64).mean(0), rel=1e-6)
        assert made.weights == pytest.approx(np.full(5, 0.2))


class TestMedianAndTrimmedMean:
    @many
    @given(num=st.integers(1, 20), seed=st.integers(0, 1000))
    def test_equal_numpy_and_scipy(self, num: int, seed: int) -> None:
        stack = models(num, seed)
        assert np.array_equal(combine(Median(), stack).flat, np.median(stack.astype(np.float64), axis=0).astype(np.float32))
        for share in (0.0, 0.1, 0.25, 0.49):
            expected = trim_mean(stack.astype(np.float64), share, axis=0)
            assert combine(TrimmedMean(share=share), stack).flat == pytest.approx(expected, rel=1e-6)

    def test_share_is_taken_as_written(self) -> None:
        """0.29 * 100 is 28.999... in floating point."""
        stack = np.zeros((100, 1), np.float32)
        stack[:29] = 100.0
        assert combine(TrimmedMean(share=0.29), stack).flat[0] == 0

    @pytest.mark.parametrize("share", [-0.1, 0.5, math.nan])
    def test_refuses_a_share_that_leaves_nothing(self, share: float) -> None:
        with pytest.raises(ConfigError, match=r"expected at least 0 and less than 0\.5"):
            TrimmedMean(share=share)


def slow_krum_scores(stack: Array, attackers: int) -> list[float]:
    rows = stack.astype(np.float64)
    scores = []
    for i in range(len(rows)):
        distances = sorted(float(((rows[i] - rows[j]) ** 2).sum()) for j in range(len(rows)) if j != i)
        scores.append(sum(distances[: max(len(rows) - attackers - 2, 1)]))
    return scores


class TestKrum:
    @many
    @given(num=st.integers(4, 15), seed=st.integers(0, 1000), asked=st.none() | st.integers(0, 20))
    def test_equals_the_paper(self, num: int, seed: int, asked: int | None) -> None:
        stack = models(num, seed)
        most = (num - 3) // 2
        attackers = most if asked is None else min(asked, most)
        scores = slow_krum_scores(stack, attackers)
        made = combine(Krum(num_attackers=asked), stack)
        assert np.array_equal(made.flat, stack[int(np.argmin(scores))])
        assert made.weights.argmax() == np.argmin(scores)
        for m in (None, 1, 3, 100):
            best = np.argsort(scores)[: m or num - attackers]
            made = combine(MultiKrum(num_attackers=asked, num_selected=m), stack)
            assert made.flat == pytest.approx(stack[best].astype(np.float64).mean(0), rel=1e-5, abs=1e-6)
            assert set(np.flatnonzero(made.weights)) == set(best)

    def test_of_three_averages_the_closest_two(self) -> None:
        stack = np.array([[0, 0], [5, 5], [1, 0]], np.float32)
        assert combine(Krum(), stack, layout=[]).flat.tolist() == [0.5, 0]

    @many
    @given(num=st.integers(5, 25), seed=st.integers(0, 1000), size=st.floats(-30, 30))
    def test_as_many_attackers_as_it_is_made_for_are_left_out(self, num: int, seed: int, size: float) -> None:
        stack = models(num, seed)
        attackers = (num - 3) // 2
        stack[:attackers] = stack[:attackers] * 10 + 20 * np.sign(size) + size
        for mean in (Krum(), MultiKrum()):
            assert not combine(mean, stack).weights[:attackers].any()

    def test_models_far_from_zero_are_told_apart(self) -> None:
        stack = models(7, 0, spread=1e-4) + np.float32(100)
        scores = slow_krum_scores(stack, 2)
        assert np.array_equal(combine(Krum(), stack).flat, stack[int(np.argmin(scores))])

    def test_refuses_impossible_options(self) -> None:
        with pytest.raises(ConfigError, match="-1 attackers: expected 0 or more"):
            Krum(num_attackers=-1)
        with pytest.raises(ConfigError, match="0 models: expected 1 or more"):
            MultiKrum(num_selected=0)
        for name in ("krum:num_attackers=1.5", "multi-krum:num_selected=1.5"):
            with pytest.raises(ConfigError, match="a whole number"):
                make_algorithm(read_algorithm(name))
        assert make_algorithm(read_algorithm("krum:num_attackers=2")).mean.attackers(9) == 2  # type: ignore[attr-defined]


def slow_credit(stack: Array, counts: Array, components: int, power: float) -> Array:
    rows = stack.astype(np.float64)
    half = len(rows) // 2 + 1
    trusted = set(np.argsort(((rows - np.median(rows, axis=0)) ** 2).sum(1))[:half].tolist())
    for _ in range(10 if half > 2 else 1):
        errors = []
        for i, row in enumerate(rows):
            seen = rows[sorted(trusted - {i})]
            _, _, axes = np.linalg.svd(seen - seen.mean(0))
            code = axes[: min(components, len(seen) - 1)]
            errors.append(float(np.linalg.norm(row - seen.mean(0) - code.T @ (code @ (row - seen.mean(0))))))
        better = set(np.argsort(errors)[:half].tolist())
        if better == trusted:
            break
        trusted = better
    weights = np.array([min(1.0, (np.median(errors) / e) ** power) for e in errors]) * counts
    return weights / weights.sum()


class TestCredit:
    @many
    @given(num=st.integers(3, 14), seed=st.integers(0, 1000), components=st.integers(0, 4), power=st.sampled_from([1.0, 2.0, 5.0]))
    def test_equals_an_auto_encoder_in_full_coordinates(self, num: int, seed: int, components: int, power: float) -> None:
        stack, counts = models(num, seed), np.random.default_rng(seed).integers(1, 50, num)
        made = combine(Credit(num_components=components, power=power), stack, counts)
        expected = slow_credit(stack[:, :12], counts, components, power)
        assert made.weights == pytest.approx(expected, rel=1e-6)
        assert made.flat == pytest.approx(expected @ stack.astype(np.float64), rel=1e-5, abs=1e-6)

    def test_attackers_that_agree_with_each_other_are_left_out(self) -> None:
        """They are the first principal component of all models: an auto-encoder that had seen them would rebuild them best."""
        stack = models(20, 0, size=200)
        stack[:8] += 50 * models(1, 9, size=200)
        weights = combine(Credit(), stack, layout=[]).weights
        assert weights[:8].max() < 1e-4 < 0.04 < weights[8:].min()

    def test_many_models_do_without_leaving_out(self) -> None:
        stack = models(160, 0, size=200)
        stack[:30] += 50
        weights = combine(Credit(), stack, layout=[]).weights
        assert weights[:30].max() < 1e-5 < 0.004 < weights[30:].min()

    def test_looks_at_convolutions_only(self) -> None:
        stack = models(8, 0)
        changed = stack.copy()
        changed[0, 12:] += 1000
        assert np.array_equal(combine(Credit(), stack).weights, combine(Credit(), changed).weights)
        assert combine(Credit(), changed, layout=[]).weights[0] < 1e-4

    def test_refuses_impossible_options(self) -> None:
        with pytest.raises(ConfigError, match="-1 components"):
            Credit(num_components=-1)
        with pytest.raises(ConfigError, match=r"power 0\.5: expected 1 or more"):
            Credit(power=0.5)


def slow_irls(stack: Array, interval: float, threshold: float) -> tuple[Array, Array]:
    """Parameter by parameter, value by value."""
    num = len(stack)
    corrected, total = stack.astype(np.float64), np.zeros(num)
    ranks = np.arange(num)
    hat = np.column_stack([np.ones(num), ranks])
    leverage = np.diag(hat @ np.linalg.inv(hat.T @ hat) @ hat.T)
    for column in range(stack.shape[1]):
        order = np.argsort(stack[:, column])
        y = stack[order, column].astype(np.float64)
        slope = siegelslopes(y, ranks).slope
        line = np.median(y) + slope * (ranks - (num - 1) / 2)
        residuals = y - line
        scale = 1.4826 * (1 + 5 / (num - 1)) * np.median(sorted(np.abs(residuals))[1:]) + 1e-7
        width = interval * math.sqrt(2 / num)
        confidence = np.empty(num)
        for k in range(num):
            e, s = residuals[k] / scale, math.sqrt(1 - leverage[k])
            confidence[k] = 1.0 if e == 0 else s / e * max(-width, min(width, e / s))
            if confidence[k] < threshold:
                corrected[order[k], column] = line[k]
        total[order] += confidence * confidence.std(ddof=1)
    weights = (total / total.max()) ** 2
    return (weights / weights.sum()) @ corrected, weights / weights.sum()


class TestResidualReweighting:
    @many
    @given(num=st.integers(3, 12), seed=st.integers(0, 1000), attackers=st.integers(0, 3), threshold=st.sampled_from([0.0, 0.1, 0.6]))
    def test_equals_the_paper(self, num: int, seed: int, attackers: int, threshold: float) -> None:
        stack = models(num, seed)
        stack[:attackers] *= 30
        expected, weights = slow_irls(stack, 2.0, threshold)
        made = combine(ResidualReweighting(threshold=threshold), stack)
        assert made.weights == pytest.approx(weights, rel=1e-5, abs=1e-9)
        assert made.flat == pytest.approx(expected, rel=1e-4, abs=1e-5)

    def test_attackers_count_little(self) -> None:
        stack = models(20, 0, size=300)
        stack[:8] += 20
        weights = combine(ResidualReweighting(), stack).weights
        assert weights[:8].max() < 0.01 * weights[8:].min()

    @many
    @given(seed=st.integers(0, 1000), num=st.integers(3, 10))
    def test_equal_values_count_the_same_in_any_order(self, seed: int, num: int) -> None:
        rng = np.random.default_rng(seed)
        stack, order = rng.integers(0, 3, (num, SIZE)).astype(np.float32), rng.permutation(num)
        one, two = combine(ResidualReweighting(), stack), combine(ResidualReweighting(), stack[order])
        assert one.weights[order] == pytest.approx(two.weights, abs=1e-9)
        assert one.flat == pytest.approx(two.flat, abs=1e-6)

    def test_refuses_impossible_options(self) -> None:
        with pytest.raises(ConfigError, match="interval 0: expected more than 0"):
            ResidualReweighting(interval=0)
        with pytest.raises(ConfigError, match="threshold 1: expected at least 0 and less than 1"):
            ResidualReweighting(threshold=1)


def slow_weighted_median(values: list[float], weights: list[int]) -> float:
    return float(np.median([v for v, w in zip(values, weights, strict=True) for _ in range(w)]))


class TestGroupwise:
    @many
    @given(seed=st.integers(0, 1000), weights=st.lists(st.integers(1, 9), min_size=1, max_size=7))
    def test_weighted_median_is_the_median_of_repeated_values(self, seed: int, weights: list[int]) -> None:
        values = np.random.default_rng(seed).integers(-3, 3, (len(weights), 5)).astype(np.float64)
        expected = [slow_weighted_median(list(column), weights) for column in values.T]
        assert weighted_median(values, np.array(weights)).tolist() == expected

    @many
    @given(num=st.integers(6, 15), seed=st.integers(0, 1000), groups=st.integers(2, 4))
    def test_equals_scikit_learn_and_loops(self, num: int, seed: int, groups: int) -> None:
        stack = models(num, seed)
        labels = AgglomerativeClustering(min(groups, num // 3)).fit_predict(stack.astype(np.float64))
        sizes = [int((labels == g).sum()) for g in range(labels.max() + 1)]
        centres = [np.median(stack[labels == g].astype(np.float64), axis=0) for g in range(labels.max() + 1)]
        expected = [slow_weighted_median([c[d] for c in centres], sizes) for d in range(SIZE)]
        assert combine(GroupwiseRobust(num_groups=groups), stack).flat == pytest.approx(np.array(expected, np.float32), rel=1e-6)

    @many
    @given(seed=st.integers(0, 1000), shift=st.floats(0, 100), num=st.integers(5, 20))
    def test_less_than_a_quarter_of_attackers_stay_within_honest_values(self, seed: int, shift: float, num: int) -> None:
        stack = models(num, seed)
        attackers = (num - 1) // 4
        stack[:attackers] += np.float32(shift)
        made = combine(GroupwiseRobust(), stack).flat
        assert (made >= stack[attackers:].min(0)).all()
        assert (made <= stack[attackers:].max(0)).all()

    def test_a_minority_that_is_a_group_has_no_say(self) -> None:
        stack = models(20, 0)
        stack[:8] += 50
        assert (np.abs(combine(GroupwiseRobust(num_groups=2), stack).flat - np.median(stack[8:], axis=0)) < 1e-6).all()

    def test_refuses_impossible_options(self) -> None:
        with pytest.raises(ConfigError, match="0 groups: expected 1 or more"):
            GroupwiseRobust(num_groups=0)
