"""The small synthetic fleet of the tests."""

import numpy as np

from edge_client.core.ports import Windows
from simulation.datasets.windows import FleetData
from wire.bundle import Window


def synthetic_fleet(
    num_devices: int = 4, shift: float = 0.0, num_windows: int = 40, seed: int = 0
) -> FleetData:
    """Devices whose three classes differ in frequency; odd devices measure with an offset of
    `shift`."""
    rng = np.random.default_rng(seed)
    time_axis = np.arange(32)

    def windows(device: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        y = np.arange(count) % 3
        phase = rng.uniform(0, 6.28, (count, 2, 1))
        x = (
            np.sin((y[:, None, None] + 1) * 0.4 * time_axis + phase)
            + rng.normal(0, 0.3, (count, 2, 32))
            + shift * (device % 2)
        )
        return x.astype(np.float32), y.astype(np.int64)

    devices = {
        f"d{i}": Windows(*windows(i, num_windows), *windows(i, 12)) for i in range(num_devices)
    }
    truth = {f"d{i}": str(i % 2) for i in range(num_devices)}
    return FleetData(
        "synthetic", Window(("a", "b"), 32, 32), ("slow", "middle", "fast"), devices, truth
    )
