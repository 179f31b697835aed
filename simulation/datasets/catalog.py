"""The data sets of ``--data``, which are names (`NAMES`) or paths, as a fleet or a pool."""

import os
from pathlib import Path
from typing import NamedTuple

import msgspec

from algorithms.spec import unknown
from edge_client.data.recordings.unread import unread
from edge_client.data.tables.parts import is_table
from edge_client.data.tables.words import FolderSettings
from simulation.datasets.device_folders import load_device_folders
from simulation.datasets.geotec import FOLDER as GEOTEC
from simulation.datasets.geotec import Side, load_geotec
from simulation.datasets.images import FILES, load_images
from simulation.datasets.npz import load_npz
from simulation.datasets.pool import Pool, assign_alike
from simulation.datasets.uci_har import is_uci_har, load_uci_har
from simulation.datasets.watch import load_watch, load_watch_session
from simulation.datasets.windows import FleetData
from simulation.settings import SimulationSettings
from wire.errors import DataError

UCI_HAR_NAMES = (
    "uci_har/uci_har.npz",
    "uci_har.npz",
    "uci_har/UCI HAR Dataset.zip",
    "UCI HAR Dataset.zip",
    "UCI HAR Dataset",
    "uci_har",
)

NAMES = {
    "watch": "20 smartwatches: ten people, both arms, 7 shoulder exercises; comes with the package "
    "seglearn",
    "watch-session": "the same watches, their exercises one after another: windows of 10 s, a "
    "label for each of 32 steps (+sequence)",
    "uci-har": "30 people with a smartphone on the waist, 6 activities",
    "geotec-phone": "23 people with a smartphone in the pocket, 5 activities of a short walk",
    "geotec-watch": "the same people, their smartwatches",
    "mnist": "60,000 + 10,000 handwritten digits, a pool of images",
    "fashion-mnist": "60,000 + 10,000 pieces of clothing, a pool of images",
    "cifar10": "50,000 + 10,000 photographs of 10 kinds of objects, a pool of images: the best "
    "copy there is",
    "cifar10-jpeg": "the same, compressed as JPEG",
    "cifar10-5k": "the first 4,000 + 1,000 of them without loss",
}
"""Data sets by name, with a description.

All but those of the watches lie in the folder of the environment variable SHOAL_DATA.
"""
PACKAGED = ("watch", "watch-session")
"""Names of the data sets that a package contains."""


class Cuts(NamedTuple):
    """The way in which windows are cut from recordings; 0 for the usual one."""

    window: int = 0
    """Number of samples of a window."""
    stride: int = 0
    """Number of samples between the starts of two windows."""
    steps: int = 0
    """Number of steps with a class of their own in each window."""
    rate: float = 0.0
    """Number of samples a second."""


USUAL_CUTS = Cuts()


def cuts_of(settings: SimulationSettings) -> Cuts:
    """Return the way in which settings say that recordings are cut."""
    return Cuts(settings.window, settings.stride, settings.steps, settings.rate)


def load_data(name_or_path: str, cuts: Cuts = USUAL_CUTS) -> FleetData:
    """Load a fleet's data.

    A pool is assigned at random to 20 devices, which then all have the same distribution.

    Raises:
        DataError: neither a known name nor a readable file; the text says what was expected.
    """
    data = load(name_or_path, cuts)
    return assign_alike(data) if isinstance(data, Pool) else data


def load(
    name_or_path: str, cuts: Cuts = USUAL_CUTS, words: FolderSettings | None = None
) -> FleetData | Pool:
    """Load data as they are: a fleet if the examples have owners, a pool if they have none.

    `cuts` and `words` are of recordings, and go before those of ``shoal.toml``.

    Raises:
        DataError: neither a known name nor a readable file; the text says what was expected.
    """
    path = Path(name_or_path)
    if (any(cuts) or words is not None) and not (
        name_or_path not in NAMES and (path.is_dir() or (path.is_file() and is_table(path)))
    ):
        options = [f"{name}={value:g}" for name, value in cuts._asdict().items() if value]
        raise DataError(
            f"{', '.join(options or ['columns'])} must be left out unless data is a folder or a "
            f"table of recordings, got {name_or_path!r}"
        )
    if name_or_path == "watch":
        return load_watch()
    if name_or_path == "watch-session":
        return load_watch_session()
    if name_or_path == "uci-har":
        return load_uci_har(find_uci_har())
    if name_or_path in ("geotec-phone", "geotec-watch"):
        folder = _folder("geotec")
        if not (folder / GEOTEC).is_dir():
            raise DataError(
                f"data {name_or_path!r}: SHOAL_DATA={folder} has no {GEOTEC}. Run there: git clone "
                f"https://github.com/GeoTecINIT/{GEOTEC}"
            )
        side: Side = "phone" if name_or_path == "geotec-phone" else "watch"
        return load_geotec(folder / GEOTEC, side)
    if name_or_path in FILES:
        return load_images(name_or_path, _folder(name_or_path))
    if not path.exists():
        hint = "There is no file or folder of this name either."
        raise DataError(unknown("data set", name_or_path, NAMES, hint))
    if is_uci_har(path) or path.name == "uci_har.npz":
        return load_uci_har(path)
    if path.suffix == ".npz":
        return load_npz(path)
    if path.is_dir() or is_table(path):
        words = words or FolderSettings()
        if cuts.rate:
            words = msgspec.structs.replace(words, rate=cuts.rate)
        return load_device_folders(path, cuts.window, cuts.stride, cuts.steps, words)
    raise DataError(
        f"data {name_or_path!r} is not a .npz file, a folder with a folder for each device, a "
        f"table of recordings, or the folder or zip of UCI HAR.{unread([path])}"
    )


def _folder(name: str) -> Path:
    folder = os.environ.get("SHOAL_DATA")
    if not folder:
        raise DataError(
            f"data {name!r} is in the folder of SHOAL_DATA, which is not set. Set it, or give the "
            "path of the data: --data PATH"
        )
    return Path(folder)


def find_uci_har() -> Path:
    """Return the path of UCI HAR in the folder of SHOAL_DATA.

    Raises:
        DataError: it is not there.
    """
    folder = _folder("uci-har")
    for name in UCI_HAR_NAMES:
        if (path := folder / name).exists():
            return path
    raise DataError(
        f"data 'uci-har': SHOAL_DATA={folder} has none of its files: {', '.join(UCI_HAR_NAMES)}"
    )
