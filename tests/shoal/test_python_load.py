"""`shoal.load`: every kind of source, and what is wrong with one said in a line."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import shoal
from edge_client.core.ports import Windows
from simulation.datasets.catalog import load_data
from simulation.datasets.windows import FleetData
from simulation.local.fleet import write_device_folder
from tests.support.fleets import synthetic_fleet
from tests.support.recordings import recording
from wire.bundle import Window
from wire.errors import DataError

PARTS = ("train_x", "train_y", "test_x", "test_y")


def arrays(num: int = 3) -> tuple[Any, Any, Any]:
    """The training windows of a fleet, whose device each is by number."""
    held = [synthetic_fleet(num).devices[f"d{i}"] for i in range(num)]
    x, y = (
        np.concatenate([getattr(windows, part) for windows in held])
        for part in ("train_x", "train_y")
    )
    return x, y, np.repeat(np.arange(num), [windows.num_train for windows in held])


def same(one: shoal.FleetData, other: shoal.FleetData) -> None:
    """Both have the same devices with the same windows."""
    assert list(one.devices) == list(other.devices)
    for device_id, windows in one.devices.items():
        for part in PARTS:
            np.testing.assert_array_equal(
                getattr(windows, part), getattr(other.devices[device_id], part)
            )


class Pairs(Dataset[Any]):
    """A map-style data set that is no `TensorDataset`."""

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, at: int) -> Any:
        return torch.from_numpy(self.x[at]), int(self.y[at])


class Stream(IterableDataset[Any]):
    """A data set without a length."""

    def __iter__(self) -> Any:
        return iter(())


def test_names_and_partitions_are_those_of_the_command_line() -> None:
    same(shoal.load("watch"), load_data("watch"))
    assert list(shoal.load("watch", partition="iid", devices=3, seed=1).devices) == [
        "d01",
        "d02",
        "d03",
    ]


def test_arrays_are_what_a_file_of_them_is(tmp_path: Path) -> None:
    x, y, owner = arrays()
    np.savez(tmp_path / "own.npz", X=x, y=y, subject=owner)
    same(shoal.load(x, y, owner), shoal.load(tmp_path / "own.npz"))


def test_arrays_in_the_place_of_data_are_told_what_makes_data_of_them() -> None:
    with pytest.raises(
        DataError, match=r"arrays loaded with shoal\.load\(x, y, owner\), got ndarray"
    ):
        shoal.simulate(np.zeros((4, 3, 8)))  # type: ignore[arg-type]


def test_owners_and_everything_else_may_have_names() -> None:
    x, y, owner = arrays()
    read = shoal.load(
        x,
        y,
        np.array(["ben", "anna", "carla"])[owner],
        classes=["slow", "middle", "fast"],
        channels=["ax", "ay"],
    )
    assert (list(read.devices), read.classes, read.window.channels) == (
        ["anna", "ben", "carla"],
        ("slow", "middle", "fast"),
        ("ax", "ay"),
    )
    np.testing.assert_array_equal(
        read.devices["ben"].train_x, shoal.load(x, y, owner).devices["s00"].train_x
    )
    assert list(read.recordings) == ["anna", "ben", "carla"]


def test_examples_by_device_may_be_arrays_tensors_or_data_sets() -> None:
    x, y, owner = arrays()
    numbered = shoal.load(x, y, owner)
    examples = [(x[owner == i], y[owner == i]) for i in range(3)]
    tensors = TensorDataset(*(torch.from_numpy(part) for part in examples[1]))
    read = shoal.load({"a": examples[0], "b": tensors, "c": Pairs(*examples[2])})
    assert list(read.devices) == ["a", "b", "c"]
    for windows, others in zip(read.devices.values(), numbered.devices.values(), strict=True):
        for part in PARTS:
            np.testing.assert_array_equal(getattr(windows, part), getattr(others, part))


def test_a_test_part_that_is_given_stays() -> None:
    x, y, _ = arrays(2)
    read = shoal.load({"a": (x[:30], y[:30], x[30:40], y[30:40]), "b": (x[40:], y[40:])})
    np.testing.assert_array_equal(read.devices["a"].test_x, x[30:40])
    assert (read.devices["a"].num_train, read.devices["b"].num_test) == (30, 10)


def test_a_folder_of_recordings_has_a_device_for_each(tmp_path: Path) -> None:
    recording(tmp_path / "own")
    (tmp_path / "own" / "one.csv").rename(tmp_path / "own" / "anna.csv")
    (tmp_path / "own" / "ben.csv").write_bytes((tmp_path / "own" / "anna.csv").read_bytes())
    read = shoal.load(tmp_path / "own")
    assert (list(read.devices), read.classes, read.window.stride) == (
        ["anna", "ben"],
        ("rest", "walk"),
        64,
    )
    assert read.devices["ben"].num_train == 3
    shorter = shoal.load(tmp_path / "own", length=64, stride=32)
    assert (shorter.window.length, shorter.window.stride, shorter.devices["ben"].num_train) == (
        64,
        32,
        10,
    )


def test_parquet_reads_as_csv_does(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip(
        "pyarrow", reason="pyarrow is not installed: pip install 'shoal[parquet]' would run this"
    )
    from pyarrow import csv, parquet

    rng = np.random.default_rng(0)
    rows = [
        f"{i},{rng.normal():.9g},{rng.normal():.9g},{'walk' if i < 300 else 'rest'}"
        for i in range(600)
    ]
    for kind in ("csv", "parquet"):
        (tmp_path / kind / "a").mkdir(parents=True)
        (tmp_path / kind / "a" / "classes.txt").write_text("rest\nwalk\n")
    (tmp_path / "csv" / "a" / "one.csv").write_text("\n".join(["t,ax,ay,label", *rows]))
    parquet.write_table(
        csv.read_csv(tmp_path / "csv" / "a" / "one.csv"), tmp_path / "parquet" / "a" / "one.parquet"
    )
    same(shoal.load(tmp_path / "csv"), shoal.load(tmp_path / "parquet"))
    times = 1_700_000_000_000_000_000 + np.arange(600) * 20_000_000
    table = pyarrow.table(
        {
            "when": pyarrow.array(times, pyarrow.timestamp("ns")),
            "ax": [None if i % 9 == 4 else i % 7 for i in range(600)],
            "name": ["anna"] * 600,
            "label": pyarrow.array(["walk"] * 600).dictionary_encode(),
        }
    )
    parquet.write_table(table, tmp_path / "parquet" / "a" / "one.parquet")
    typed = shoal.load(tmp_path / "parquet", columns={"when": "time"})
    assert (typed.window.channels, typed.window.rate_hz) == (("ax",), 50)
    assert typed.devices["a"].train_x[0, 0, 4] == 4, "an empty cell is filled in"
    (tmp_path / "parquet" / "a" / "one.parquet").write_bytes(b"nothing")
    with pytest.raises(shoal.DataError, match=r"one\.parquet is not readable as Parquet"):
        shoal.load(tmp_path / "parquet")


def test_parquet_without_pyarrow_says_what_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        shoal.DataError,
        match=r"one\.parquet: Parquet needs the package pyarrow: pip install 'shoal\[parquet\]'",
    ):
        shoal.load(tmp_path)


def test_a_recording_in_two_forms_is_refused(tmp_path: Path) -> None:
    recording(tmp_path / "a")
    (tmp_path / "a" / "one.parquet").write_bytes(b"PAR1")
    with pytest.raises(shoal.DataError, match=r"one\.csv and one\.parquet have the same name"):
        shoal.load(tmp_path)


def test_what_it_loads_is_trained_on() -> None:
    x, y, owner = arrays(4)
    result = shoal.simulate(
        shoal.load(x, y, owner), algorithm="fedavg", rounds=6, local_epochs=4, lr=0.05
    )
    assert result.accuracy.mean is not None
    assert result.accuracy.mean > 0.8


X = np.zeros((8, 2, 16), np.float32)
Y = np.arange(8) % 2


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (({},), "the mapping is empty"),
        (
            ({"a": (X, Y[:7])},),
            r"device 'a': expected a label for each example, got x as float32\[8, 2, 16\] and y as "
            r"int64\[7\]",
        ),
        (({"a": (X,)},), r"device 'a': expected \(x, y\), .* got a tuple of 1"),
        (({"a": X},), r"device 'a': expected \(x, y\), .* got ndarray"),
        (
            ({"a": (X, Y, X[:, :, :4], Y)},),
            r"training examples have shape \(2, 16\), but test examples \(2, 4\)",
        ),
        (
            ({"a": Stream()},),
            "device 'a': expected a map-style Dataset, got Stream without a length",
        ),
        (
            ({"a": Pairs([X[0], X[0, 0]], [0, 1])},),
            r"device 'a': expected examples of one shape, or .* got shapes \(2, 16\), \(16,\)",
        ),
        (({"a": (X[:, 0], Y)},), r"X is float32\[8, 16\]; windows of one channel are"),
        ((X, Y), r"data must be arrays as in load\(x, y, owner\)"),
        ((X, Y, Y[:3]), r"subject must be int\[8\] or str\[8\], got int64\[3\]"),
        (("no-such-data",), "There is no file or folder of this name"),
    ],
)
def test_what_is_wrong_is_said(source: tuple[Any, ...], said: str) -> None:
    with pytest.raises(shoal.DataError, match=said):
        shoal.load(*source)


def test_lengths_are_for_recordings(tmp_path: Path) -> None:
    with pytest.raises(
        shoal.DataError,
        match="window=64 must be left out unless data is a folder or a table of recordings, "
        "got 'watch'",
    ):
        shoal.load("watch", length=64)
    recording(tmp_path / "a")
    wrong: tuple[Any, ...] = (0, "64")
    for length in wrong:
        said = f"length must be a whole number of samples from 1 on, got {length!r}"
        with pytest.raises(shoal.ConfigError, match=said):
            shoal.load(tmp_path, length=length)


@pytest.mark.parametrize(
    "word", [{"channels": ["x"]}, {"classes": ["walk"]}, {"y": [0, 1]}, {"vocabulary": 5}]
)
def test_a_word_for_data_from_memory_is_not_passed_over_beside_a_path(
    tmp_path: Path, word: dict[str, Any]
) -> None:
    recording(tmp_path / "a")
    (name,) = word
    with pytest.raises(shoal.ConfigError, match=f"{name} must be left out with the name or path"):
        shoal.load(tmp_path, **word)


def test_columns_of_a_folder_are_named_as_those_of_a_table(tmp_path: Path) -> None:
    lines = "".join(f"{0.02 * i:.2f},{i % 7},{'up' if i < 150 else 'down'}\n" for i in range(300))
    for device in "ab":
        (tmp_path / device).mkdir()
        (tmp_path / device / "r.csv").write_text("when,x,what\n" + lines)
    fleet = shoal.load(tmp_path, label="what", time="when", length=32, stride=32)
    assert fleet.classes == ("down", "up")
    assert fleet.window.channels == ("x",)


@pytest.mark.parametrize("classes", [{0: "walk", 1: "sit"}, "ws"])
def test_names_of_classes_are_a_list(classes: Any) -> None:
    x, y = np.zeros((8, 3, 16), np.float32), np.arange(8) % 2
    with pytest.raises(shoal.ConfigError, match="classes must be a list of names"):
        shoal.load(x, y, np.repeat([0, 1], 4), classes=classes)


def test_class_numbers_of_a_table_beyond_the_names_are_an_error() -> None:
    table = {
        "x": np.arange(400.0),
        "who": np.repeat(["a", "b"], 200),
        "act": 1 + np.arange(400) % 2,
    }
    with pytest.raises(
        shoal.DataError, match="'act' has class numbers 1 to 2, and classes names 0"
    ):
        shoal.load(table, person="who", label="act", classes=["walk", "sit"])


class TestValidation:
    def test_no_window_of_the_test_part_is_in_it(self, tmp_path: Path) -> None:
        fleet = synthetic_fleet(2)
        tuned_on = shoal.validation(fleet)
        for device_id, windows in tuned_on.devices.items():
            whole = fleet.devices[device_id]
            assert (windows.num_train, windows.num_test) == (30, 10)
            together = np.concatenate([windows.train_x, windows.test_x])
            assert sorted(map(bytes, together)) == sorted(map(bytes, whole.train_x))

    def test_a_share_that_cannot_be_is_said(self) -> None:
        with pytest.raises(shoal.ConfigError, match="share must be above 0 and below 1, got 1"):
            shoal.validation(synthetic_fleet(2), 1)


def test_device_folders_are_those_of_boards(tmp_path: Path) -> None:
    fleet = synthetic_fleet(2)
    for device_id in fleet.devices:
        write_device_folder(fleet, device_id, tmp_path / device_id)
    same(shoal.load(tmp_path), load_data(str(tmp_path)))


@pytest.mark.parametrize(
    "window", [Window(tuple("abcdefghi"), 4, 4), Window(("word",), 6, 6, vocabulary=5)]
)
def test_device_folders_say_what_an_array_cannot(tmp_path: Path, window: Window) -> None:
    """More channels than samples, and whole numbers that are ids."""
    draw, y = np.random.default_rng(0), np.arange(12) % 2
    x = (
        draw.integers(window.vocabulary, size=(12, *window.shape))
        if window.vocabulary
        else draw.random((12, *window.shape), np.float32)
    )
    data = FleetData("mine", window, ("0", "1"), {"d0": Windows(x[:8], y[:8], x[8:], y[8:])})
    write_device_folder(data, "d0", tmp_path / "d0")
    found = shoal.load(tmp_path)
    assert (found.window.channels, found.window.vocabulary) == (window.channels, window.vocabulary)
    np.testing.assert_array_equal(found.devices["d0"].train_x, x[:8])


def test_devices_whose_examples_have_other_shapes_are_named() -> None:
    x, y = np.zeros((4, 3, 16), np.float32), np.zeros(4, int)
    with pytest.raises(
        shoal.DataError,
        match=r"device 'b': examples of shape \[3, 8\], but those of device 'a' have shape "
        r"\[3, 16\]",
    ):
        shoal.load({"a": (x, y), "b": (x[..., :8], y)})


def test_a_fleet_in_which_no_device_can_train_says_so() -> None:
    x = np.random.default_rng(0).normal(size=(12, 3, 16))
    fleet = shoal.load(x, np.arange(12) % 2, np.arange(12))
    with pytest.raises(
        shoal.ShoalError, match="No device can train: each needs at least 2 examples with labels"
    ):
        shoal.simulate(fleet, algorithm="fedavg", rounds=1)
