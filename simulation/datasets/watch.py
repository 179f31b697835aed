"""The smartwatch set of the seglearn wheel: 10 people, left and right arm, 7 shoulder exercises, 6 channels at 50 Hz.

D. M. Burns et al. Shoulder physiotherapy exercise recognition: machine learning the inertial signals from a smartwatch.
Physiological Measurement 39(7), 2018. The wheel (BSD licence) carries 140 recordings, one for each person, arm and exercise.
"""

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from edge_client.core.ports import Windows
from simulation.datasets.windows import FleetData, cut_windows
from wire.bundle import Window
from wire.errors import DataError

LENGTH, STRIDE, TRAIN_SHARE, RATE_HZ = 128, 64, 0.7, 50.0


def load_watch() -> FleetData:
    """Twenty devices ``p01-left`` .. ``p10-right``. The first 70 % of each recording's time are for training; windows are cut on
    either side of that point, so that none is shared.

    Raises:
        DataError: the seglearn package is not installed.
    """
    spec = find_spec("seglearn")
    path = Path(spec.origin).parent / "data" / "watch_dataset.npy" if spec and spec.origin else None
    if path is None or not path.exists():
        raise DataError("data 'watch': it comes with the package seglearn, which is not installed (pip install 'shoal[simulation]')")
    raw = np.load(path, allow_pickle=True).item()  # a file of an installed package, trusted as its code is
    parts: dict[str, list[list[np.ndarray]]] = {}
    for recording, label, person, side in zip(raw["X"], raw["y"], raw["subject"], raw["side"], strict=True):
        device = parts.setdefault(f"p{int(person):02d}-{'right' if side == 1 else 'left'}", [[], [], [], []])
        cut = round(TRAIN_SHARE * len(recording))
        for at, piece in ((0, recording[:cut]), (2, recording[cut:])):
            windows = cut_windows(np.asarray(piece), LENGTH, STRIDE)
            device[at].append(windows)
            device[at + 1].append(np.full(len(windows), label, np.int64))
    return FleetData(
        "watch",
        Window(tuple(str(c) for c in raw["X_labels"]), LENGTH, STRIDE, RATE_HZ),
        tuple(str(c) for c in raw["y_labels"]),
        {device_id: Windows(*(np.concatenate(p) for p in parts[device_id])) for device_id in sorted(parts)},
        {device_id: device_id.split("-")[1] for device_id in sorted(parts)},
    )
