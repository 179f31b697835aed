"""In which order a device's windows are preferred where not all can be used; pure."""

import numpy as np

from wire.tensors import Array

GOLDEN = 0.6180339887498949


def ranks(num_labelled: int, num_unlabelled: int) -> Array:
    """The rank (n,) int64 of each window, those with labels first: the windows of the first ranks are labelled as far as there are such,
    and spread over all of them, in step with nothing (multiples of the golden ratio, modulo 1)."""
    order = np.concatenate([_spread(num_labelled), num_labelled + _spread(num_unlabelled)])
    made = np.empty(len(order), np.int64)
    made[order] = np.arange(len(order))
    return made


def _spread(count: int) -> Array:
    return np.argsort((np.arange(1, count + 1) * GOLDEN) % 1.0, kind="stable")
