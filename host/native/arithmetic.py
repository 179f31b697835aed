"""The server's heaviest computations in C++, where there is a compiler."""

import logging
from collections.abc import Mapping, Sequence

from algorithms.models.reading.network import Network
from host.compiler import CannotCompile
from host.native.answers import answer
from host.native.sums import WeightedSum
from wire.arrays.tensors import Array

log = logging.getLogger("shoal.native")


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
