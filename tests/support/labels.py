"""The synthetic fleet with labels of other tasks."""

from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np

from edge_client.core.ports import Windows
from simulation.datasets.windows import FleetData
from wire.tasks import NO_LABEL

NAMES = ("slow", "moves", "fast")


def relabelled(
    data: FleetData, names: tuple[str, ...], label: Callable[[np.ndarray], np.ndarray]
) -> FleetData:
    """Return the windows with other labels, made of their classes."""

    def made(w: Windows) -> Windows:
        return Windows(w.train_x, label(w.train_y), w.test_x, label(w.test_y), w.unlabelled_x)

    return replace(
        data, classes=names, devices={d: made(w) for d, w in data.devices.items()}, recordings={}
    )


def several_labels(data: FleetData) -> FleetData:
    """Each window with several of `NAMES`, or with none: class 0 is slow, 1 moves, and 2 moves
    fast."""
    return relabelled(
        data, NAMES, lambda y: np.stack([y == 0, y >= 1, y == 2], axis=1).astype(np.int64)
    )


QUANTITIES = ("speed", "height")


def quantities(data: FleetData) -> FleetData:
    """Each window with two `QUANTITIES` of other kinds, which go by its class: a speed of 1000 to
    3000, and a height about 0."""
    return relabelled(
        data,
        QUANTITIES,
        lambda y: np.stack([1000 * (y + 1.0), 0.01 * (y - 1.0) ** 2], axis=1).astype(np.float32),
    )


STEPS = 4


def steps(data: FleetData) -> FleetData:
    """Windows whose second half is that of the next one, in `STEPS` steps with the class of each; a
    step of every fifth has none."""

    def made(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        half = x.shape[-1] // 2
        joined = np.concatenate([x[..., :half], np.roll(x, -1, axis=0)[..., half:]], axis=-1)
        labels = np.repeat(np.stack([y, np.roll(y, -1)], axis=1), STEPS // 2, axis=1)
        labels[::5, 1] = NO_LABEL
        return joined, labels

    devices = {
        d: Windows(*made(w.train_x, w.train_y), *made(w.test_x, w.test_y), w.unlabelled_x)
        for d, w in data.devices.items()
    }
    return replace(
        data,
        window=msgspec.structs.replace(data.window, steps=STEPS),
        devices=devices,
        recordings={},
    )


def nobody_labelled(data: FleetData) -> FleetData:
    """Return the windows without labels; those for testing come last."""

    def bare(w: Windows) -> Windows:
        none = np.zeros(0, np.int64)
        return Windows(
            w.train_x[:0], none, w.train_x[:0], none, np.concatenate([w.train_x, w.test_x])
        )

    return replace(data, classes=(), devices={d: bare(w) for d, w in data.devices.items()})
