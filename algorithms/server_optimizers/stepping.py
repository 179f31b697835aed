"""A server optimizer's step on a whole model: which tensors it moves, in which precision, and what
is remembered.

Shared tensors of floating point are moved. BatchNorm's statistics are averaged, as is everything
else. A step is computed in float64. What is remembered is float32, as it is stored: a run that goes
on from its store has the same bits.
"""

from collections.abc import Mapping

import numpy as np

from algorithms.core.contract import ServerOptimizer
from algorithms.core.stack import LARGEST
from wire.arrays import names
from wire.arrays.tensors import Array, Tensors


def advance(
    optimizer: ServerOptimizer, model: Mapping[str, Array], mean: Tensors, moments: Tensors
) -> tuple[Tensors, Tensors]:
    """The next model, and what is remembered for the step after it.

    Args:
        model: what devices started from (``shared/NAME``, ``statistic/NAME``), float32.
        mean: the mean of what they made of it, of the same names.
        moments: what the last step left, ``MOMENT/shared/NAME`` float32 of the shape of the tensor;
        empty before the first.
    """
    following, kept = dict(mean), Tensors()
    for key, value in names.of_role(mean, names.SHARED).items():
        if value.dtype.kind != "f":
            continue
        change = value.astype(np.float64) - model[key]
        before = {
            moment: _moment(moments, moment, key, first, value)
            for moment, first in optimizer.moments.items()
        }
        moved = optimizer.step(change, before)
        following[key] = np.where(moved.step == change, value, model[key] + moved.step).astype(
            value.dtype
        )  # a whole step: the mean's bits
        for moment, array in moved.moments.items():
            kept[f"{moment}/{key}"] = np.clip(array, -LARGEST, LARGEST).astype(np.float32)
    return following, kept


def _moment(moments: Tensors, moment: str, key: str, first: float, like: Array) -> Array:
    held = moments.get(f"{moment}/{key}")
    return np.full(like.shape, first) if held is None else held.astype(np.float64)
