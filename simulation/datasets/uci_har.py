"""The UCI HAR data set: 30 volunteers with a smartphone on the waist, 6 activities.

It has 9 channels at 50 Hz. Windows have 128 samples with 50 % overlap.

D. Anguita, A. Ghio, L. Oneto, X. Parra, J. L. Reyes-Ortiz. A Public Domain Dataset for Human
Activity Recognition Using Smartphones. ESANN 2013. It is read from the original folder, its zip, or
one ``.npz``. The official split is by subject, which leaves a device either no training or no test
windows. Here the last 25 % of each subject's windows per class are the test part, and the one
training window that overlaps them is left out. The ``.npz`` also says where every window was cut
(``experiment``, ``start``).
"""

import io
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from simulation.datasets.npz import from_arrays, read_npz
from simulation.datasets.windows import FleetData, without_overlap
from wire.arrays.tensors import Array
from wire.errors import DataError

SIGNALS = tuple(
    f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"
)
ACTIVITIES = ("WALKING", "WALKING_UPSTAIRS", "WALKING_DOWNSTAIRS", "SITTING", "STANDING", "LAYING")
FOLDER = "UCI HAR Dataset"


def load_uci_har(path: Path) -> FleetData:
    """Read UCI HAR from its folder, its zip or a repacked ``.npz``.

    Raises:
        DataError: a file of it is missing or has another shape.
    """
    data = from_arrays("uci-har", str(path), read_rows(path))
    return replace(
        data, name="uci-har", devices={d: without_overlap(w) for d, w in data.devices.items()}
    )


def read_rows(path: Path) -> dict[str, Array]:
    """Return all windows in the order of the original files, as the arrays of a ``.npz``.

    They are ``X`` (n, 9, 128) float32, ``y`` (n,) and ``subject`` (n,) int
    (`simulation.datasets.npz`).

    Raises:
        DataError: a file of it is missing or has another shape.
    """
    if path.suffix == ".npz":
        arrays = read_npz(path, session="experiment")
        if "subject" not in arrays:
            raise DataError(
                f"data {path}: array 'subject' is missing, and UCI HAR has one device per subject"
            )
        return arrays
    if path.suffix == ".zip":
        try:
            with zipfile.ZipFile(path) as archive:
                names = {name.split(f"{FOLDER}/", 1)[-1]: name for name in archive.namelist()}
                return _assemble(path, lambda name: archive.read(names[name]))
        except (zipfile.BadZipFile, KeyError) as error:
            raise DataError(f"data {path} is not the zip of {FOLDER}: {error}") from None
    root = path / FOLDER if (path / FOLDER).is_dir() else path
    return _assemble(path, lambda name: (root / name).read_bytes())


def is_uci_har(path: Path) -> bool:
    """Return True if a path looks like UCI HAR in one of its forms."""
    if path.suffix == ".zip":
        return zipfile.is_zipfile(path)
    return path.is_dir() and any(
        (root / "train" / "Inertial Signals").is_dir() for root in (path, path / FOLDER)
    )


def _assemble(path: Path, read: Callable[[str], bytes]) -> dict[str, Array]:
    parts: dict[str, list[Array]] = {"X": [], "y": [], "subject": []}
    try:
        for split in ("train", "test"):
            signals = [
                _table(read(f"{split}/Inertial Signals/{name}_{split}.txt")) for name in SIGNALS
            ]
            parts["X"].append(np.stack(signals, axis=1))
            parts["y"].append(_table(read(f"{split}/y_{split}.txt")).astype(np.int64).ravel() - 1)
            parts["subject"].append(
                _table(read(f"{split}/subject_{split}.txt")).astype(np.int64).ravel()
            )
    except (OSError, ValueError) as error:
        raise DataError(f"data {path} is not the folder {FOLDER}: {error}") from None
    arrays = {name: np.concatenate(values) for name, values in parts.items()}
    return {**arrays, "channel_names": np.array(SIGNALS), "activity_names": np.array(ACTIVITIES)}


def _table(text: bytes) -> Array:
    return np.loadtxt(io.BytesIO(text), dtype=np.float32, ndmin=2)
