"""Test for drift: have a device's data changed since its last survey? Pure.

The features of a window are the mean of each channel and the logarithm of its standard deviation.
The distance of two sets of windows is the mean absolute difference of the distribution functions of
these features, over all features and over the windows of both sets, minus its expectation for two
sets of these sizes from one distribution. That expectation is sqrt(2/pi) pi/8 sqrt(1/n + 1/m): the
mean over F of the mean absolute value of a Gaussian with the variance F(1-F)(1/n + 1/m). The
distance needs no scale and no density, and no single window weighs much.

`MOVED` lies between the distance of two halves of one person's recording and the distance to
another person or to the other arm. On the smartwatch set (ten people, two arms) the halves are at
most 0.018 apart, two people at least 0.022, and the arms of one person at least 0.045
(`tests/edge_client/test_live_drift.py`).
"""

import math

import numpy as np

from wire.arrays.tensors import Array

MOVED = 0.02
FEWEST = 64
"""Minimum number of windows in a set for a comparison."""
MOST = 256
"""Maximum number of windows of a set that are compared."""
_CHANCE = math.sqrt(2 / math.pi) * math.pi / 8


def features(x: Array) -> Array:
    """Return the features (n, 2 channels) float64 of windows x (n, channels, time)."""
    x = x.reshape(len(x), x.shape[1], -1).astype(np.float64)
    return np.hstack([x.mean(2), np.log(x.std(2) + 1e-6)])


def distance(one: Array, other: Array) -> float:
    """Return the distance of two sets of windows, about 0 for sets of one distribution.

    Args:
        one: features (n, d) of the first set.
        other: features (m, d) of the second set.
    """
    differences = []
    for a, b in zip(one.T, other.T, strict=True):
        at = np.concatenate([a, b])
        shares = [np.searchsorted(np.sort(v), at, "right") / len(v) for v in (a, b)]
        differences.append(np.abs(shares[0] - shares[1]).mean())
    return float(np.mean(differences)) - _CHANCE * math.sqrt(1 / len(one) + 1 / len(other))


def has_moved(before: Array, now: Array) -> bool:
    """Return True if two sets of features are too far apart for unchanged data.

    Sets that are too small have not moved.
    """
    return (
        min(len(before), len(now)) >= FEWEST
        and before.shape[1] == now.shape[1]
        and distance(before, now) > MOVED
    )


def some(rows: Array) -> Array:
    """Return at most `MOST` rows, evenly spaced."""
    return rows[np.linspace(0, len(rows) - 1, MOST).astype(np.int64)] if len(rows) > MOST else rows
