"""Which samples are for training and which are held out; pure.

Time is cut into blocks of `block_s` seconds. Of each `OF` blocks in a row one is held out: a hash
says which, with a salt that is drawn once for a folder. A window is held out if all of it lies in
blocks that are, and is for training if none of it does; one across an edge is neither. So it
depends on the window's time alone: what was held out once always is, whatever is recorded, labelled
or removed later, and no training window shares a sample with one that is held out.
"""

import hashlib

import numpy as np

from wire.arrays.tensors import Array

OF = 5
TRAIN, HELD_OUT, NEITHER = 0, 1, 2


def is_held_out(block: int, salt: str) -> bool:
    """Whether a block of time is held out."""
    chosen = (
        int.from_bytes(hashlib.sha256(f"{salt}:{block // OF}".encode()).digest()[:8], "big") % OF
    )
    return block % OF == chosen


def sides(begins_s: Array, ends_s: Array, block_s: float, salt: str) -> Array:
    """For windows from begins_s to ends_s (n,): TRAIN, HELD_OUT or NEITHER, (n,) int64. `ends_s`:
    the time of the last sample."""
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
    held = {int(block): is_held_out(int(block), salt) for block in blocks}
    found = np.full(len(first), NEITHER, np.int64)
    for i, (a, b) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        kinds = {held[block] for block in range(a, b + 1)}
        if len(kinds) == 1:
            found[i] = HELD_OUT if kinds.pop() else TRAIN
    return found
