"""Choice of the training windows that a device holds out; pure."""

import numpy as np

from wire.arrays.tensors import Array

FEWEST = 3
"""Minimum number of windows held out.

Fewer windows do not measure a model, and are worth more as training data.
"""
RUN = 8
"""Maximum number of consecutive windows in a run of held-out windows.

Neighbouring windows often overlap, so each end of a run reveals part of the windows beyond it.
"""
PARTS = 12
"""Divisor of the number of windows that bounds a run if all windows have one class.

A run is then at most this part of all windows, so that a person's longer activity is on both sides.
"""


def num_held_out(num_examples: int, share: float) -> int:
    """Return the number of windows held out: the share, or 0 if that is below `FEWEST`."""
    count = int(num_examples * share)
    return count if count >= FEWEST else 0


def held_out(y: Array, share: float) -> Array:
    r"""Return the mask (n,) bool of the held-out windows of the labels y (n, \*label).

    The result is the same each time. The share of each class is held out. A class keeps at least
    one window to train on if other classes can give windows in its place: models would never have
    seen a class that is held out whole. Labels that are not integers count as one class. The
    windows of a class are taken in runs, with as many windows before the first run as after the
    last: the latest windows, which are most similar to future ones, are trained on.
    """
    mask, count = np.zeros(len(y), bool), num_held_out(len(y), share)
    if not count:
        return mask
    classes = _classes(y)
    places = [np.flatnonzero(classes == number) for number in np.unique(classes)]
    can_give = [len(windows) - 1 for windows in places]
    weights = can_give if sum(can_give) >= count else [len(windows) for windows in places]
    longest = RUN if len(places) > 1 else min(RUN, max(1, len(y) // PARTS))
    total, before = sum(weights), 0
    for windows, weight in zip(places, weights, strict=True):
        quota = (before + weight) * count // total - before * count // total
        runs = -(-quota // longest)
        for run in range(runs):  # each run is in the middle of its part
            shift = (2 * run + 1) * (len(windows) - quota) // (2 * runs)
            mask[windows[run * quota // runs + shift : (run + 1) * quota // runs + shift]] = True
        before += weight
    return mask


def _classes(y: Array) -> Array:
    """Return the class of each window (n,) int64.

    For labels of steps, it is the most frequent class of the labelled steps; -1 if there are none.
    """
    if y.dtype.kind not in "iu":
        return np.zeros(len(y), np.int64)
    if y.ndim == 1:
        return y
    rows = y.reshape(len(y), -1)
    return np.array(
        [np.bincount(row[row >= 0]).argmax() if (row >= 0).any() else -1 for row in rows], np.int64
    )
