"""Which of a device's training windows are held out; pure."""

import numpy as np

from wire.arrays.tensors import Array

FEWEST = 3
"""Windows held out, at least: fewer say nothing of a model, and are worth more as windows to train
on."""
RUN = 8
"""Windows of a run, at most. They follow each other: neighbours often overlap, and each end of a
run tells of what lies beyond it."""
PARTS = 12
"""Where nothing says which windows are alike, a run has at most such a part of all: what a person
did for longer is in both sides."""


def num_held_out(num_examples: int, share: float) -> int:
    """How many are held out: the share, and none where these are fewer than `FEWEST`."""
    held = int(num_examples * share)
    return held if held >= FEWEST else 0


def held_out(y: Array, share: float) -> Array:
    r"""Boolean mask (n,) of the windows with the labels y (n, \*label) that are held out, the same
    ones each time.

    Each class gives its part, and as far as others can give in its place it keeps a window to train
    on: a class that is held out whole would be asked of models that never saw it. Labels that are
    no whole numbers count as one class. The windows of a class are taken in runs, as many windows
    before the first as behind the last: the latest ones, which are nearest to what comes, are
    trained on.
    """
    mask, count = np.zeros(len(y), bool), num_held_out(len(y), share)
    if not count:
        return mask
    classes = _classes(y)
    places = [np.flatnonzero(classes == number) for number in np.unique(classes)]
    can_give = [len(own) - 1 for own in places]
    weights = can_give if sum(can_give) >= count else [len(own) for own in places]
    longest = RUN if len(places) > 1 else min(RUN, max(1, len(y) // PARTS))
    total, before = sum(weights), 0
    for own, weight in zip(places, weights, strict=True):
        given = (before + weight) * count // total - before * count // total
        runs = -(-given // longest)
        for run in range(runs):  # each in the middle of its part
            shift = (2 * run + 1) * (len(own) - given) // (2 * runs)
            mask[own[run * given // runs + shift : (run + 1) * given // runs + shift]] = True
        before += weight
    return mask


def _classes(y: Array) -> Array:
    """The class of each window (n,): of steps the one that most of those with a label have, -1
    where none has one."""
    if y.dtype.kind not in "iu":
        return np.zeros(len(y), np.int64)
    if y.ndim == 1:
        return y
    rows = y.reshape(len(y), -1)
    return np.array(
        [np.bincount(row[row >= 0]).argmax() if (row >= 0).any() else -1 for row in rows], np.int64
    )
