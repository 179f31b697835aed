"""Masks: random integers that hide a device's values, one mask per seed (SPEC.md, 'Secret sums').

A device adds the masks of all its seeds. A helper that has a seed makes the mask again, and adds it
up over devices. Nothing but the sum of the masks is taken off the sum of the values.
"""

from collections.abc import Sequence

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from wire.arrays.tensors import Array

SEED_BYTES = 32
_ZEROS = bytes(1 << 20)


def mask(seed: bytes, part: str, count: int, dtype: np.dtype[np.unsignedinteger]) -> Array:
    """Return the mask (count,) of a seed for one part of an upload.

    It is AES-256 in counter mode, with a key derived from the seed and the part's name.
    """
    info = b"shoal mask " + part.encode()
    key = HKDF(hashes.SHA256(), 32, salt=None, info=info).derive(seed)
    encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    size = count * dtype.itemsize
    stream = bytearray(size + 15)  # room that `update_into` asks for beyond the last block
    for at in range(0, size, len(_ZEROS)):
        encryptor.update_into(_ZEROS[: size - at], memoryview(stream)[at:])
    return np.frombuffer(stream, dtype, count)


def masked(values: Array, seeds: Sequence[bytes], part: str) -> Array:
    """Return the values (n,) of a part plus the mask of every seed."""
    total = values.copy()
    for seed in seeds:
        total += mask(seed, part, len(values), values.dtype)
    return total
