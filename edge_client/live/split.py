"""Split of recorded time into training and held-out windows; pure.

Time is divided into blocks of `block_s` seconds. One block of each `OF` in a row is held out; a
hash selects it, with a salt that is drawn once for a folder. A window is held out if it lies
entirely in held-out blocks, is for training if it touches none of them, and is neither if it
crosses an edge. So the side of a window depends on its time alone: it never changes, whatever is
recorded, labelled or removed later. And no training window shares a sample with a held-out one.
"""

import hashlib

import numpy as np

from wire.arrays.tensors import Array

OF = 5
TRAIN, HELD_OUT, NEITHER = 0, 1, 2


def is_held_out(block: int, salt: str) -> bool:
    """Return True if a block of time is held out."""
    chosen = (
        int.from_bytes(hashlib.sha256(f"{salt}:{block // OF}".encode()).digest()[:8], "big") % OF
    )
    return block % OF == chosen


def sides(begins_s: Array, ends_s: Array, block_s: float, salt: str) -> Array:
    """Return TRAIN, HELD_OUT or NEITHER for each window, (n,) int64.

    Args:
        begins_s: time (n,) of each window's first sample.
        ends_s: time (n,) of each window's last sample.
        block_s: length of a block.
        salt: salt of the folder.
    """
    first, last = (np.floor(t / block_s).astype(np.int64) for t in (begins_s, ends_s))
    blocks = np.unique(
        np.concatenate(
            [
                np.arange(a, b + 1)
                for a, b in sorted(set(zip(first.tolist(), last.tolist(), strict=True)))
            ]
            or [first]
        )
    )
    held_out_by_block = {int(block): is_held_out(int(block), salt) for block in blocks}
    window_sides = np.full(len(first), NEITHER, np.int64)
    for i, (a, b) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        kinds = {held_out_by_block[block] for block in range(a, b + 1)}
        if len(kinds) == 1:
            window_sides[i] = HELD_OUT if kinds.pop() else TRAIN
    return window_sides
