"""A fleet whose windows hold ids of events: what classes and devices there are, and which ids each
prefers."""

import numpy as np

from edge_client.core.ports import Windows
from simulation.datasets.windows import FleetData
from wire.bundle import Window

VOCABULARY, LENGTH = 24, 12


def fleet_of_ids(num_devices: int = 3, num_windows: int = 40) -> FleetData:
    """Windows of twelve events. Each of three classes has eight events of its own, from which two
    thirds of a window are drawn."""
    rng = np.random.default_rng(0)

    def windows(count: int) -> tuple[np.ndarray, np.ndarray]:
        y = np.arange(count) % 3
        preferred = 8 * y[:, None, None] + rng.integers(8, size=(count, 1, LENGTH))
        x = np.where(
            rng.random(preferred.shape) < 2 / 3,
            preferred,
            rng.integers(VOCABULARY, size=preferred.shape),
        )
        return x.astype(np.int64), y.astype(np.int64)

    devices = {f"d{i}": Windows(*windows(num_windows), *windows(12)) for i in range(num_devices)}
    window = Window(("event",), LENGTH, LENGTH, vocabulary=VOCABULARY)
    return FleetData("events", window, ("day", "night", "alarm"), devices)
