"""Models of one layout as rows, and the four passes over them that all means are built from.

The rows lie in an arena (N, D) that is written once per round. A group's models are some of its
rows, read a tile at a time and never copied as a whole. The arena is a numpy array, or a torch
tensor on any device with float64; then the passes run on that device.

Sums are float64. The weighted sum adds `ROWS` models at a time in float32, with an error below 1e-6
of sum_i weights_i |w_i|. On the CPU it reads every value once, at the speed of memory with a C++
compiler (`host.native.arithmetic`), and three times slower without one. Ranks come from sorted
blocks of columns. Numpy sorts with vector instructions, which is faster than a selection (numpy's,
torch's) for up to thousands of models.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from algorithms.models.reading.layers import Network
from wire.arrays.tensors import Array

log = logging.getLogger("shoal.algorithms")

ASKED_FROM = 2**22
"""Minimum number of values of a stack for which the sum is delegated to the arithmetic.

Below it, calls cost as much as the sum.
"""
ROWS = 32
"""Number of models added in float32 before the sum continues in float64."""
COLUMNS = 4096
"""Number of columns processed at a time.

A tile of 32 by 4,096 stays in the cache, and is small enough for BLAS to use one thread. Threads
process different columns instead (`each`): this costs less on a busy machine, and gives the same
bits for any number of threads.
"""
TO_SORT, TO_SORT_ELSEWHERE = 2**18, 2**26
"""Number of values sorted at a time: 1 MB on the CPU, 256 MB on another device.

Distances are computed of as many there.
"""
FREE_ON_A_GPU = 3 * 2**30
"""Bytes that must be free on a GPU beside the models, to sort `TO_SORT_ELSEWHERE` values there."""
FEWEST_COLUMNS = 128
"""Minimum number of columns transposed at a time: 512 bytes of a row are contiguous in memory."""
SMALLEST_SQUARE = 1e-30
"""Squared distance in float32 from which its terms have not underflown."""
LARGEST = float(np.finfo(np.float32).max)

Made = TypeVar("Made")


AddColumns = Callable[[Array, slice], None]
"""Adds a weighted sum over some columns to the same columns of a total (D,) float64.

Several threads may call it at a time, each with different columns.
"""


class Arithmetic:
    """The two heaviest computations of the server, as a port for a faster implementation.

    An implementation is `host.native.arithmetic`. A method returns None if numpy or torch have to
    compute the result, as in this class; results are equal within rounding.
    """

    def column_sums(self, arena: Array, rows: Array, weights: Array) -> AddColumns | None:
        """Return a function that adds weighted sums of rows for some columns, or None.

        The sum is sum_i weights_i w_i over the rows (N,) of an arena (M, D) float32 in C order,
        with weights (N,) float32.
        """
        return None

    def probabilities(
        self, network: Network, models: Sequence[Mapping[str, Array]], inputs: Array
    ) -> Array | None:
        """Return class probabilities (N, z, classes) float32 of N models, or None.

        The tensors of a model are named ``shared/NAME`` and ``statistic/NAME``. `inputs` are
        (z, channels, time) float32.
        """
        return None


NUMPY = Arithmetic()


class Stack:
    """Models (N, D) float32: all rows of `arena`, or the rows at the ascending indices `rows`."""

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
        """Return the models at these ascending indices as a stack of their own."""
        return Stack(self.arena, self.rows[members], self.arithmetic)

    def tile(self, start: int, stop: int, columns: slice) -> Any:
        """Return models `start` to `stop` in these columns: a view if contiguous, else a copy."""
        rows: Any = (
            slice(int(self.rows[start]), int(self.rows[start]) + stop - start)
            if self._together
            else self.rows[start:stop]
        )
        return self.arena[rows, columns]

    def weighted_sum(self, weights: Array) -> Array:
        """Return sum_i weights_i w_i, (D,) float32, with shares (N,) that sum to 1."""
        total = self._zeros(self.size)
        factors = self._like_arena(weights.astype(np.float32))
        sums, width = None, COLUMNS
        if not isinstance(self.arena, np.ndarray):
            width = max(self.size, 1)
        elif len(self) * self.size >= ASKED_FROM and self.arena.flags.c_contiguous:
            sums = self.arithmetic.column_sums(self.arena, self.rows, factors)
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

    def distances(self, centre: Array, ranges: Sequence[slice]) -> Array:
        """Return the Euclidean distance (N,) float64 of each model from `centre` (D,) float32.

        It is over the columns of some ranges. Squares are float32 as long as they fit, and float64
        where values are enormous or tiny.
        """
        squares = self._squares(centre, ranges)
        if not (np.isfinite(squares) & (squares > SMALLEST_SQUARE)).all():
            squares = self._squares(centre.astype(np.float64), ranges)
        return np.asarray(np.sqrt(squares))

    def mean_of_ranks(self, low: int, high: int, within: Array | None = None) -> Array:
        """Return for each column the mean (D,) float64 of its values in a range of ranks.

        The range is from rank `low` to below rank `high`; the smallest value has rank 0. With a
        mask `within` (D,), columns outside it may be 0 instead.
        """
        means = np.zeros(self.size)

        def fold(columns: slice) -> None:
            means[columns] = as_numpy(self._ordered(columns, low, high))

        budget = (
            TO_SORT_ELSEWHERE
            if isinstance(self.arena, Tensor) and self.arena.device.type != "cpu"
            else TO_SORT
        )
        blocks = column_blocks(self.size, max(FEWEST_COLUMNS, budget // max(len(self), 1)), within)
        each(fold, blocks)
        return means

    def median(self, within: Array | None = None) -> Array:
        """Return the median (D,) float64 of every column.

        For even N it is the mean of the two middle values.

        `within` is the mask of `mean_of_ranks`.
        """
        return self.mean_of_ranks((len(self) - 1) // 2, len(self) // 2 + 1, within)

    def gram(self, within: Array | None = None) -> Array:
        """Return the inner products (N, N) float64 of the models' differences from their median.

        The products are over all columns, or over those of a mask (D,). The centre is the median
        and not the mean, so that a model of enormous values leaves the products of all others
        exact.
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
        """Return the models' values in these columns on the CPU: a new array (columns, N)."""
        values = np.empty((columns.stop - columns.start, len(self)), np.float32)
        # a few rows at a time stay in the cache while they are transposed
        for start in range(0, len(self), ROWS):
            stop = min(start + ROWS, len(self))
            values[:, start:stop] = as_numpy(self.tile(start, stop, columns)).T
        return values

    def _squares(self, centre: Array, ranges: Sequence[slice]) -> Array:
        """Return the squared distance (N,) float64 of each model, in the precision of `centre`."""
        middle, height, width = self._like_arena(centre), ROWS, COLUMNS
        if isinstance(self.arena, Tensor):
            width = max(self.size, 1)
            height = max(1, TO_SORT_ELSEWHERE // width)

        def add(columns: slice) -> Array:
            squares = np.empty(len(self))
            for start in range(0, len(self), height):
                stop = min(start + height, len(self))
                rows = self.tile(start, stop, columns) - middle[columns]
                products = torch.einsum if isinstance(rows, Tensor) else np.einsum
                squares[start:stop] = as_numpy(products("ij,ij->i", rows, rows))
            return squares

        with np.errstate(over="ignore"):
            blocks = chain(*(parts_of(columns, width) for columns in ranges))
            return np.asarray(sum(each(add, blocks)))

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


def parts_of(columns: slice, width: int) -> Iterator[slice]:
    """Yield a range of columns, `width` at a time."""
    for block in column_blocks(columns.stop - columns.start, width):
        yield slice(columns.start + block.start, columns.start + block.stop)


def column_blocks(size: int, width: int, within: Array | None = None) -> Iterator[slice]:
    """Yield the columns of a stack, `width` at a time.

    With a mask `within` (D,), blocks without any column of the mask are skipped.
    """
    blocks = (slice(start, min(start + width, size)) for start in range(0, size, width))
    return blocks if within is None else (block for block in blocks if within[block].any())


def each(work: Callable[[slice], Made], blocks: Iterator[slice]) -> list[Made]:
    """Return the results of `work` for all blocks, in their order.

    It uses as many threads as torch may use (``torch.set_num_threads``). The result of a block must
    not depend on another block.
    """
    ranges, threads = list(blocks), torch.get_num_threads()
    if threads == 1 or len(ranges) == 1:
        return [work(block) for block in ranges]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, ranges))


def as_numpy(values: Any) -> Array:
    """Return the values as an array in the CPU's memory."""
    return values.cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def cuda_devices() -> list[str]:
    """Return the names of this machine's GPUs in torch (``cuda``, ``cuda:0``), if there are any."""
    count = torch.cuda.device_count()
    return ["cuda", *(f"cuda:{i}" for i in range(count))] if count else []


def moved(arena: Array, device: str) -> Array | Tensor:
    """Return the arena on a torch device; on the CPU, with a warning, if the device has no room."""
    if device == "cpu":
        return arena
    free = torch.cuda.mem_get_info(device)[0]
    if arena.nbytes + FREE_ON_A_GPU <= free:
        return torch.from_numpy(arena).to(device)
    log.warning(
        "Models combined on the CPU: device=%s free_mib=%d models_mib=%d: the models and %d MiB to "
        "sort them do not fit",
        device,
        free >> 20,
        arena.nbytes >> 20,
        FREE_ON_A_GPU >> 20,
    )
    return arena
