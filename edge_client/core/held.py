"""Which of a device's training windows are held out; pure."""

import numpy as np

from wire.tensors import Array

BLOCK = 8
"""Windows of a block, at most: windows that follow each other often overlap, and one side of the cut would tell of the other."""


def num_held_out(num_examples: int, share: float) -> int:
    """How many are held out: of a share above 0 at least two, as far as there are so many."""
    return int(held_out(num_examples, share).sum())


def held_out(num_examples: int, share: float) -> Array:
    """Boolean mask (num_examples,) of the windows that are held out, the same ones each time: of the blocks of windows that follow each
    other, evenly spread ones that make up the share; the last two windows where these are fewer than two."""
    size = max(1, min(BLOCK, num_examples // 12))
    block = np.arange(num_examples) // size
    mask = np.floor((block + 1) * share) > np.floor(block * share)
    if share and mask.sum() < 2:
        mask[-2:] = True
    return np.asarray(mask)
