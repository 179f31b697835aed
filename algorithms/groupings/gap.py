"""DistFL's two rules from SIM to groups: a threshold in the largest gap, or a fixed threshold.

The paper (section 4.3) finds the threshold by eye, since the values are 'close in the iid group
while varying greatly between two groups'. Here it is the middle of the largest gap between the
sorted values. Every pair of devices counts: time and memory are quadratic in their number.

The authors' code (github.com/YikFungTsai/DistFL) has a fixed threshold, 0.2, and joins devices over
any chain of near ones (`connect`).
"""

import numpy as np

from algorithms.core.contract import Matrix
from wire.arrays.tensors import Array


def group_by_gap(divergences: Matrix) -> tuple[Array, float]:
    """Return groups 0..G-1 of N devices (N,), and the threshold, from SIM (N, N).

    The two directions of SIM are averaged. The first device without a group forms one with all
    other devices without a group that are no farther from it than the threshold.
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
    """Return groups 0..G-1 of N devices (N,) from SIM (N, N), with a fixed threshold.

    Two devices are in one group if a chain of devices connects them, in which each divergence to
    the next device is below the threshold in at least one direction.
    """
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
