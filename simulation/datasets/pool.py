"""Examples that belong to nobody yet: what partitions assign to devices."""

from dataclasses import dataclass, field

import numpy as np

from edge_client.core.ports import Windows
from simulation.datasets.windows import FleetData
from wire.arrays.tensors import Array
from wire.bundle import Window
from wire.errors import DataError

DEVICES = 20
"""How many devices a pool is assigned to when nothing else is asked for: what AutoCFL, DBE and
DistFL's user studies have."""


@dataclass(frozen=True)
class Pool:
    """Training and test examples without users: x (n, \\*window.shape) float32, for images in [0,
    1], or int64 ids; y (n,) int64 class numbers, or (n, names) int64 of several labels."""

    name: str
    window: Window
    classes: tuple[str, ...]
    train_x: Array = field(repr=False)
    train_y: Array = field(repr=False)
    test_x: Array = field(repr=False)
    test_y: Array = field(repr=False)


def pool_of(data: FleetData) -> Pool:
    """Everything a fleet holds, the training parts of its devices together and their test parts
    together, in the devices' order."""
    parts = [
        np.concatenate([getattr(w, part) for w in data.devices.values()])
        for part in ("train_x", "train_y", "test_x", "test_y")
    ]
    return Pool(data.name, data.window, data.classes, *parts)


def assign_alike(pool: Pool, devices: int = DEVICES) -> FleetData:
    """The same number of examples for every device, at random (seed 0): assigning in turn would not
    do, MNIST's order has a period of 10.

    Raises:
        DataError: fewer training examples than devices.
    """
    if len(pool.train_y) < devices:
        raise DataError(
            f"data {pool.name}: {len(pool.train_y)} training examples for {devices} devices"
        )
    rng = np.random.default_rng(0)
    train, test = (
        np.array_split(rng.permutation(len(y)), devices) for y in (pool.train_y, pool.test_y)
    )
    assigned = {
        name: Windows(
            pool.train_x[own], pool.train_y[own], pool.test_x[own_test], pool.test_y[own_test]
        )
        for name, own, own_test in zip(device_names(devices), train, test, strict=True)
    }
    return FleetData(pool.name, pool.window, pool.classes, assigned, dict.fromkeys(assigned, "all"))


def device_names(count: int) -> list[str]:
    """``d01``, ``d02`` ..: names of devices that are nobody's, in an order that sorting keeps."""
    return [f"d{i + 1:0{max(2, len(str(count)))}d}" for i in range(count)]
