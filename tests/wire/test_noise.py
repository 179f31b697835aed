"""Noise in shares: its distribution, rounding that keeps the norm, and the guarantee of a sum."""

import functools
import math
import re
import secrets
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import chisquare

from edge_client.core.sums import integers_of
from wire.arrays.tensors import Array
from wire.codec import decode, encode
from wire.errors import Malformed
from wire.secret.noise import discrete_gaussian, rounded_norm, rounded_within
from wire.secret.question import LEAST_DEVIATION, REACH, Noise, Part, SumQuestion

QUESTION = SumQuestion(
    "a" * 64, {"b": Part(30, 2.0), "a": Part(20, 2.0)}, 32, 10, 5, ("b" * 64,), 0.0
)


def chances(deviation: float, reach: int) -> Array:
    """The probabilities of the integers from -reach to reach, by the definition."""
    weights = [math.exp(-((k / deviation) ** 2) / 2) for k in range(-reach, reach + 1)]
    return np.array(weights) / math.fsum(weights)


def renyi(p: Array, q: Array, order: int) -> float:
    """The Rényi divergence of two distributions on the same integers."""
    both = (p > 0) & (q > 0)
    return float(logsumexp(order * np.log(p[both]) - (order - 1) * np.log(q[both])) / (order - 1))


@pytest.mark.parametrize("deviation", [LEAST_DEVIATION, 57.3, 900.0])
def test_integers_are_those_of_the_discrete_gaussian(deviation: float) -> None:
    count, rng = 200_000, np.random.default_rng(int(deviation))
    drawn = discrete_gaussian(deviation, count, rng.bytes)
    edges = np.linspace(-3 * deviation, 3 * deviation, 24).round()
    reach = math.ceil(REACH * deviation)
    expected = chances(deviation, reach)
    cells = np.searchsorted(edges, np.arange(-reach, reach + 1), side="right")
    observed = np.bincount(np.searchsorted(edges, drawn, side="right"), minlength=25)
    wanted = np.bincount(cells, weights=expected, minlength=25) * count
    assert chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue > 1e-4
    assert drawn.std() == pytest.approx(deviation, rel=0.01)


def test_the_least_and_the_largest_random_numbers_are_the_ends() -> None:
    for bits, sign in ((b"\x00", -1), (b"\xff", 1)):
        drawn = discrete_gaussian(4.0, 1, bits.__mul__)
        assert drawn[0] * sign in range(8 * 4, REACH * 4 + 1)


@pytest.mark.parametrize("devices", [1, 2, 5])
@pytest.mark.parametrize("moved", [1, 3])
def test_a_sum_of_shares_hides_what_one_discrete_gaussian_hides(devices: int, moved: int) -> None:
    one = chances(LEAST_DEVIATION, 140)  # of 35 deviations, as far as a float goes
    total = functools.reduce(np.convolve, [one] * devices)
    apart, beside = np.pad(total, (moved, 0)), np.pad(total, (0, moved))
    for order in (2, 4, 8):
        # that of Gaussians of the same variance, from which the accounting comes
        bound = order * moved**2 / (2 * devices * LEAST_DEVIATION**2)
        assert renyi(apart, beside, order) == pytest.approx(bound, rel=1e-6)


def test_a_clip_near_0_is_answered_as_well() -> None:
    parts = {"a": Part(3, 1e-320), "b": Part(2, 1.0)}
    question = msgspec.structs.replace(QUESTION, parts=parts, noise=Noise(100.0, 4.0))
    numbers = {"a": np.zeros(3, np.float32), "b": np.full(2, 0.5, np.float32)}
    rng = np.random.default_rng(0)
    integers = integers_of(question, numbers, rng.bytes)
    assert np.abs(np.concatenate([*integers.values()]).view("<i4")).max() < 100


@given(seed=st.integers(0, 10_000), count=st.integers(1, 400), length=st.floats(1e-3, 1e4))
def test_rounding_keeps_the_norm(seed: int, count: int, length: float) -> None:
    rng = np.random.default_rng(seed)
    numbers = rng.normal(size=count)
    numbers *= length / np.linalg.norm(numbers)
    rounded = rounded_within(numbers, norm=20.0, draw=rng.bytes)
    assert rounded.dtype == np.int64
    assert np.linalg.norm(rounded) <= rounded_norm(20.0, count)
    shortened = numbers * min(1.0, 20.0 / length)
    assert np.abs(rounded - shortened).max() <= 1 + 1e-9


def test_rounding_is_right_in_the_mean() -> None:
    numbers = np.random.default_rng(0).normal(size=500)
    rounds = [rounded_within(numbers, 100.0, secrets.token_bytes) for _ in range(2000)]
    assert np.abs(np.mean(rounds, axis=0) - numbers).max() < 6 * 0.5 / math.sqrt(2000)


def test_all_parts_together_have_the_norm_and_each_number_has_noise() -> None:
    noise = Noise(norm=400.0, deviation=50.0)
    question = msgspec.structs.replace(QUESTION, noise=noise)
    numbers = {"b": np.full(30, 9.0, np.float32), "a": np.full(20, -9.0, np.float32)}
    totals = {name: np.zeros(part.count) for name, part in question.parts.items()}
    draws = 400
    for _ in range(draws):
        for name, integers in integers_of(question, numbers, secrets.token_bytes).items():
            assert integers.dtype == np.dtype("<u4")
            totals[name] += integers.view("<i4")
    each = 400.0 / math.sqrt(50)  # shortened to the norm, and equal in all numbers
    within = 6 * 50.0 / math.sqrt(draws)
    assert np.abs(totals["b"] / draws - each).max() < within
    assert np.abs(totals["a"] / draws + each).max() < within
    decoded = question.fixed.decode(np.array([400], "<u4"), 2.0)
    assert decoded[0] == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"bits": 16}, "bits must be 32 with noise, got 16"),
        ({"noise": Noise(1e6, 4.0), "most": 10_000}, "of 10000 devices of norm 1e+06"),
        ({"noise": Noise(4.0, 65536.0), "most": 200_000_000}, "must be below 2^31, got 1.01e+10"),
    ],
)
def test_a_sum_that_would_wrap_is_refused(changes: dict[str, Any], problem: str) -> None:
    fields = {"noise": Noise(10.0, 4.0)} | changes
    with pytest.raises(ValueError, match=re.escape(problem)):
        msgspec.structs.replace(QUESTION, **fields)


@pytest.mark.parametrize(
    "noise",
    ['{"norm":0.0,"deviation":4.0}', '{"norm":1.0,"deviation":3.9}', '{"norm":1.0}', "4.0"],
)
def test_noise_of_a_wrong_form_is_refused(noise: str) -> None:
    text = encode(QUESTION).replace(b'"noise":null', f'"noise":{noise}'.encode())
    assert noise.encode() in text
    with pytest.raises(Malformed):
        decode(text, SumQuestion)
