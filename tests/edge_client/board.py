"""A board that records."""

from pathlib import Path

import numpy as np

from edge_client.data.recordings.resampling import Stretch
from edge_client.live.labelling.labels import Labels
from edge_client.live.ring import Ring
from edge_client.live.store import LiveData, open_folder
from wire.bundle import Window

T0_S, RATE_HZ, BLOCK_S = 1_700_000_000.0, 50.0, 10.0
WINDOW, CLASSES = Window(("a", "b"), 32, 16, RATE_HZ), ("rest", "walk")


class Board:
    """A board that has recorded steps whose first channel counts them."""

    def __init__(self, folder: Path) -> None:
        open_folder(folder, ("a", "b"), RATE_HZ, BLOCK_S)
        self.labels = Labels(folder, CLASSES, wall=lambda: T0_S)
        self.ring = Ring(folder, RATE_HZ, 2**22, 1e9, 32)
        self.data = LiveData(folder, self.labels, WINDOW, CLASSES, look_s=0.0)

    def record(self, at: int, count: int, begins: bool = False) -> None:
        steps = np.arange(at, at + count, dtype=np.float32)
        self.ring.append(Stretch(T0_S + at / RATE_HZ, np.stack([steps, -steps], axis=1), begins))
        self.ring.sync()
