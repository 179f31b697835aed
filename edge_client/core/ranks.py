"""In which order a device's windows are preferred where not all can be used; pure."""

import numpy as np

from wire.arrays.tensors import Array

GOLDEN = 0.6180339887498949
IN_TURN = 3
"""So many windows with labels come before each one without."""


def ranks(num_labelled: int, num_unlabelled: int) -> Array:
    """The rank (n,) int64 of each window, those with labels before those without: `IN_TURN` ranks
    go to windows with labels and one to a window without, in turn, as far as there are such. Either
    are spread over all of their kind, in step with nothing (multiples of the golden ratio, modulo
    1)."""
    labelled, unlabelled = np.arange(num_labelled), np.arange(num_unlabelled)
    turn = np.concatenate(
        [
            labelled // IN_TURN * (IN_TURN + 1) + labelled % IN_TURN,
            unlabelled * (IN_TURN + 1) + IN_TURN,
        ]
    )
    order = np.concatenate([_spread(num_labelled), num_labelled + _spread(num_unlabelled)])
    made = np.empty(len(order), np.int64)
    made[order[np.argsort(turn, kind="stable")]] = np.arange(len(order))
    return made


def _spread(count: int) -> Array:
    return np.argsort((np.arange(1, count + 1) * GOLDEN) % 1.0, kind="stable")
