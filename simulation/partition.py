"""How windows are dealt to simulated devices."""

import numpy as np

from edge_client.ports import Windows
from simulation.datasets.windows import FleetData
from wire.errors import ConfigError

PARTITIONS = ("user", "iid")


def partition(data: FleetData, name: str, seed: int) -> FleetData:
    """``user``: as the data say, one device per subject. ``iid``: training and test windows each dealt at random to the same
    number of devices, so that every device has the same distribution.

    Raises:
        ConfigError: no such partition.
    """
    if name == "user":
        return data
    if name != "iid":
        raise ConfigError(f"partition {name!r}: expected one of {', '.join(PARTITIONS)}")
    rng = np.random.default_rng([seed, 0x11D])
    parts: list[list[np.ndarray]] = []
    for split in ("train", "test"):
        x = np.concatenate([getattr(w, f"{split}_x") for w in data.devices.values()])
        y = np.concatenate([getattr(w, f"{split}_y") for w in data.devices.values()])
        dealt = np.array_split(rng.permutation(len(y)), len(data.devices))
        parts += [[x[at] for at in dealt], [y[at] for at in dealt]]
    devices = {f"d{i + 1:02d}": Windows(*(column[i] for column in parts)) for i in range(len(data.devices))}
    return FleetData(data.name, data.window, data.classes, devices, dict.fromkeys(devices, "all"))
