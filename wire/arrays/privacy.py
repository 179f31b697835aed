"""The arithmetic of the verb protect: clipping and Gaussian noise of a flat update. Used by
devices, and by the aggregator to check.

Floating-point noise is not the real-valued Gaussian that the theory speaks of (I. Mironov. On
significance of the least significant bits for differential privacy. CCS 2012); nothing here defends
against an attack on its last bits.
"""

import numpy as np

from wire.arrays.tensors import Array

_MARGIN = 1.0 - 2.0**-40
"""Far more than a sum of squares in float64 can be off, in whatever order it is made; far less than
float32 resolves."""


def clip(update: Array, norm: float) -> Array:
    """The update (D,) float32, of finite numbers, scaled to a Euclidean norm of at most `norm`;
    unchanged when it is within.

    Exact: the norm of the result, computed in float64, is never above `norm`. Every number is
    rounded towards zero.
    """
    exact = update.astype(np.float64)
    length = float(np.sqrt(exact @ exact))
    if length <= norm:
        return update
    exact *= norm * _MARGIN / length
    rounded = exact.astype(np.float32)
    above = np.abs(rounded.astype(np.float64)) > np.abs(exact)
    rounded[above] = np.nextafter(rounded[above], np.float32(0))
    return rounded


def add_noise(update: Array, std: float, rng: "np.random.Generator") -> Array:
    """The update (D,) float32 with independent Gaussian noise; drawn and added in float64, then
    rounded. None is drawn where `std` is 0."""
    if std == 0:
        return update
    return np.asarray(update + std * rng.standard_normal(update.shape), dtype=np.float32)
