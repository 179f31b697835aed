"""Whether a device's data have moved since its last survey; pure.

What a window is known by are the mean and the logarithm of the deviation of each channel. The
distance of two sets of windows is the mean absolute difference of the distribution functions of
these, over the features and over the windows of both sets, less what chance gives for sets of these
sizes. For samples of one distribution that is sqrt(2/pi) pi/8 sqrt(1/n + 1/m): the mean over F of
the mean absolute value of a Gaussian with the variance F(1-F)(1/n + 1/m). The distance needs no
scale and no density, and no single window weighs much.

`MOVED` lies between what two halves of one person's recording give and what another person or the
other arm gives. On the smartwatch set, ten people and two arms, the halves are at most 0.018 apart,
two people at least 0.022, the arms of one person at least 0.045
(`tests/edge_client/test_live_drift.py`).
"""

import math

import numpy as np

from wire.arrays.tensors import Array

MOVED = 0.02
FEWEST = 64
"""Windows that a set needs to be compared."""
MOST = 256
"""Windows of a set that are looked at."""
_CHANCE = math.sqrt(2 / math.pi) * math.pi / 8


def features(x: Array) -> Array:
    """What windows x (n, channels, time) are known by: (n, 2 channels) float64."""
    x = x.reshape(len(x), x.shape[1], -1).astype(np.float64)
    return np.hstack([x.mean(2), np.log(x.std(2) + 1e-6)])


def distance(one: Array, other: Array) -> float:
    """How far two sets of windows, given by their features (n, d) and (m, d), are apart; about 0
    where only chance is between them."""
    differences = []
    for a, b in zip(one.T, other.T, strict=True):
        at = np.concatenate([a, b])
        shares = [np.searchsorted(np.sort(v), at, "right") / len(v) for v in (a, b)]
        differences.append(np.abs(shares[0] - shares[1]).mean())
    return float(np.mean(differences)) - _CHANCE * math.sqrt(1 / len(one) + 1 / len(other))


def has_moved(before: Array, now: Array) -> bool:
    """Whether sets of windows, given by their features, are too far apart for one device whose data
    stay what they are. Sets that are too small have not moved."""
    return (
        min(len(before), len(now)) >= FEWEST
        and before.shape[1] == now.shape[1]
        and distance(before, now) > MOVED
    )


def some(rows: Array) -> Array:
    """Return at most `MOST` rows, evenly taken."""
    return rows[np.linspace(0, len(rows) - 1, MOST).astype(np.int64)] if len(rows) > MOST else rows
