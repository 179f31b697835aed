"""DistFL's own ways from SIM to groups: a threshold that lies in the gap between near and far
models (section 4.3), or is fixed.

The paper finds the threshold by eye, since the values are 'close in the iid group while varying
greatly between two groups'; here it is the middle of the largest gap between the sorted values.
Every pair of devices counts: time and memory are quadratic in their number.

The authors' code (github.com/YikFungTsai/DistFL) has a fixed threshold, 0.2, and joins devices over
any chain of near ones (`connect`).
"""

import numpy as np

from algorithms.core.contract import Matrix
from wire.arrays.tensors import Array


def group_by_gap(divergences: Matrix) -> tuple[Array, float]:
    """Groups 0..G-1 of N devices (N,), and the threshold, from SIM (N, N), whose two directions are
    averaged.

    The first device that is in no group yet forms one with all others that are in none and nearer
    to it than the threshold.
    """
    apart = (divergences + divergences.T) / 2
    values = np.sort(apart[np.triu_indices(len(apart), 1)])
    gaps = np.diff(values)
    if not gaps.size:
        return np.zeros(len(apart), np.int64), np.inf
    low = int(gaps.argmax())
    threshold = float(values[low] + values[low + 1]) / 2
    groups = np.full(len(apart), -1, np.int64)
    for device in range(len(apart)):
        if groups[device] < 0:
            near = (groups < 0) & (apart[device] <= threshold)
            near[device] = True
            groups[near] = groups.max() + 1
    return groups, threshold


def connect(divergences: Matrix, threshold: float) -> Array:
    """Groups 0..G-1 of N devices (N,), from SIM (N, N): two devices are in one if a chain of
    devices leads from one to the other, each with a divergence below the threshold to the next, in
    either direction."""
    within = divergences < threshold
    near = within | within.T
    groups = np.full(len(near), -1, np.int64)
    for device in range(len(near)):
        if groups[device] < 0:
            reached = np.arange(len(near)) == device
            while (wider := reached | near[reached].any(0)).sum() > reached.sum():
                reached = wider
            groups[reached] = groups.max() + 1
    return groups
