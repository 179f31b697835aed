"""Application of a server optimizer to a whole model.

Shared tensors of floating point are moved. All other tensors, BatchNorm's statistics among them,
are averaged. A step is computed in float64. Moments are float32, as they are stored: a campaign
that resumes from its store has the same bits.
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
    """Return the next model, and the moments for the step after it.

    Args:
        model: the model that devices started from (``shared/NAME``, ``statistic/NAME``), float32.
        mean: the mean of the devices' models after training, with the same names.
        moments: moments of the previous step, ``MOMENT/shared/NAME`` float32 of the shape of the
            tensor; empty before the first step.
    """
    following, next_moments = dict(mean), Tensors()
    for key, value in names.of_role(mean, names.SHARED).items():
        if value.dtype.kind != "f":
            continue
        change = value.astype(np.float64) - model[key]
        before = {
            moment: _moment(moments, moment, key, first, value)
            for moment, first in optimizer.moments.items()
        }
        moved = optimizer.step(change, before)
        # a whole step keeps the bits of the mean
        following[key] = np.where(moved.step == change, value, model[key] + moved.step).astype(
            value.dtype
        )
        for moment, array in moved.moments.items():
            next_moments[f"{moment}/{key}"] = np.clip(array, -LARGEST, LARGEST).astype(np.float32)
    return following, next_moments


def _moment(moments: Tensors, moment: str, key: str, first: float, like: Array) -> Array:
    array = moments.get(f"{moment}/{key}")
    return np.full(like.shape, first) if array is None else array.astype(np.float64)
