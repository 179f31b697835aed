"""Examples that belong to no device yet, which partitions assign to devices."""

from dataclasses import dataclass, field

import numpy as np

from edge_client.core.ports import Windows
from simulation.datasets.windows import FleetData
from wire.arrays.tensors import Array
from wire.bundle import Window
from wire.errors import DataError

DEVICES = 20
"""Default number of devices of a pool, as in the user studies of AutoCFL, DBE and DistFL."""


@dataclass(frozen=True)
class Pool:
    """Training and test examples without users.

    x is (n, \\*window.shape) float32, for images in [0, 1], or int64 ids. y is (n,) int64 class
    numbers, or (n, names) int64 for several labels.
    """

    name: str
    window: Window
    classes: tuple[str, ...]
    train_x: Array = field(repr=False)
    train_y: Array = field(repr=False)
    test_x: Array = field(repr=False)
    test_y: Array = field(repr=False)


def pool_of(data: FleetData) -> Pool:
    """Return everything a fleet holds as a pool.

    Training parts and test parts are each joined in the order of the devices.
    """
    parts = [
        np.concatenate([getattr(w, part) for w in data.devices.values()])
        for part in ("train_x", "train_y", "test_x", "test_y")
    ]
    return Pool(data.name, data.window, data.classes, *parts)


def assign_alike(pool: Pool, devices: int = DEVICES) -> FleetData:
    """Assign the same number of examples to every device, at random (seed 0).

    Assigning in turn would not mix the classes: MNIST's order has a period of 10.

    Raises:
        DataError: fewer training examples than devices.
    """
    if len(pool.train_y) < devices:
        raise DataError(
            f"data {pool.name} has only {len(pool.train_y)} training examples for {devices} devices"
        )
    rng = np.random.default_rng(0)
    train, test = (
        np.array_split(rng.permutation(len(y)), devices) for y in (pool.train_y, pool.test_y)
    )
    assigned = {
        name: Windows(
            pool.train_x[train_part],
            pool.train_y[train_part],
            pool.test_x[test_part],
            pool.test_y[test_part],
        )
        for name, train_part, test_part in zip(device_names(devices), train, test, strict=True)
    }
    return FleetData(pool.name, pool.window, pool.classes, assigned, dict.fromkeys(assigned, "all"))


def device_names(count: int) -> list[str]:
    """Return names ``d01``, ``d02`` .. of artificial devices; sorting keeps their order."""
    return [f"d{i + 1:0{max(2, len(str(count)))}d}" for i in range(count)]
