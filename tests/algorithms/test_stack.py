"""The passes over models against plain numpy, whichever rows are taken, in numpy and in torch."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from algorithms.core.contract import Mean
from algorithms.core.stack import COLUMNS, ROWS, Stack, column_blocks, each
from algorithms.means.streaming import LEVELS, StreamingMean
from algorithms.means.weighted import UniformMean, WeightedMean, shares
from host.native.arithmetic import NativeArithmetic, weighted_sum
from tests.algorithms.mean_cases import LAYOUT, MEANS, SIZE, by_name, models
from wire.arrays.tensors import Array


def error_of(found: Array, rows: Array, weights: Array) -> float:
    """The largest error of a weighted sum, in units of the sum of what was added."""
    exact = rows.astype(np.float64)
    return float(np.max(np.abs(found - weights @ exact) / (weights @ np.abs(exact) + 1e-300)))


def draw(seed: int, num: int, taken: int, size: int) -> tuple[Array, Array]:
    """An arena and the places of some of its rows."""
    rng = np.random.default_rng(seed)
    arena = (rng.normal(size=(num, size)) * 10.0 ** rng.integers(-3, 3, (num, 1))).astype(
        np.float32
    )
    return arena, np.sort(rng.permutation(num)[:taken])


class TestStack:
    @given(seed=st.integers(0, 1000), num=st.integers(1, 3 * ROWS), share=st.floats(0.01, 1))
    def test_weighted_sum_is_off_by_less_than_a_millionth(
        self, seed: int, num: int, share: float
    ) -> None:
        arena, rows = draw(seed, num, max(1, round(share * num)), 50)
        weights = shares(np.random.default_rng(seed).integers(1, 10**6, len(rows)))
        assert error_of(Stack(arena, rows).weighted_sum(weights), arena[rows], weights) < 1e-6

    @pytest.mark.parametrize("rows", [None, np.arange(1, 150, 2)], ids=["all", "every other"])
    def test_weighted_sum_of_models_wider_than_a_block(self, rows: Array | None) -> None:
        arena, _ = draw(0, 150, 1, 2 * COLUMNS + 5)
        taken = arena if rows is None else arena[rows]
        weights = shares(np.arange(1, len(taken) + 1))
        assert error_of(Stack(arena, rows).weighted_sum(weights), taken, weights) < 1e-6

    @given(
        seed=st.integers(0, 1000),
        num=st.integers(1, 2 * ROWS),
        share=st.floats(0.01, 1),
        low=st.integers(0, 20),
        more=st.integers(1, 20),
    )
    def test_ranks_equal_numpy(
        self, seed: int, num: int, share: float, low: int, more: int
    ) -> None:
        arena, rows = draw(seed, num, max(1, round(share * num)), 30)
        low = min(low, len(rows) - 1)
        ordered = np.sort(arena[rows].astype(np.float64), axis=0)
        assert Stack(arena, rows).mean_of_ranks(low, low + more) == pytest.approx(
            ordered[low : low + more].mean(0), rel=1e-12, abs=1e-12
        )
        assert np.array_equal(
            Stack(arena, rows).median(), np.median(arena[rows].astype(np.float64), axis=0)
        )

    @given(
        seed=st.integers(0, 1000),
        num=st.integers(1, 20),
        taken=st.integers(1, 20),
        masked=st.booleans(),
    )
    def test_gram_equals_numpy(self, seed: int, num: int, taken: int, masked: bool) -> None:
        arena, rows = draw(seed, num, min(taken, num), COLUMNS + 20)
        within = np.zeros(COLUMNS + 20, bool)
        within[5:17] = True
        exact = arena[rows].astype(np.float64)
        off = (exact - np.median(exact, axis=0))[:, within if masked else slice(None)]
        found = Stack(arena, rows).gram(within if masked else None)
        assert found == pytest.approx(off @ off.T, rel=1e-9, abs=1e-9 * np.abs(off @ off.T).max())

    def test_a_part_of_a_part_is_the_rows_of_both(self) -> None:
        arena, _ = draw(0, 12, 1, 4)
        some = Stack(arena).part(np.array([1, 3, 4, 9])).part(np.array([1, 3]))
        assert np.array_equal(some.median(), arena[[3, 9]].astype(np.float64).mean(0))
        assert len(some) == 2

    def test_rows_side_by_side_are_not_copied(self) -> None:
        arena, _ = draw(0, 12, 1, 4)
        assert np.shares_memory(Stack(arena, np.arange(3, 7)).tile(0, 4, slice(0, 4)), arena)

    def test_blocks_are_worked_on_in_order_on_any_number_of_threads(self) -> None:
        before = torch.get_num_threads()
        arena, _ = draw(0, 200, 1, 5000)
        try:
            one = Stack(arena).median()
            torch.set_num_threads(3)
            assert each(lambda block: block.start, column_blocks(100, 7)) == list(range(0, 100, 7))
            assert np.array_equal(Stack(arena).median(), one)
        finally:
            torch.set_num_threads(before)


DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(
            not torch.cuda.is_available(), reason="torch finds no CUDA device"
        ),
    ),
]


@pytest.mark.representatives("all-weighted-cpu", "all-median-cpu")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mean", MEANS, ids=by_name)
@pytest.mark.parametrize("rows", [np.arange(20), np.arange(0, 20, 3)], ids=["all", "some"])
def test_every_mean_combines_torch_tensors_as_it_does_arrays(
    mean: Mean, device: str, rows: Array
) -> None:
    arena, counts = models(20, 5), np.arange(1, len(rows) + 1)
    tensor = torch.from_numpy(arena).to(device)
    one = mean.combine(Stack(arena, rows), counts, LAYOUT, 0)
    two = mean.combine(Stack(tensor, rows), counts, LAYOUT, 0)
    assert two.flat == pytest.approx(one.flat, rel=1e-5, abs=1e-6)
    # distances are float32
    rel = 1e-5 if mean.name == "robust" else 1e-9
    assert two.weights == pytest.approx(one.weights, rel=rel, abs=1e-12, nan_ok=True)


class TestNativeSum:
    @given(
        seed=st.integers(0, 1000),
        num=st.integers(1, 90),
        width=st.integers(1, 9000),
        taken=st.integers(1, 90),
    )
    def test_it_is_the_sum_over_rows_and_columns_asked_for(
        self, seed: int, num: int, width: int, taken: int
    ) -> None:
        rng = np.random.default_rng(seed)
        arena, rows = (
            rng.standard_normal((num, width), np.float32),
            np.flatnonzero(rng.integers(0, 90, num) < taken),
        )
        weights = rng.random(len(rows)).astype(np.float32)
        first, last = sorted(rng.integers(0, width, 2, endpoint=True).tolist())
        total = np.ones(width)
        weighted_sum(arena, rows, weights)(total, slice(first, last))
        expected = np.ones(width)
        expected[first:last] += (weights.astype(np.float64) @ arena[rows].astype(np.float64))[
            first:last
        ]
        assert np.abs(total - expected).max() <= 1e-6 * max(
            1.0, float(np.abs(arena[rows]).sum(0).max(initial=0.0))
        )

    def test_a_stack_is_summed_by_it_or_without_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rng = np.random.default_rng(0)
        arena, rows, weights = (
            rng.standard_normal((50, 10_001), np.float32),
            np.arange(0, 50, 3),
            rng.random(17),
        )
        blas = Stack(arena, rows).weighted_sum(weights)
        monkeypatch.setattr("algorithms.core.stack.ASKED_FROM", 0)
        native = Stack(arena, rows, NativeArithmetic()).weighted_sum(weights)
        assert native == pytest.approx(blas, rel=1e-6, abs=1e-6)
        for threads in (1, 3):
            monkeypatch.setattr(
                "algorithms.core.stack.torch.get_num_threads", lambda threads=threads: threads
            )
            assert (
                Stack(arena, rows, NativeArithmetic()).weighted_sum(weights).tobytes()
                == native.tobytes()
            )
        monkeypatch.setenv("CXX", "/no/such/compiler")
        assert (
            Stack(arena, rows, NativeArithmetic()).weighted_sum(weights).tobytes() == blas.tobytes()
        )


class TestStreaming:
    @given(
        seed=st.integers(0, 1000), num=st.integers(1, 30), most=st.sampled_from([0, 1, 100, 2**53])
    )
    def test_equals_the_mean_over_an_arena(self, seed: int, num: int, most: int) -> None:
        stack, counts = (
            models(num, seed),
            np.random.default_rng(seed).integers(0, most, num, endpoint=True),
        )
        weighted, uniform, buffer = (
            StreamingMean(SIZE),
            StreamingMean(SIZE),
            np.empty(SIZE, np.float32),
        )
        for row, count in zip(stack, counts.tolist(), strict=True):
            buffer[...] = row  # one buffer for all: nothing of a model is kept
            weighted.add(buffer, count)
            uniform.add(buffer, 1)
        for mean, streamed in ((WeightedMean(), weighted), (UniformMean(), uniform)):
            made = mean.combine(Stack(stack), counts, LAYOUT, 0)
            assert error_of(streamed.result(), stack, made.weights) < 1e-7
            assert streamed.result() == pytest.approx(made.flat, rel=1e-6, abs=1e-6)

    @given(
        seed=st.integers(0, 1000),
        num=st.integers(1, 60),
        level=st.integers(0, LEVELS),
        without=st.floats(0, 1),
    )
    def test_bits_do_not_depend_on_where_branches_are_summed_up(
        self, seed: int, num: int, level: int, without: float
    ) -> None:
        rng = np.random.default_rng(seed)
        stack, counts = models(num, seed), rng.integers(0, 100, num) * (rng.random(num) >= without)
        places = np.sort(rng.integers(0, 2**LEVELS, num))
        here, there = StreamingMean(SIZE), StreamingMean(SIZE)
        for first in range(0, 2**LEVELS, 2**level):
            part = StreamingMean(SIZE)
            mine = np.flatnonzero((places >= first) & (places < first + 2**level))
            for i in mine:
                here.add(stack[i], int(counts[i]), int(places[i]))
                part.add(stack[i], int(counts[i]), int(places[i]))
            if len(mine):
                there.join(part.branch(level))
        assert here.result().tobytes() == there.result().tobytes()
        assert here.branch().weight == counts.sum()

    def test_places_ascend(self) -> None:
        mean = StreamingMean(SIZE)
        mean.add(models(1, 0)[0], 1, 7)
        with pytest.raises(ValueError, match="place 3 after place 7"):
            mean.add(models(1, 0)[0], 1, 3)
        mean.add(models(1, 0)[0], 1, 8)
        with pytest.raises(ValueError, match="not within one branch of level 2"):
            mean.branch(2)

    def test_of_one_model_is_that_model(self) -> None:
        mean = StreamingMean(SIZE)
        mean.add(models(1, 0)[0], 7)
        assert np.array_equal(mean.result(), models(1, 0)[0])

    def test_of_nothing_is_an_error(self) -> None:
        with pytest.raises(ValueError, match="the mean of no models"):
            StreamingMean(3).result()
