"""Warnings of commands about usable data with a probable mistake."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import shoal
from simulation.datasets.description import described
from simulation.datasets.doubts import doubts
from simulation.datasets.npz import load_npz
from simulation.datasets.windows import FleetData
from tests.support.fleets import synthetic_fleet
from wire.bundle import Window
from wire.errors import DataError


def scaled(times: float, num: int = 4) -> FleetData:
    """A fleet of which one channel of the device d1 has other numbers."""
    fleet = synthetic_fleet(num)
    x = fleet.devices["d1"].train_x.copy()
    x[:, 0] *= times
    return replace(fleet, devices={**fleet.devices, "d1": replace(fleet.devices["d1"], train_x=x)})


def test_usual_data_raise_none() -> None:
    assert doubts(synthetic_fleet(4)) == []
    assert doubts(scaled(9.0)) == []


@pytest.mark.parametrize("times", [1000.0, 0.001])
def test_a_device_in_another_unit_is_named_with_its_channel(times: float) -> None:
    (said,) = doubts(scaled(times))
    channel = synthetic_fleet(4).window.channels[0]
    assert f"channel {channel} of device d1 is " in said
    assert said.endswith("Are all devices in the same unit?")


def test_two_devices_cannot_tell_which_of_them_is_wrong() -> None:
    assert doubts(scaled(1000.0, num=2)) == []


def test_a_channel_that_is_always_zero_is_no_unit() -> None:
    assert doubts(scaled(0.0)) == []


def test_ids_have_no_unit() -> None:
    fleet = scaled(1000.0)
    window = Window(fleet.window.channels, fleet.window.length, 1, vocabulary=9)
    ids = {
        d: replace(w, train_x=np.abs(w.train_x).astype(np.int64)) for d, w in fleet.devices.items()
    }
    assert doubts(replace(fleet, window=window, devices=ids)) == []


@pytest.mark.parametrize(
    ("folders", "line"),
    [
        (
            ["dws_1", "ups_3", "wlk_7", "jog_9", "sit_5", "std_6"],
            '"*dws*/*" = "dws", "*jog*/*" = "jog", "*sit*/*" = "sit", "*std*/*" = "std"',
        ),
        (["01-walk", "02-wave"], '"*walk*/*" = "walk", "*wave*/*" = "wave"'),
    ],
)
def test_classes_of_folders_are_all_named_if_some_are_activities(
    tmp_path: Path, folders: list[str], line: str
) -> None:
    rows = "\n".join(["x,y", *(f"{i % 7}.5,{i % 11}.25" for i in range(300))])
    for folder in folders:
        for name in ("sub_1.csv", "sub_2.csv"):
            path = tmp_path / "data" / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(rows)
    (text,) = [text for text in doubts(shoal.load(tmp_path)) if "no column is the label" in text]
    assert line in text
    (tmp_path / "data" / "shoal.toml").write_text(text.partition("recordings: ")[2])
    assert len(shoal.load(tmp_path).classes) == len(folders)


@pytest.mark.parametrize(
    ("arrays", "way"),
    [
        ({"y": np.arange(96) % 2 == 0}, r"use y\.astype\(int\)"),
        ({"y": np.arange(96) % 3 - 1}, r"Leave out windows without a label, here -1"),
        ({"owner": np.arange(96) % 4 * 1.0}, r"use subject\.astype\(int\)"),
    ],
)
def test_arrays_of_another_dtype_are_refused_with_the_way_out(
    arrays: dict[str, np.ndarray], way: str
) -> None:
    with pytest.raises(DataError, match=way):
        shoal.load(X, **({"y": np.arange(96) % 2, "owner": np.arange(96) % 4} | arrays))


CLASS, PERSON = np.repeat(np.arange(1, 7), 16), np.tile(np.arange(1, 9), 12)
X = np.random.default_rng(0).standard_normal((96, 2, 32)).astype(np.float32)


@pytest.mark.parametrize(
    "y",
    [
        np.stack([CLASS, PERSON, np.tile([1, 2], 48)], 1),
        np.stack([PERSON, CLASS], 1),
        np.stack([np.array(["sit", "walk", "run"])[CLASS % 3], PERSON.astype(str)], 1),
        np.stack([CLASS, np.full(96, 3)], 1),
        np.stack([CLASS, CLASS, CLASS, PERSON], 1),
    ],
)
def test_columns_of_a_class_and_a_person_are_a_doubt(y: np.ndarray) -> None:
    fleet = shoal.load(X, y, np.arange(96) % 4)
    (said,) = [text for text in doubts(fleet, of_classes=False) if "seldom agree" in text]
    assert f"the {y.shape[1]} columns of y" in said
    assert "such as y[:, 0]" in said
    assert f"a class for each of {y.shape[1]} steps of a window (task sequence)" in described(fleet)


@pytest.mark.parametrize("steps", [2, 4, 8, 16])
@pytest.mark.parametrize("without", [-1, 0])
def test_columns_of_steps_are_no_doubt(steps: int, without: int) -> None:
    y = np.repeat(CLASS[:, None], steps, 1)
    y[::3, steps // 2 :] = (y[::3, steps // 2 :] + 1) % 7
    y[::5, 0] = without
    assert not [text for text in doubts(shoal.load(X, y, PERSON)) if "seldom agree" in text]


@pytest.mark.parametrize(
    ("y", "line"),
    [
        (CLASS, "one class for each window (task classification)"),
        (CLASS.astype(str), "one class for each window (task classification)"),
        (CLASS / 7, "quantities (task regression)"),
        (CLASS * 1.0, "whole numbers with a point: classes as y.astype(int), or quantities"),
        (np.eye(7)[CLASS], "a column for each class, as y.argmax(1), or quantities (task reg"),
        (np.eye(7, dtype=int)[CLASS], "a column for each class, as y.argmax(1), or names that"),
        (np.stack([CLASS % 2, PERSON % 2], 1), "names that each apply or not (task multi-label)"),
        (np.repeat(CLASS[:, None], 3, 1), "a class for each of 3 steps of a window (task seq"),
    ],
)
def test_an_account_says_the_task_that_labels_mean(y: np.ndarray, line: str) -> None:
    assert f"\nlabels: {line}" in described(shoal.load(X, y, PERSON))


def test_an_account_says_that_recordings_have_no_labels(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("\n".join(["t,x", *(f"{i / 50},{i % 7}" for i in range(500))]))
    assert "\nlabels: none (the task reconstruction" in described(shoal.load(tmp_path))


def test_one_class_is_a_doubt_where_labels_matter() -> None:
    fleet = synthetic_fleet(3)
    same = replace(
        fleet,
        devices={d: replace(w, train_y=np.zeros_like(w.train_y)) for d, w in fleet.devices.items()},
    )
    assert ["nothing to learn" in said for said in doubts(same)] == [True]
    assert doubts(same, of_classes=False) == []


def test_classes_that_differ_in_case_are_named(tmp_path: Path) -> None:
    table = pd.DataFrame({"x": np.arange(900) % 7 / 2, "person": "ann"})
    table["label"] = ["Walking"] * 300 + ["walking"] * 300 + ["sitting"] * 300
    words = doubts(shoal.load(table, person="person", length=50))
    assert any("'Walking' and 'walking' are taken for two" in text for text in words)
    table["label"] = table["label"].str.lower()
    assert not any("for two" in text for text in doubts(shoal.load(table, person="person")))


@pytest.mark.parametrize("cell", ["1.013,25", "1,013.25", "1.000,00", "12'345", "1 013,2"])
def test_numbers_with_marked_thousands_are_refused_with_their_cell(
    tmp_path: Path, cell: str
) -> None:
    rows = [f"{i / 50};{i % 7};{cell};sit" for i in range(500)]
    (tmp_path / "ann").mkdir()
    (tmp_path / "ann/a.csv").write_text("\n".join(["t;x;pressure;label", *rows]))
    with pytest.raises(DataError, match=f"line 2, column pressure: {re.escape(repr(cell))} is not"):
        shoal.load(tmp_path)


def test_folders_of_parts_are_said_to_decide_nothing(tmp_path: Path) -> None:
    for part in ("train", "test"):
        for person in ("p1", "p2"):
            (tmp_path / part).mkdir(exist_ok=True)
            lines = [f"{i / 50},{i % 7},sit" for i in range(500)]
            (tmp_path / part / f"{person}.csv").write_text("\n".join(["t,x,label", *lines]))
    assert any(
        "the names test, train do not decide" in text for text in doubts(shoal.load(tmp_path))
    )


def test_arrays_that_are_not_read_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    x = np.zeros((8, 2, 16), np.float32)
    np.savez(tmp_path / "a.npz", X=x, y=np.arange(8) % 2, groups=np.arange(8) // 4)
    load_npz(tmp_path / "a.npz")
    assert "arrays groups are not read. Those that are: X, y, subject, split" in caplog.text
    with pytest.raises(DataError, match=r"To load all devices from a.npz, give that file"):
        shoal.load(tmp_path)
