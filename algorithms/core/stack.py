"""Models of one layout, one per row, and the three passes over them that all means are made of.

The rows lie in an arena (N, D) that is written once per round; a group's models are some of its
rows, taken a tile at a time and never copied as a whole. The arena is a numpy array, or a torch
tensor on any device with float64: then the passes run there. Sums are made in float64; where
float32 takes part, in the weighted sum, it is over `ROWS` models at a time, and the sum is off by
less than 1e-6 of sum_i weights_i |w_i|. On the processor the weighted sum reads every value once
and is as fast as that where there is a C++ compiler (`host.native.arithmetic`; three times slower
without). Ranks come from sorted blocks of columns, which numpy does with vector instructions:
faster than a selection (numpy's, torch's) for up to thousands of models.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from algorithms.models.reading.layers import Network
from wire.arrays.tensors import Array

ASKED_FROM = 2**22
"""Values of a stack whose sum the arithmetic is asked for: below it, calls cost as much as the
sum."""
ROWS = 32
"""Models that are summed in float32 before the sum goes on in float64."""
COLUMNS = 4096
"""Columns taken at a time. A tile of 32 by 4,096 stays in the cache, and is small enough that BLAS
makes it on one thread: threads take columns instead (`each`), which costs less where other work is
on the machine, and gives the same bits for any number of threads."""
TO_SORT, TO_SORT_ELSEWHERE = 2**18, 2**26
"""Values that are sorted at a time: 1 MB on the processor, 256 MB on another device."""
FEWEST_COLUMNS = 128
"""Columns that are turned at a time, at least: 512 bytes of a row lie side by side in memory."""
LARGEST = float(np.finfo(np.float32).max)

Made = TypeVar("Made")


AddColumns = Callable[[Array, slice], None]
"""Adds a weighted sum over these columns to those of a total (D,) float64. Threads may call it at a
time, each with columns of its own."""


class Arithmetic:
    """The two heaviest computations of the server's half, as a port: whoever runs an algorithm may
    give it a faster machine for them (`host.native.arithmetic`). None says that numpy or torch have
    to do it, as here; they compute the same, within rounding."""

    def column_sums(self, arena: Array, rows: Array, weights: Array) -> AddColumns | None:
        """The weighted sum sum_i weights_i w_i of the rows (N,) of an arena (M, D) float32, C
        order, with weights (N,) float32, made for some columns at a time."""
        return None

    def probabilities(
        self, network: Network, models: Sequence[Mapping[str, Array]], inputs: Array
    ) -> Array | None:
        """Class probabilities (N, z, classes) float32 of N models, tensors by ``shared/NAME`` and
        ``statistic/NAME``, for inputs (z, channels, time) float32."""
        return None


NUMPY = Arithmetic()


class Stack:
    """Models (N, D) float32: the rows of `arena`, or those of them named by `rows`, ascending."""

    def __init__(
        self, arena: Array | Tensor, rows: Array | None = None, arithmetic: Arithmetic = NUMPY
    ) -> None:
        self.arithmetic = arithmetic
        self.arena, self.rows = arena, np.arange(len(arena)) if rows is None else rows
        self.size = int(arena.shape[1])
        first, last = (int(self.rows[0]), int(self.rows[-1])) if len(self.rows) else (0, -1)
        self._together = last - first + 1 == len(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, members: Array) -> "Stack":
        """The models at these places (ascending) as a stack of their own."""
        return Stack(self.arena, self.rows[members], self.arithmetic)

    def tile(self, start: int, stop: int, columns: slice) -> Any:
        """Models `start` to `stop` in these columns: a view where they lie side by side, else a
        copy."""
        taken: Any = (
            slice(int(self.rows[start]), int(self.rows[start]) + stop - start)
            if self._together
            else self.rows[start:stop]
        )
        return self.arena[taken, columns]

    def weighted_sum(self, weights: Array) -> Array:
        """sum_i weights_i w_i, (D,) float32, with shares (N,) that sum to 1."""
        total = self._zeros(self.size)
        factors = self._like_arena(weights.astype(np.float32))
        sums, width = None, COLUMNS
        if not isinstance(self.arena, np.ndarray):
            width = max(self.size, 1)
        elif len(self) * self.size >= ASKED_FROM and self.arena.flags.c_contiguous:
            sums = self.arithmetic.column_sums(self.arena, self.rows, factors)  # where it pays
        if sums is not None:
            width = max(COLUMNS, -(-self.size // torch.get_num_threads()))

        def add(columns: slice) -> None:
            if sums is not None:
                sums(total, columns)
                return
            for start in range(0, len(self), ROWS):
                stop = min(start + ROWS, len(self))
                total[columns] += factors[start:stop] @ self.tile(start, stop, columns)

        each(add, column_blocks(self.size, width))
        return np.asarray(np.clip(as_numpy(total), -LARGEST, LARGEST).astype(np.float32))

    def mean_of_ranks(self, low: int, high: int, within: Array | None = None) -> Array:
        """For each column the mean (D,) float64 of its values from rank `low` (the least has 0) to
        below rank `high`. With a mask `within` (D,) columns outside it may be 0 instead."""
        found = np.zeros(self.size)

        def fold(columns: slice) -> None:
            found[columns] = as_numpy(self._ordered(columns, low, high))

        budget = (
            TO_SORT_ELSEWHERE
            if isinstance(self.arena, Tensor) and self.arena.device.type != "cpu"
            else TO_SORT
        )
        blocks = column_blocks(self.size, max(FEWEST_COLUMNS, budget // max(len(self), 1)), within)
        each(fold, blocks)
        return found

    def median(self, within: Array | None = None) -> Array:
        """The median (D,) float64 of every column; of an even number the mean of the two in the
        middle. `within` as above."""
        return self.mean_of_ranks((len(self) - 1) // 2, len(self) // 2 + 1, within)

    def gram(self, within: Array | None = None) -> Array:
        """Inner products (N, N) float64 of the models' differences from their median, over all
        columns or those of a mask (D,).

        Taken around the median and not the mean, so that a model of enormous values leaves the
        products of all others exact.
        """
        products = self._zeros(len(self), len(self))
        centre = self._like_arena(self.median(within))
        for block in column_blocks(self.size, COLUMNS, within):
            rows = self.tile(0, len(self), block) - centre[block]
            if within is not None and not within[block].all():
                rows = rows[:, self._like_arena(within[block])]
            products += rows @ rows.T
        return as_numpy(products)

    def columns_as_rows(self, columns: slice) -> Array:
        """The models' values in these columns on the processor, (columns, N) in memory of their
        own."""
        made = np.empty((columns.stop - columns.start, len(self)), np.float32)
        for start in range(
            0, len(self), ROWS
        ):  # a few rows at a time stay in the cache while they are turned
            stop = min(start + ROWS, len(self))
            made[:, start:stop] = as_numpy(self.tile(start, stop, columns)).T
        return made

    def _ordered(self, columns: slice, low: int, high: int) -> Any:
        if isinstance(self.arena, Tensor):
            values = self.tile(0, len(self), columns).T.sort(1).values
            return values[:, low:high].mean(1, dtype=torch.float64)
        turned = self.columns_as_rows(columns)
        turned.sort(axis=1)
        return turned[:, low:high].mean(1, dtype=np.float64)

    def _zeros(self, *shape: int) -> Any:
        if isinstance(self.arena, Tensor):
            return torch.zeros(shape, dtype=torch.float64, device=self.arena.device)
        return np.zeros(shape)

    def _like_arena(self, values: Array) -> Any:
        return (
            torch.from_numpy(values).to(self.arena.device)
            if isinstance(self.arena, Tensor)
            else values
        )


def column_blocks(size: int, width: int, within: Array | None = None) -> Iterator[slice]:
    """The columns of a stack, `width` at a time; without the blocks in which a mask `within` (D,)
    names none."""
    blocks = (slice(start, min(start + width, size)) for start in range(0, size, width))
    return blocks if within is None else (block for block in blocks if within[block].any())


def each(work: Callable[[slice], Made], blocks: Iterator[slice]) -> list[Made]:
    """What `work` makes of every block, in their order; on as many threads as torch may use
    (``torch.set_num_threads``). The columns of one block must not depend on another's."""
    threads = torch.get_num_threads()
    if threads == 1:
        return [work(block) for block in blocks]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, blocks))


def as_numpy(values: Any) -> Array:
    """An array of the processor."""
    return values.cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
