"""Which of a device's training windows are held out; pure."""

import zlib

import numpy as np

from wire.tensors import Array


def num_held_out(num_examples: int, share: float) -> int:
    """How many are held out: of a share above 0 at least two, as far as there are so many."""
    return min(num_examples, max(2, round(share * num_examples))) if share else 0


def held_out(num_examples: int, share: float, device_id: str) -> Array:
    """Boolean mask (num_examples,) of the share that is held out: the same ones each time."""
    mask = np.zeros(num_examples, bool)
    if share:
        order = np.random.default_rng([zlib.crc32(device_id.encode()), 0x401D]).permutation(num_examples)
        mask[order[: num_held_out(num_examples, share)]] = True
    return mask
