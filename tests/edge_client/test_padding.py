"""Windows of different lengths: one rule for boards, simulations and what Python programs load."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

import shoal
from edge_client.core.ports import Windows
from edge_client.data.layout import fitting, windows_for
from edge_client.data.padding import PRESENCE, to_length, with_presence
from edge_client.data.windows import channels_of, load_folder, read_windows
from edge_client.work.executor import Executor
from simulation.datasets.device_folders import load_device_folders
from simulation.datasets.windows import FleetData
from tests.android.kotlin_vectors import FakeGraphs
from tests.wire import padding_vectors
from wire.arrays.tensors import Array, encode_tensors
from wire.bundle import INITIAL, Bundle, Manifest, Window
from wire.errors import DataError

COUNT = 24
LENGTHS = 3 + np.arange(COUNT) % 6
Y = np.arange(COUNT) % 2
RNG = np.random.default_rng(0)
UNEVEN = [RNG.standard_normal((2, n)).astype(np.float32) for n in LENGTHS]


def by_hand(length: int) -> Array:
    """The windows as the rule says, written down anew."""
    made = np.zeros((COUNT, 3, length), np.float32)
    for number, window in enumerate(UNEVEN):
        made[number, :2, : window.shape[1]] = window
        made[number, 2, : window.shape[1]] = 1
    return made


def garbage(length: int) -> Array:
    """The windows in one array, with what is no number behind them."""
    made = np.full((COUNT, 2, length), np.nan, np.float32)
    for number, window in enumerate(UNEVEN):
        made[number, :, : window.shape[1]] = window
    return made


def write(folder: Path, length: int = 8, **others: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "train.npz", X=garbage(length), y=Y, lengths=LENGTHS, **others)
    return folder


def all_windows(fleet: FleetData, device_id: str) -> Array:
    """The windows of a device, in any order but always the same."""
    windows = fleet.devices[device_id]
    return np.sort(np.concatenate([windows.train_x, windows.test_x]).reshape(COUNT, -1), axis=0)


class Gestures(Dataset[Any]):
    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, number: int) -> Any:
        return torch.from_numpy(UNEVEN[number]), int(Y[number])


def test_everything_that_is_loaded_is_padded_by_the_rule(tmp_path: Path) -> None:
    expected = np.sort(by_hand(8).reshape(COUNT, -1), axis=0)
    owner = np.zeros(COUNT, int)
    np.savez(tmp_path / "fleet.npz", X=garbage(8), y=Y, lengths=LENGTHS, subject=owner)
    loaded = {
        "a list": shoal.load(UNEVEN, Y, owner),
        "an array": shoal.load(garbage(8), Y, owner, lengths=LENGTHS),
        "a file": shoal.load(tmp_path / "fleet.npz"),
        "a list of a device": shoal.load({"s00": (UNEVEN, Y)}),
        "a data set": shoal.load({"s00": Gestures()}),
    }
    for name, fleet in loaded.items():
        assert fleet.window == Window(("c0", "c1", PRESENCE), 8, 8), name
        np.testing.assert_array_equal(all_windows(fleet, "s00"), expected, err_msg=name)
    longer = shoal.load(UNEVEN, Y, owner, length=11, channels=["ax", "ay"])
    assert longer.window == Window(("ax", "ay", PRESENCE), 11, 11)


def test_boards_and_simulations_read_the_same_of_a_folder(tmp_path: Path) -> None:
    write(tmp_path / "short", 8, channel_names=np.array(["ax", "ay"]))
    write(tmp_path / "long", 10, channel_names=np.array(["ax", "ay"]))
    assert channels_of(tmp_path / "short") == ("ax", "ay", PRESENCE)
    np.testing.assert_array_equal(load_folder(tmp_path / "short").train_x, by_hand(8))
    fleet = load_device_folders(tmp_path)
    assert fleet.window == Window(("ax", "ay", PRESENCE), 10, 10)
    for device_id in ("short", "long"):
        np.testing.assert_array_equal(fleet.devices[device_id].train_x, by_hand(10))
        np.testing.assert_array_equal(
            fitting(load_folder(tmp_path / device_id).train_x, fleet.window, "here"), by_hand(10)
        )
    np.testing.assert_array_equal(
        read_windows(tmp_path / "short" / "train.npz", fleet.window), by_hand(8)
    )


@pytest.mark.parametrize(
    ("lengths", "said"),
    [
        (LENGTHS[:-1], r"lengths must be int\[24\], the samples of each window, got int64\[23\]"),
        (LENGTHS + 0.5, r"lengths must be int\[24\], .*, got float64\[24\]"),
        (LENGTHS - 3, "the length of window 0 must be between 1 and 8, got 0"),
        (LENGTHS + 1, "the length of window 5 must be between 1 and 8, got 9"),
    ],
)
def test_lengths_that_cannot_be_are_one_clear_error(
    tmp_path: Path, lengths: Array, said: str
) -> None:
    write(tmp_path)
    np.savez(tmp_path / "train.npz", X=garbage(8), y=Y, lengths=lengths)
    for read in (
        lambda: load_folder(tmp_path),
        lambda: shoal.load(garbage(8), Y, np.zeros(COUNT, int), lengths=lengths),
    ):
        with pytest.raises(DataError, match=said):
            read()


def test_what_cannot_be_padded_is_one_clear_error(tmp_path: Path) -> None:
    owner = np.zeros(COUNT, int)
    with pytest.raises(
        DataError, match="window 5 must have at most 7 samples, got 8; cut it, or pad to more"
    ):
        shoal.load(UNEVEN, Y, owner, length=7)
    with pytest.raises(DataError, match="lengths must be left out if x is a list of windows"):
        shoal.load(UNEVEN, Y, owner, lengths=LENGTHS)
    with pytest.raises(
        DataError, match="length must be left out if all windows have one length, got 9"
    ):
        shoal.load(np.zeros((COUNT, 2, 8), np.float32), Y, owner, length=9)
    with pytest.raises(
        DataError,
        match=r"must be \(channels, time\) with the same channels; window 1 is "
        r"float32\[3, 4\], and the first is float32\[2, 3\]",
    ):
        shoal.load([UNEVEN[0], np.zeros((3, 4), np.float32)], [0, 1], [0, 0])
    with pytest.raises(
        DataError,
        match=r"lengths are for windows, X \[n, channels, time\], and X is float32\[4, 1, 8, 8\]",
    ):
        with_presence(np.zeros((4, 1, 8, 8), np.float32), np.ones(4, int), "here")
    write(tmp_path, vocabulary=np.array(9))
    with pytest.raises(DataError, match="lengths are for measurements, and X holds ids"):
        load_folder(tmp_path)


def test_a_board_with_shorter_windows_than_its_bundle_trains_and_predicts_with_them_padded(
    tmp_path: Path,
) -> None:
    """The folder is read before any bundle is known, as by the agent."""
    window = Window(("ax", "ay", PRESENCE), 10, 10)
    manifest = Manifest("m", 1, "a", {}, ("0", "1"), window, 2, {}, (), {}, {})
    bundle = Bundle(manifest, {INITIAL: encode_tensors({})}, "", b"")
    windows = load_folder(write(tmp_path, 8, channel_names=np.array(["ax", "ay"])))
    assert windows.train_x.shape == (COUNT, 3, 8)
    executor = Executor(bundle, FakeGraphs(), windows_for(manifest, windows))
    np.testing.assert_array_equal(executor._windows.train_x, by_hand(10))


def test_a_board_whose_windows_have_no_lengths_is_told_what_the_bundle_has() -> None:
    manifest = Manifest(
        "m", 1, "a", {}, ("0", "1"), Window(("ax", "ay", PRESENCE), 8, 8), 2, {}, (), {}, {}
    )
    x, y = np.zeros((4, 2, 8), np.float32), np.zeros(4, int)
    bundle = Bundle(manifest, {INITIAL: encode_tensors({})}, "", b"")
    with pytest.raises(
        DataError, match=r"training windows must have shape \(3, 8\) for bundle .*, got \(2, 8\)"
    ):
        Executor(bundle, FakeGraphs(), Windows(x, y, x, y))


def test_the_vectors_are_those_of_this_version() -> None:
    assert json.loads(padding_vectors.FILE.read_text()) == json.loads(padding_vectors.text())
    assert to_length(np.zeros((1, 2, 3)), Window(("a", "b"), 5, 5)).shape == (1, 2, 3)
