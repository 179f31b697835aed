"""The smartwatch set of the seglearn wheel: 10 people, left and right arm, 7 shoulder exercises, 6 channels at 50 Hz.

D. M. Burns et al. Shoulder physiotherapy exercise recognition: machine learning the inertial signals from a smartwatch.
Physiological Measurement 39(7), 2018. The wheel (BSD licence) carries 140 recordings, one for each person, arm and exercise.
"""

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from edge_client.core.ports import Windows
from simulation.datasets.windows import FleetData, Recordings, cut_windows
from wire.bundle import Window
from wire.errors import DataError
from wire.tensors import Array

LENGTH, STRIDE, TRAIN_SHARE, RATE_HZ = 128, 64, 0.7, 50.0

_Piece = tuple[Array, Array, Array, Array]
"""x, y, session and start of windows."""


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
    parts: dict[str, dict[str, list[_Piece]]] = {}
    for number, (recording, label, person, side) in enumerate(zip(raw["X"], raw["y"], raw["subject"], raw["side"], strict=True)):
        device = parts.setdefault(f"p{int(person):02d}-{'right' if side == 1 else 'left'}", {"train": [], "test": []})
        cut = round(TRAIN_SHARE * len(recording))
        for part, begin, end in (("train", 0, cut), ("test", cut, len(recording))):
            x = cut_windows(np.asarray(recording[begin:end]), LENGTH, STRIDE)
            y, session = (np.full(len(x), value, np.int64) for value in (label, number))
            device[part].append((x, y, session, begin + STRIDE * np.arange(len(x), dtype=np.int64)))
    recordings = {d: Recordings(*map(np.concatenate, zip(*parts[d]["train"], *parts[d]["test"], strict=True))) for d in sorted(parts)}
    num_train = {d: sum(len(x) for x, *_ in parts[d]["train"]) for d in parts}
    return FleetData(
        "watch",
        Window(tuple(str(c) for c in raw["X_labels"]), LENGTH, STRIDE, RATE_HZ),
        tuple(str(c) for c in raw["y_labels"]),
        {d: Windows(r.x[: num_train[d]], r.y[: num_train[d]], r.x[num_train[d] :], r.y[num_train[d] :]) for d, r in recordings.items()},
        {device_id: device_id.split("-")[1] for device_id in sorted(parts)},
        recordings,
    )
