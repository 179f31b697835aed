"""Partitions that leave examples with the people they came from."""

import numpy as np

from edge_client.core.ports import Windows
from simulation.datasets.windows import FleetData, select_devices
from simulation.partitions.assignment import split_count


def by_user(
    data: FleetData, rng: np.random.Generator, *, devices: int, split: str, test: float
) -> FleetData:
    """One device per person, the first `devices` by id.

    ``split=time`` keeps the data's own test parts, cut in time. ``split=random`` divides each
    person's examples anew, as the papers do: windows that overlap then lie on both sides, and the
    accuracy says more than it should.

    Raises:
        DataError: more devices than there are.
    """
    data = select_devices(data, devices)
    if split == "time":
        return data
    return FleetData(
        data.name,
        data.window,
        data.classes,
        {d: _mix(data.devices[d], test, rng) for d in sorted(data.devices)},
        data.truth,
    )


def _mix(windows: Windows, share: float, rng: np.random.Generator) -> Windows:
    x, y = (
        np.concatenate([windows.train_x, windows.test_x]),
        np.concatenate([windows.train_y, windows.test_y]),
    )
    order = rng.permutation(len(y))
    count = split_count(len(y), share)
    train, test = np.sort(order[count:]), np.sort(order[:count])
    return Windows(x[train], y[train], x[test], y[test])
