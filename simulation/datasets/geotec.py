"""The GeoTec data set: 23 people with a smartphone in the pocket and a smartwatch.

They stand up, walk, turn and sit down: 5 activities, 6 channels at 100 Hz.

M. Matey-Sanz, S. Casteleyn, C. Granell. Dataset of inertial measurements of smartphones and
smartwatches for human activity recognition. Data in Brief 51, 2023, 109809 (CC BY 4.0). It is read
from a clone of https://github.com/GeoTecINIT/sp-sw-har-dataset: a file for each person, walk and
device, with a row for each sample. A person makes some 9 walks; each is a session.
"""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from edge_client.data.labels import named_classes
from simulation.datasets.npz import from_arrays
from simulation.datasets.windows import FleetData, cut_windows, without_overlap
from wire.arrays.tensors import Array
from wire.errors import DataError

FOLDER = "sp-sw-har-dataset"
CHANNELS = tuple(f"{axis}_{sensor}" for sensor in ("acc", "gyro") for axis in "xyz")
ACTIVITIES = ("SEATED", "STANDING_UP", "WALKING", "TURNING", "SITTING_DOWN")
LENGTH, STRIDE, RATE_HZ = 64, 32, 100.0
"""Windows of 0.64 s, because a person turns or stands up in a second or two."""
Side = Literal["phone", "watch"]
_SUFFIX: dict[Side, str] = {"phone": "sp", "watch": "sw"}


def load_geotec(folder: Path, side: Side) -> FleetData:
    """Read the phones, or the watches, of all people, a device each.

    Windows with more than one activity are left out. The last 25 % of each activity's windows are
    the test part. The training window that overlaps it is left out.

    Raises:
        DataError: `folder` is not a clone of the data set, or a file of it has another shape.
    """
    paths = sorted(folder.glob(f"DATA/s*/s*_{_SUFFIX[side]}.csv"))
    if not paths:
        raise DataError(f"data {folder} has no files such as DATA/s01/s01_01_{_SUFFIX[side]}.csv")
    parts: dict[str, list[Array]] = {name: [] for name in ("X", "y", "subject", "session", "start")}
    for path in paths:
        x, y, start = _windows(path)
        person, walk, _ = path.stem.split("_")
        for name, values in zip(
            parts, (x, y, [person] * len(x), [f"{person}-{walk}"] * len(x), start), strict=True
        ):
            parts[name].append(np.asarray(values))
    arrays = {name: np.concatenate(values) for name, values in parts.items()}
    arrays |= {"channel_names": np.array(CHANNELS), "activity_names": np.array(ACTIVITIES)}
    data = from_arrays(f"geotec-{side}", str(folder), arrays)
    devices = {d: without_overlap(w) for d, w in data.devices.items()}
    return replace(
        data,
        devices=devices,
        window=msgspec.structs.replace(data.window, stride=STRIDE, rate_hz=RATE_HZ),
    )


def _windows(path: Path) -> tuple[Array, Array, Array]:
    """Return the windows of one walk that have one activity, their activities and first samples.

    They are x (n, 6, 64) float32, y (n,) int64 and the first samples (n,).
    """
    try:
        with path.open(encoding="utf-8") as file:
            header = file.readline().strip().split(",")
            if header != [*CHANNELS, "timestamp", "label"]:
                raise DataError(
                    f"{path}: the header must be {','.join(CHANNELS)},timestamp,label, got "
                    f"{','.join(header)}"
                )
            rows = np.loadtxt(file, str, delimiter=",", ndmin=2)
        samples = rows[:, : len(CHANNELS)].astype(np.float32)
        activities = named_classes(rows[:, -1], ACTIVITIES, str(path))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    x, y = (
        cut_windows(samples, LENGTH, STRIDE),
        cut_windows(activities[:, None], LENGTH, STRIDE)[:, 0].astype(np.int64),
    )
    alike = (y == y[:, :1]).all(1)
    return x[alike], y[alike, 0], STRIDE * np.flatnonzero(alike)
