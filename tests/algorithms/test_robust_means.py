"""Robust means against plain, slow references of their papers; which attackers each of them
stands."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import siegelslopes
from sklearn.cluster import AgglomerativeClustering

from algorithms.composition import make_algorithm, read_algorithm
from algorithms.core.contract import Slice
from algorithms.means.credit import Credit
from algorithms.means.gra import GroupwiseRobust, weighted_median
from algorithms.means.irls import ResidualReweighting
from algorithms.means.krum import Krum, MultiKrum
from algorithms.means.robust import RobustMean
from tests.algorithms.mean_cases import LAYOUT, SIZE, combine, models
from wire.arrays.tensors import Array
from wire.errors import ConfigError


def slow_krum_scores(stack: Array, attackers: int) -> list[float]:
    rows = stack.astype(np.float64)
    scores = []
    for i in range(len(rows)):
        distances = sorted(
            float(((rows[i] - rows[j]) ** 2).sum()) for j in range(len(rows)) if j != i
        )
        scores.append(sum(distances[: max(len(rows) - attackers - 2, 1)]))
    return scores


ONE_LAYER = [Slice("delta/head.weight", 0, 2000, (2000,))]


def changes(num: int, liars: int, factor: float, seed: int) -> Array:
    """Changes of devices with a common part, and a part of their own that is as large.

    The first ones lie: each sends the mean change of the honest ones times `factor`.
    """
    rng = np.random.default_rng(seed)
    stack = (1 + rng.normal(size=(num, 2000))).astype(np.float32)
    stack[:liars] = factor * stack[liars:].mean(axis=0)
    return stack


def progress(change: Array) -> float:
    """The step in the direction of the common part, in multiples of it."""
    return float(change.mean())


class TestRobustMean:
    @given(num=st.integers(3, 15), seed=st.integers(0, 1000), reach=st.floats(1, 3))
    def test_is_where_no_device_would_pull_it_farther(
        self, num: int, seed: int, reach: float
    ) -> None:
        """At the fixed point, pulls within `reach` median distances cancel with the others'."""
        stack = models(num, seed)
        combined = combine(RobustMean(reach=reach), stack)
        weights = np.ones(num)
        for columns in (slice(0, 20), slice(20, 24)):
            rows = stack[:, columns].astype(np.float64)
            distances = np.linalg.norm(rows - combined.flat[columns], axis=1)
            limit = reach * np.median(distances)
            weights = np.minimum(weights, np.minimum(1, limit / np.maximum(distances, 1e-12)) ** 2)
        assert combined.weights == pytest.approx(weights / weights.sum(), abs=0.03)
        assert combined.flat == pytest.approx(combined.weights @ stack, abs=1e-5)

    @given(seed=st.integers(0, 1000), num=st.integers(5, 12))
    def test_being_louder_gains_nothing(self, seed: int, num: int) -> None:
        stack, moved = models(num, seed), []
        honest = stack[1:].mean(0)
        for loudness in (3.0, 10.0, 100.0, 1e6):
            stack[0] = honest - loudness * 0.3 * math.sqrt(SIZE) * np.sign(honest)
            moved.append(float(np.linalg.norm(combine(RobustMean(), stack).flat - honest)))
        assert moved[1] < 1.0
        assert moved[3] <= moved[2] + 0.05 <= moved[1] + 0.1

    def test_statistics_far_out_count_against_a_model_of_usual_weights_and_the_reverse(
        self,
    ) -> None:
        stack = models(7, 0)
        stack[2, 20:] += 1000
        stack[:, :20] *= 1e-3  # statistics are much larger than weights
        stack[5, :20] += 1
        weights = combine(RobustMean(), stack).weights
        assert weights[2] < 1e-3
        assert weights[5] < 1e-3
        assert np.delete(weights, [2, 5]).min() > 0.1

    def test_honest_devices_count_fully_whatever_number_of_examples_they_claim(self) -> None:
        combined = combine(RobustMean(), models(9, 1, spread=0.1), np.arange(9) * 1000)
        assert combined.weights == pytest.approx(np.full(9, 1 / 9), abs=0.05)


class TestLiarsThatAgree:
    @pytest.mark.parametrize(
        ("liars", "num", "counts"),
        [
            *((2, 5, True), (3, 7, True), (4, 10, True), (8, 20, True)),
            *((1, 5, False), (2, 7, False), (3, 10, False), (7, 20, False)),
        ],
    )
    def test_loud_ones_count_fully_from_two_fifths_of_a_group_on(
        self, liars: int, num: int, counts: bool
    ) -> None:
        combined = combine(RobustMean(), changes(num, liars, -9.0, 0), layout=ONE_LAYER)
        weight = sum(combined.weights[:liars])
        assert weight == pytest.approx(liars / num) if counts else weight < 0.02

    @pytest.mark.parametrize(("liars", "num"), [(1, 10), (3, 10), (4, 10), (3, 7), (2, 20)])
    def test_quiet_ones_count_as_in_an_average(self, liars: int, num: int) -> None:
        combined = combine(RobustMean(), changes(num, liars, -0.3, 0), layout=ONE_LAYER)
        assert sum(combined.weights[:liars]) == pytest.approx(liars / num, abs=0.01)
        step = (num - liars - 0.3 * liars) / num
        assert progress(combined.flat) == pytest.approx(step, abs=0.1)

    @pytest.mark.parametrize("num", [10, 20])
    @pytest.mark.parametrize(("share", "least"), [(0.1, 0.8), (0.2, 0.6), (0.3, 0.2)])
    @pytest.mark.parametrize("factor", [-0.1, -0.3, -0.6, -1.0, -1.5, -2.0, -3.0, -6.0, -9.0])
    def test_of_a_step_this_much_is_left(
        self, num: int, share: float, least: float, factor: float
    ) -> None:
        stack = changes(num, round(share * num), factor, 0)
        assert progress(combine(RobustMean(), stack, layout=ONE_LAYER).flat) > least


class TestKrum:
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
            assert made.flat == pytest.approx(
                stack[best].astype(np.float64).mean(0), rel=1e-5, abs=1e-6
            )
            assert set(np.flatnonzero(made.weights)) == set(best)

    def test_of_three_averages_the_closest_two(self) -> None:
        stack = np.array([[0, 0], [5, 5], [1, 0]], np.float32)
        assert combine(Krum(), stack, layout=[]).flat.tolist() == [0.5, 0]

    @given(num=st.integers(5, 25), seed=st.integers(0, 1000), size=st.floats(-30, 30))
    def test_as_many_attackers_as_it_is_made_for_are_left_out(
        self, num: int, seed: int, size: float
    ) -> None:
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
        with pytest.raises(
            ConfigError, match=r"num_attackers must be a whole number from 0.*, got '-1'"
        ):
            Krum(num_attackers=-1)
        with pytest.raises(
            ConfigError, match=r"num_selected must be a whole number from 1.*, got '0'"
        ):
            MultiKrum(num_selected=0)
        for name in ("krum:num_attackers=1.5", "multi-krum:num_selected=1.5"):
            with pytest.raises(ConfigError, match="a whole number"):
                make_algorithm(read_algorithm(name))
        mean = make_algorithm(read_algorithm("krum:num_attackers=2")).mean
        assert isinstance(mean, Krum)
        assert mean.attackers(9) == 2


def slow_credit(stack: Array, components: int, power: float) -> Array:
    rows = stack.astype(np.float64)
    half = len(rows) // 2 + 1
    trusted = set(np.argsort(((rows - np.median(rows, axis=0)) ** 2).sum(1))[:half].tolist())
    for _ in range(10 if half > 2 else 1):
        errors = []
        for i, row in enumerate(rows):
            seen = rows[sorted(trusted - {i})]
            _, _, axes = np.linalg.svd(seen - seen.mean(0))
            code = axes[: min(components, len(seen) - 1)]
            errors.append(
                float(np.linalg.norm(row - seen.mean(0) - code.T @ (code @ (row - seen.mean(0)))))
            )
        better = set(np.argsort(errors)[:half].tolist())
        if better == trusted:
            break
        trusted = better
    return np.array([min(1.0, (np.median(errors) / e) ** power) for e in errors])


class TestCredit:
    @given(
        num=st.integers(3, 14),
        seed=st.integers(0, 1000),
        components=st.integers(0, 3),
        power=st.sampled_from([1.0, 2.0, 5.0]),
    )
    def test_equals_an_auto_encoder_in_full_coordinates(
        self, num: int, seed: int, components: int, power: float
    ) -> None:
        stack, counts = models(num, seed), np.random.default_rng(seed).integers(1, 50, num)
        made = combine(Credit(num_components=components, power=power), stack, counts)
        credit = [slow_credit(part, components, power) for part in (stack[:, :12], stack[:, 20:])]
        expected = np.minimum(*credit) / np.minimum(*credit).sum()
        assert made.weights == pytest.approx(expected, rel=1e-6)
        assert made.flat == pytest.approx(expected @ stack.astype(np.float64), rel=1e-5, abs=1e-6)

    def test_statistics_that_are_rebuilt_exactly_take_no_credit_away(self) -> None:
        """Four components rebuild four statistics: what is left is rounding, and must not decide
        who counts."""
        stack, weights_only = models(12, 0), LAYOUT[:2]
        seen = [
            combine(Credit(num_components=4), stack, layout=layout).weights
            for layout in (LAYOUT, weights_only)
        ]
        assert seen[0] == pytest.approx(seen[1])

    def test_attackers_that_agree_with_each_other_are_left_out(self) -> None:
        """They are the first principal component of all models: an auto-encoder that had seen them
        would rebuild them best."""
        stack = models(20, 0, size=200)
        stack[:8] += 50 * models(1, 9, size=200)
        weights = combine(Credit(), stack, layout=[]).weights
        assert weights[:8].max() < 1e-4 < 0.04 < weights[8:].min()

    def test_many_models_do_without_leaving_out(self) -> None:
        stack = models(160, 0, size=200)
        stack[:30] += 50
        weights = combine(Credit(), stack, layout=[]).weights
        assert weights[:30].max() < 1e-5 < 0.004 < weights[30:].min()

    def test_looks_at_convolutions_and_statistics_only(self) -> None:
        stack = models(8, 0)
        changed = stack.copy()
        changed[0, 12:20] += 1000
        assert np.array_equal(combine(Credit(), stack).weights, combine(Credit(), changed).weights)
        assert combine(Credit(), changed, layout=[]).weights[0] < 1e-4
        for watched in (0, 20):
            false = stack.copy()
            false[0, watched] += 1000
            assert combine(Credit(), false).weights[0] < 1e-4

    def test_refuses_impossible_options(self) -> None:
        with pytest.raises(
            ConfigError, match="num_components must be a whole number from 0, got '-1'"
        ):
            Credit(num_components=-1)
        with pytest.raises(ConfigError, match=r"power must be a number from 1.*, got '0\.5'"):
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
    # confidences that are alike in every column tell no model apart
    weights = (total / total.max()) ** 2 if total.max() else np.ones(num)
    return (weights / weights.sum()) @ corrected, weights / weights.sum()


class TestResidualReweighting:
    @given(
        num=st.integers(3, 12),
        seed=st.integers(0, 1000),
        attackers=st.integers(0, 3),
        threshold=st.sampled_from([0.0, 0.1, 0.6]),
    )
    @example(num=3, seed=870, attackers=3, threshold=0.0)
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

    @given(seed=st.integers(0, 1000), num=st.integers(3, 10))
    def test_equal_values_count_the_same_in_any_order(self, seed: int, num: int) -> None:
        rng = np.random.default_rng(seed)
        stack, order = rng.integers(0, 3, (num, SIZE)).astype(np.float32), rng.permutation(num)
        one, two = (
            combine(ResidualReweighting(), stack),
            combine(ResidualReweighting(), stack[order]),
        )
        assert one.weights[order] == pytest.approx(two.weights, abs=1e-9)
        assert one.flat == pytest.approx(two.flat, abs=1e-6)

    def test_refuses_impossible_options(self) -> None:
        with pytest.raises(ConfigError, match=r"interval must be a number above 0.*, got '0'"):
            ResidualReweighting(interval=0)
        with pytest.raises(
            ConfigError, match=r"threshold must be a number from 0 below 1.*, got '1'"
        ):
            ResidualReweighting(threshold=1)


def slow_weighted_median(values: list[float], weights: list[int]) -> float:
    return float(np.median([v for v, w in zip(values, weights, strict=True) for _ in range(w)]))


class TestGroupwise:
    @given(seed=st.integers(0, 1000), weights=st.lists(st.integers(1, 9), min_size=1, max_size=7))
    def test_weighted_median_is_the_median_of_repeated_values(
        self, seed: int, weights: list[int]
    ) -> None:
        values = np.random.default_rng(seed).integers(-3, 3, (len(weights), 5)).astype(np.float64)
        expected = [slow_weighted_median(list(column), weights) for column in values.T]
        assert weighted_median(values, np.array(weights)).tolist() == expected

    @given(num=st.integers(6, 15), seed=st.integers(0, 1000), groups=st.integers(2, 4))
    def test_equals_scikit_learn_and_loops(self, num: int, seed: int, groups: int) -> None:
        stack = models(num, seed)
        labels = AgglomerativeClustering(min(groups, num // 3)).fit_predict(
            stack.astype(np.float64)
        )
        sizes = [int((labels == g).sum()) for g in range(labels.max() + 1)]
        centres = [
            np.median(stack[labels == g].astype(np.float64), axis=0)
            for g in range(labels.max() + 1)
        ]
        expected = [slow_weighted_median([c[d] for c in centres], sizes) for d in range(SIZE)]
        assert combine(GroupwiseRobust(num_groups=groups), stack).flat == pytest.approx(
            np.array(expected, np.float32), rel=1e-6
        )

    @given(seed=st.integers(0, 1000), shift=st.floats(0, 100), num=st.integers(5, 20))
    def test_less_than_a_quarter_of_attackers_stay_within_honest_values(
        self, seed: int, shift: float, num: int
    ) -> None:
        stack = models(num, seed)
        attackers = (num - 1) // 4
        stack[:attackers] += np.float32(shift)
        made = combine(GroupwiseRobust(), stack).flat
        assert (made >= stack[attackers:].min(0)).all()
        assert (made <= stack[attackers:].max(0)).all()

    def test_a_minority_that_is_a_group_has_no_say(self) -> None:
        stack = models(20, 0)
        stack[:8] += 50
        assert (
            np.abs(
                combine(GroupwiseRobust(num_groups=2), stack).flat - np.median(stack[8:], axis=0)
            )
            < 1e-6
        ).all()

    def test_refuses_impossible_options(self) -> None:
        with pytest.raises(
            ConfigError, match=r"num_groups must be a whole number from 1.*, got '0'"
        ):
            GroupwiseRobust(num_groups=0)
