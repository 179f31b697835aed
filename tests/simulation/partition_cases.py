"""A pool whose examples can be told apart, and what a partition made of it."""

import math

import numpy as np

from simulation import partition as partitions
from simulation.datasets.pool import Pool
from simulation.datasets.windows import FleetData
from simulation.partition import read_partition
from wire.bundle import Window


def make_pool(
    num_classes: int = 10, train: int = 600, test: int = 200, images: bool = True, seed: int = 0
) -> Pool:
    """Examples that can be told apart: the first value of the first channel is the example's
    number, over 10,000."""
    rng = np.random.default_rng(seed)
    window = Window(("grey",), 4, 4, height=4) if images else Window(("ax", "ay", "az", "t"), 8, 8)
    parts: list[np.ndarray] = []
    for offset, count in ((0, train), (train, test)):
        y = rng.permutation(np.arange(count) % num_classes).astype(np.int64)
        x = (
            rng.uniform(0, 0.2, (count, *window.shape))
            + y.reshape(-1, *[1] * len(window.shape)) / 20
        )
        x.reshape(count, -1)[:, 0] = (offset + np.arange(count)) / 10_000
        parts += [x.astype(np.float32), y]
    return Pool("synthetic", window, tuple(f"class {i}" for i in range(num_classes)), *parts)


def numbers(fleet: FleetData, part: str) -> list[int]:
    """The numbers of the examples that devices hold, in the devices' order."""
    arrays = [
        getattr(w, part).reshape(len(getattr(w, part)), math.prod(fleet.window.shape))[:, 0]
        for w in fleet.devices.values()
    ]
    found: list[int] = np.rint(np.concatenate(arrays) * 10_000).astype(int).tolist()
    return found


def label_counts(fleet: FleetData, part: str = "train_y") -> np.ndarray:
    return np.stack(
        [
            np.bincount(getattr(w, part), minlength=len(fleet.classes))
            for w in fleet.devices.values()
        ]
    )


def same_bits(one: FleetData, two: FleetData) -> bool:
    return one.truth == two.truth and all(
        getattr(one.devices[d], part).tobytes() == getattr(two.devices[d], part).tobytes()
        for d in one.devices.keys() | two.devices.keys()
        for part in ("train_x", "train_y", "test_x", "test_y")
    )


def partition(data: FleetData | Pool, text: str, seed: int) -> FleetData:
    return partitions.partition(data, read_partition(text), seed)
