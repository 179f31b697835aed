"""Data as devices have them, one folder each, as a simulated fleet."""

from pathlib import Path

import numpy as np
import pytest

from algorithms.composition import read_algorithm
from simulation.datasets.catalog import load_data
from simulation.datasets.description import described
from simulation.datasets.device_folders import load_device_folders
from simulation.local.fleet import write_device_folder
from simulation.settings import SimulationSettings
from simulation.simulate import simulate
from tests.support.fleets import synthetic_fleet
from tests.support.recordings import recording
from wire.errors import DataError


def test_what_devices_read_is_the_fleet_that_it_was_written_from(tmp_path: Path) -> None:
    fleet = synthetic_fleet(3)
    for device_id in fleet.devices:
        write_device_folder(fleet, device_id, tmp_path / device_id)
    read = load_data(str(tmp_path))
    assert read.devices.keys() == fleet.devices.keys()
    assert (read.window.shape, read.classes) == (fleet.window.shape, ("0", "1", "2"))
    for device_id, windows in fleet.devices.items():
        for part in ("train_x", "train_y", "test_x", "test_y"):
            np.testing.assert_array_equal(
                getattr(read.devices[device_id], part), getattr(windows, part)
            )
    settings = SimulationSettings(read_algorithm("fedavg"), 1)
    assert simulate(read, settings).summary.accuracy == simulate(fleet, settings).summary.accuracy


def test_recordings_are_cut_and_their_classes_have_names(tmp_path: Path) -> None:
    for device_id in ("a", "b"):
        recording(tmp_path / device_id)
    read = load_data(str(tmp_path))
    assert (read.window.shape, read.window.stride, read.classes) == ((2, 128), 64, ("rest", "walk"))
    assert (read.devices["b"].num_train, read.devices["b"].num_test) == (3, 2)


def test_the_account_says_the_size_of_all_windows(tmp_path: Path) -> None:
    for device_id in ("a", "b"):
        recording(tmp_path / device_id)
    read = load_data(str(tmp_path))
    count = sum(w.num_train + w.num_test + w.num_unlabelled for w in read.devices.values())
    assert f"all windows take {count * 2 * 128 * 4 / 2**20:.3g} MiB" in described(read)


def test_a_folder_without_device_folders_says_what_was_expected(tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", np.zeros((4, 2, 8)))
    with pytest.raises(
        DataError, match=r"has no folder of a device\. It must have one for each device"
    ):
        load_data(str(tmp_path))


def test_a_folder_that_is_no_devices_is_named(tmp_path: Path) -> None:
    recording(tmp_path / "a")
    (tmp_path / "b").mkdir()
    with pytest.raises(DataError, match=r"/b must have train\.npz"):
        load_data(str(tmp_path))


@pytest.mark.parametrize(
    ("other", "error"),
    [
        (
            {"classes": "walk\nrest\n"},
            "classes.txt must be the same on all devices, and differs between a, b",
        ),
        (
            {"columns": "t,ax,ay,az,label"},
            "same channels, got ax, ay for device a and ax, ay, az for device b.*left out",
        ),
    ],
)
def test_devices_that_differ_are_one_clear_error(
    tmp_path: Path, other: dict[str, str], error: str
) -> None:
    recording(tmp_path / "a")
    recording(tmp_path / "b", **other)
    with pytest.raises(DataError, match=error):
        load_data(str(tmp_path))


def test_a_list_that_is_too_short_for_the_labels_is_one_clear_error(tmp_path: Path) -> None:
    write_device_folder(synthetic_fleet(1), "d0", tmp_path / "d0")
    (tmp_path / "d0" / "classes.txt").write_text("slow\nfast\n")
    with pytest.raises(DataError, match=r"classes\.txt lists 2 classes, and y has class number 2"):
        load_data(str(tmp_path))


def test_a_folder_around_the_recordings_is_a_device_and_that_is_said(tmp_path: Path) -> None:
    """An archive as it is unpacked has one folder around everything."""
    inner = tmp_path / "Dataset"
    recording(inner)
    (inner / "two.csv").write_text((inner / "one.csv").read_text())
    fleet = load_device_folders(tmp_path)
    assert list(fleet.devices) == ["Dataset"]
    assert fleet.reading is not None
    (said,) = (remark for remark in fleet.reading.remarks if "one device" in remark)
    assert str(inner) in said
    assert list(load_device_folders(inner).devices) == ["one", "two"]
