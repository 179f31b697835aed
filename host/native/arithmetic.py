"""The server's heaviest computations in C++, if there is a compiler.

They are sums of many models, at the speed of memory, and predictions of many models for the same
inputs.
"""

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from algorithms.core.stack import AddColumns, Arithmetic
from algorithms.models.reading.network import Network
from host.compiler import CannotCompile
from host.native.library import load_library
from host.native.trainer import NativeTrainer
from wire.arrays import names
from wire.arrays.tensors import Array

log = logging.getLogger("shoal.native")


def weighted_sum(arena: Array, rows: Array, weights: Array) -> AddColumns:
    """Return a function that adds sum_i weights_i w_i over rows of an arena to a total.

    The arena is (M, D) float32 in C order, `rows` (N,), `weights` (N,) float32. Up to 32 rows are
    summed in float32, and these sums in float64.

    Raises:
        CannotCompile: the library cannot be built here.
    """
    assert arena.flags.c_contiguous
    assert arena.dtype == weights.dtype == np.float32
    add, factors = load_library().shoal_weighted_sum, np.ascontiguousarray(weights)
    offsets = np.asarray(rows, np.int64) * arena.strides[0]

    def add_to(total: Array, columns: slice) -> None:
        places, part = arena.ctypes.data + offsets + 4 * columns.start, total[columns]
        add(places.ctypes.data, factors.ctypes.data, len(places), len(part), part.ctypes.data)

    return add_to


def answer(network: Network, models: Sequence[Mapping[str, Array]], inputs: Array) -> Array:
    """Return class probabilities (N, z, classes) float32 of N models.

    The models' tensors are by ``shared/NAME`` and ``statistic/NAME``; `inputs` are (z, channels,
    time) float32.

    Raises:
        CannotCompile: the native engine cannot be built here.
    """
    trainer = NativeTrainer(network)
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


class NativeArithmetic(Arithmetic):
    """Sums and predictions in C++.

    If the engine cannot be built, this is logged, and numpy and torch compute.
    """

    def column_sums(self, arena: Array, rows: Array, weights: Array) -> AddColumns | None:
        try:
            return weighted_sum(arena, rows, weights)
        except CannotCompile as error:
            log.info("Models are summed without the native engine: reason=%s", error)
            return None

    def probabilities(
        self, network: Network, models: Sequence[Mapping[str, Array]], inputs: Array
    ) -> Array | None:
        try:
            return answer(network, models, inputs)
        except CannotCompile as error:
            log.warning(
                "Torch computes the models' answers, which takes longer: models=%d reason=%s",
                len(models),
                error,
            )
            return None
