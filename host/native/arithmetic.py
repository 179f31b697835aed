"""The server's heaviest computations in C++, where there is a compiler: sums of many models, at the
speed at which memory is read, and what many models answer to the same inputs."""

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from algorithms.models.reading.network import Network
from host.compiler import CannotCompile
from host.native.library import load_library
from host.native.trainer import Trainer
from wire.arrays import names
from wire.arrays.tensors import Array

log = logging.getLogger("shoal.native")


class WeightedSum:
    """sum_i weights_i w_i over rows (N,) of an arena (M, D) float32, C order; weights (N,) float32.
    Sums of 32 rows are made in float32, and those of these in float64."""

    def __init__(self, arena: Array, rows: Array, weights: Array) -> None:
        """
        Raises:
            CannotCompile: the library cannot be built here.
        """
        assert arena.flags.c_contiguous
        assert arena.dtype == weights.dtype == np.float32
        self._add = load_library().shoal_weighted_sum
        self._arena, self._weights = arena, np.ascontiguousarray(weights)
        self._starts = arena.ctypes.data + np.asarray(rows, np.int64) * arena.strides[0]

    def add_to(self, total: Array, columns: slice) -> None:
        """Add the sum over these columns to those of total (D,) float64. Threads may do so at a
        time, each with columns of its own."""
        starts, part = self._starts + 4 * columns.start, total[columns]
        self._add(
            starts.ctypes.data, self._weights.ctypes.data, len(starts), len(part), part.ctypes.data
        )


def answer(network: Network, models: Sequence[Mapping[str, Array]], inputs: Array) -> Array:
    """Class probabilities (N, z, classes) float32 of N models, tensors by ``shared/NAME`` and
    ``statistic/NAME``, for inputs (z, channels, time) float32.

    Raises:
        CannotCompile: the native engine cannot be built here.
    """
    trainer = Trainer(network)
    keys = [
        names.statistic(name) if names.is_running_statistic(name) else names.shared(name)
        for name in trainer.names
    ]
    answers = np.empty((len(models), len(inputs), network.classes), np.float32)
    inputs = np.ascontiguousarray(inputs, np.float32)

    def ask(at: int) -> None:
        answers[at] = trainer.predict(
            np.concatenate([models[at][key].ravel() for key in keys], dtype=np.float32), inputs
        )

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        list(pool.map(ask, range(len(models))))
    return answers


class NativeArithmetic:
    """An `algorithms.core.arithmetic.Arithmetic`. Where the engine cannot be built, the log says so
    and numpy and torch compute."""

    def column_sums(self, arena: Array, rows: Array, weights: Array) -> WeightedSum | None:
        try:
            return WeightedSum(arena, rows, weights)
        except CannotCompile as error:
            log.info("%s: models are summed without the native engine", error)
            return None

    def probabilities(
        self, network: Network, models: Sequence[Mapping[str, Array]], inputs: Array
    ) -> Array | None:
        try:
            return answer(network, models, inputs)
        except CannotCompile as error:
            log.warning("%d models answer by torch, which takes longer: %s", len(models), error)
            return None
