"""Groups keep their identity: new groups take the names of the old ones they share most devices
with."""

from collections.abc import Mapping, Sequence

import numpy as np
import scipy

from wire.arrays.tensors import Array


def keep_names(
    device_ids: Sequence[str], labels: Array, before: Mapping[str, str]
) -> dict[str, str]:
    """Name each group of `labels` (N,), so that as many devices as possible keep the name they had
    in `before`.

    A group that shares no device with an old one gets the next number that was never used in
    `before`. Groups without a past are numbered by their first device.
    """
    order = list(dict.fromkeys(int(g) for g in labels))
    names = sorted(set(before.values()), key=int)
    row, column = {g: i for i, g in enumerate(order)}, {name: i for i, name in enumerate(names)}
    shared = np.zeros((len(order), len(names)), np.int64)
    for device_id, label in zip(device_ids, labels, strict=True):
        if device_id in before:
            shared[row[int(label)], column[before[device_id]]] += 1
    rows, columns = scipy.optimize.linear_sum_assignment(-shared)
    kept = {order[r]: names[c] for r, c in zip(rows, columns, strict=True) if shared[r, c]}
    fresh = max((int(name) for name in names), default=-1) + 1
    for label in order:
        if label not in kept:
            kept[label] = str(fresh)
            fresh += 1
    return {
        device_id: kept[int(label)] for device_id, label in zip(device_ids, labels, strict=True)
    }
