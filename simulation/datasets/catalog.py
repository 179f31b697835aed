"""From what a user writes after ``--data`` to a fleet: ``watch``, ``uci-har``, or a path."""

import os
from pathlib import Path

from simulation.datasets.npz import load_npz
from simulation.datasets.uci_har import is_uci_har, load_uci_har
from simulation.datasets.watch import load_watch
from simulation.datasets.windows import FleetData
from wire.errors import DataError

UCI_HAR_NAMES = ("uci_har/uci_har.npz", "uci_har.npz", "uci_har/UCI HAR Dataset.zip", "UCI HAR Dataset.zip", "UCI HAR Dataset", "uci_har")


def load_data(name_or_path: str) -> FleetData:
    """Load a fleet's data.

    ``uci-har`` is looked for in the folder that the environment variable SHOAL_DATA names.

    Raises:
        DataError: neither a known name nor a readable file; the text says what was expected.
    """
    if name_or_path == "watch":
        return load_watch()
    if name_or_path == "uci-har":
        return load_uci_har(_find_uci_har())
    path = Path(name_or_path)
    if not path.exists():
        raise DataError(f"data {name_or_path!r}: expected watch, uci-har, or a path; there is no such file")
    if is_uci_har(path) or path.name == "uci_har.npz":
        return load_uci_har(path)
    if path.suffix == ".npz":
        return load_npz(path)
    raise DataError(f"data {name_or_path!r}: expected a .npz file, or the folder or zip of UCI HAR")


def _find_uci_har() -> Path:
    folder = os.environ.get("SHOAL_DATA")
    if not folder:
        raise DataError("data 'uci-har': set SHOAL_DATA to the folder that holds it, or give its path: --data PATH")
    for name in UCI_HAR_NAMES:
        if (path := Path(folder) / name).exists():
            return path
    raise DataError(f"data 'uci-har': SHOAL_DATA={folder} holds none of {', '.join(UCI_HAR_NAMES)}")
