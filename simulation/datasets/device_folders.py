"""A fleet from a folder with one folder per device, as `shoal-edge --data` takes it: the same data for a simulation and for devices."""

from pathlib import Path

import numpy as np

from edge_client.adapters.windows import channels_of, load_folder
from edge_client.core.ports import Windows
from simulation.datasets.npz import MOST_CLASSES
from simulation.datasets.windows import FleetData
from wire.bundle import Window
from wire.errors import DataError

LENGTH, STRIDE = 128, 64
"""How recordings are cut into windows, in samples: what `shoal-edge` does unless it is told otherwise."""
CLASSES = "classes.txt"


def load_device_folders(path: Path) -> FleetData:
    """Read a folder of devices; a device's id is the name of its folder.

    Raises:
        DataError: there is no folder in it, one of them is no device's, or their windows or classes differ.
    """
    folders = sorted(folder for folder in path.iterdir() if folder.is_dir() and not folder.name.startswith("."))
    if not folders:
        raise DataError(f"data {path}: expected a folder for each device, as `shoal-edge --data` takes it; there is none in it")
    devices = {folder.name: load_folder(folder, LENGTH, STRIDE) for folder in folders}
    shapes = {device_id: windows.train_x.shape[1:] for device_id, windows in devices.items()}
    first = folders[0].name
    for device_id, shape in shapes.items():
        if shape != shapes[first]:
            raise DataError(f"data {path}: windows of device {device_id} have shape {shape}, those of device {first} {shapes[first]}")
    channels = channels_of(folders[0]) or tuple(f"c{i}" for i in range(shapes[first][0]))
    for folder in folders:
        if (own := channels_of(folder)) and own != channels:
            raise DataError(f"data {path}: device {folder.name} has the channels {', '.join(own)}, device {first} {', '.join(channels)}")
    length = shapes[first][-1]
    stride = length if _has_arrays(folders[0]) else STRIDE
    window = Window(channels, length, stride, height=shapes[first][1] if len(shapes[first]) == 3 else 0)
    return FleetData(path.resolve().name, window, _classes(path, folders, devices), devices)


def _has_arrays(folder: Path) -> bool:
    return any((folder / name).exists() for name in ("train.npz", "X.npy")) or not any(folder.glob("*.csv"))


def _classes(path: Path, folders: list[Path], devices: dict[str, Windows]) -> tuple[str, ...]:
    """The names of the classes that the devices' folders list, or the numbers of those that their examples have.

    Raises:
        DataError: labels are no class numbers; the lists differ, or are shorter than the examples need.
    """
    labels = np.concatenate([y for windows in devices.values() for y in (windows.train_y, windows.test_y)])
    lowest, highest = (int(labels.min()), int(labels.max())) if len(labels) else (-1, -1)
    if lowest < 0 or highest > MOST_CLASSES:
        raise DataError(f"data {path}: y reaches {lowest}..{highest}, expected class numbers from 0")
    present = np.unique(labels)
    if not any((folder / CLASSES).exists() for folder in folders) and (lowest > 0 or 2 * len(present) <= highest):
        told = (
            f"labels are {', '.join(map(str, present[:8].tolist()))}{' ...' if len(present) > 8 else ''}, so {highest + 1 - len(present)}"
        )
        raise DataError(
            f"data {path}: {told} of {highest + 1} classes have no example: count classes from 0, or list their names in {CLASSES}"
        )
    lists = {folder.name: (folder / CLASSES).read_text().rstrip("\n") for folder in folders if (folder / CLASSES).exists()}
    if len(set(lists.values())) > 1:
        raise DataError(f"data {path}: {CLASSES} differs between the devices {', '.join(lists)}")
    names = next(iter(lists.values())).split("\n") if lists else [str(number) for number in range(highest + 1)]
    if len(names) <= highest:
        raise DataError(f"data {path}: {CLASSES} lists {len(names)} classes, y reaches {highest}")
    return tuple(names)
