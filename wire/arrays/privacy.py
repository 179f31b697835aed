"""Arithmetic of the verb protect: clipping and Gaussian noise of a flat update.

Devices use it, and the aggregator for checks. Floating-point noise is not the real-valued Gaussian
of the theory (I. Mironov. On significance of the least significant bits for differential privacy.
CCS 2012); nothing here defends against an attack on its last bits.
"""

import numpy as np

from wire.arrays.tensors import Array

_MARGIN = 1.0 - 2.0**-40
"""Factor below 1 that covers rounding errors.

Its distance from 1 is far above the error of a sum of squares in float64, in any order of
summation, and far below the resolution of float32.
"""


def clip(update: Array, norm: float) -> Array:
    """Return the update (D,) float32 scaled to a Euclidean norm of at most `norm`.

    The values must be finite. An update within the norm is returned unchanged. Exact: the norm of
    the result, computed in float64, is never above `norm`. Every number is rounded towards zero.
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
    """Return the update (D,) float32 with independent Gaussian noise of this standard deviation.

    The noise is drawn and added in float64, then rounded. No noise is drawn if `std` is 0.
    """
    if std == 0:
        return update
    return np.asarray(update + std * rng.standard_normal(update.shape), dtype=np.float32)
