"""Recordings that say more of their samples than one class: names that are there or not,
quantities, and a class for each step."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shoal
from edge_client.core.ports import Windows
from edge_client.data.labels import fit_labels_of
from edge_client.data.windows import load_folder
from tests.wire.label_vectors import manifest_of
from wire.errors import DataError
from wire.tasks import NO_LABEL


def write(folder: Path, header: str, rows: list[str], name: str = "a.csv") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("\n".join([header, *rows]))
    return folder


def test_quantities_are_their_mean_over_a_window_and_windows_that_lack_one_have_no_label(
    tmp_path: Path,
) -> None:
    rows = [f"{i},{i},{i / 2 if i % 4 == 0 else ''},{1e6 if i < 40 else ''}" for i in range(80)]
    windows = load_folder(
        write(tmp_path, "t,ax,target.speed,target.load", rows), length=8, stride=8
    )
    assert windows.names == ("speed", "load")
    assert windows.train_x.shape == (5, 1, 8)
    assert windows.train_y.dtype == np.float32
    assert windows.train_y.tolist() == [[4 * k + 1, 1e6] for k in range(5)], (
        "of the two samples of eight that have a speed"
    )
    assert (windows.num_test, windows.num_unlabelled) == (0, 5)


def test_a_name_is_there_where_half_of_the_samples_have_it(tmp_path: Path) -> None:
    rows = [f"{i},{int(i % 8 < 4)},{int(i % 8 < 3)}" for i in range(64)]
    windows = load_folder(write(tmp_path, "ax,label.load,label.fault", rows), length=8, stride=8)
    assert windows.names == ("load", "fault")
    assert windows.train_y.dtype == np.int64
    assert windows.train_y.tolist() == [[1, 0]] * 5
    assert windows.test_y.tolist() == [[1, 0]] * 2


@given(st.lists(st.sampled_from(["", "0", "1"]), min_size=16, max_size=40), st.sampled_from([2, 4]))
def test_every_window_has_the_class_of_each_step_or_no_label(
    tmp_path_factory: pytest.TempPathFactory, said: list[str], steps: int
) -> None:
    folder = write(
        tmp_path_factory.mktemp("steps"),
        "ax,label",
        [f"{i},{label}" for i, label in enumerate(said)],
    )
    windows = load_folder(folder, length=4, stride=4, steps=steps)
    left = len(said) // 4 - windows.num_train - windows.num_test - windows.num_unlabelled
    assert 0 <= left <= 1, "only a window between the parts is left out"
    for x, y in zip(
        (*windows.train_x, *windows.test_x), (*windows.train_y, *windows.test_y), strict=True
    ):
        for step, own in zip(y.tolist(), x[0].astype(int).reshape(steps, -1), strict=True):
            labels = {said[i] for i in own}
            assert step == (int(labels.pop()) if len(labels) == 1 and labels != {""} else NO_LABEL)
        assert (y != NO_LABEL).any()
    assert all(not {said[int(i)] for i in x[0]} - {""} or steps < 4 for x in windows.unlabelled_x)


@pytest.mark.parametrize(
    ("header", "row", "steps", "said"),
    [
        (
            "ax,label",
            "1,2.5",
            0,
            r"a.csv, line 2: a label must be a whole number or a name, got '2.5'. If it is a "
            r"quantity, call its column target.NAME",
        ),
        (
            "ax,label,target.speed",
            "1,0,2.5",
            0,
            r"columns of one kind: label, or label.NAME .*, got label, target.speed",
        ),
        (
            "ax,label.a,target.speed",
            "1,0,2.5",
            0,
            "columns of one kind: .*, got label.a, target.speed",
        ),
        (
            "ax,label.a,label.a",
            "1,0,0",
            0,
            "its header has 'label.a' twice. Give each column a name of its own",
        ),
        ("ax,target.", "1,0", 0, "must have different names after the point, got target."),
        ("ax,label.a", "1,2", 0, "line 2: label.a must be 0 or 1, or empty, got '2'"),
        (
            "ax,target.speed",
            "1,inf",
            0,
            "line 2: target.speed must be a finite number, or empty, got 'inf'",
        ),
        (
            "ax,target.speed",
            "1,1e39",
            0,
            "line 2: target.speed must be a finite number, or empty, got '1e39'",
        ),
        ("ax,target.speed", "1", 0, r"line 2: \['1'\] does not fit the header"),
        (
            "ax,target.speed",
            "1,2.5",
            4,
            r"windows of steps need a column 'label' with classes, got target.speed",
        ),
        (
            "ax,label",
            "1,0",
            3,
            "steps must be a number from 2 that divides the 8 samples of a window, got 3",
        ),
    ],
)
def test_what_cannot_be_read_is_one_clear_error(
    tmp_path: Path, header: str, row: str, steps: int, said: str
) -> None:
    with pytest.raises(DataError, match=said):
        load_folder(write(tmp_path, header, [row] * 16), length=8, stride=8, steps=steps)


def test_recordings_of_one_device_say_the_same_of_their_samples(tmp_path: Path) -> None:
    write(tmp_path, "ax,target.speed", ["1,2.5"] * 16)
    write(tmp_path, "ax,label", ["1,0"] * 16, "b.csv")
    with pytest.raises(
        DataError, match=r"b\.csv: labels must be target\.speed, as in a\.csv, got label"
    ):
        load_folder(tmp_path, length=8, stride=8)


def test_columns_are_put_in_the_order_of_the_bundle(tmp_path: Path) -> None:
    windows = load_folder(
        write(tmp_path, "ax,target.b,target.a", [f"{i},2.5,1.5" for i in range(32)]),
        length=4,
        stride=4,
    )
    fitted = fit_labels_of(windows, manifest_of("regression", 2))
    assert fitted.train_y[0].tolist() == [1.5, 2.5]
    with pytest.raises(
        DataError, match=r"train: labels are called b, a, and the bundle's are a, b, c"
    ):
        fit_labels_of(windows, manifest_of("regression", 3))


def test_a_fleet_of_recordings_is_read_as_boards_read_theirs(tmp_path: Path) -> None:
    rows = [f"{i},{np.sin(i)},{i / 80},{20 - i / 8}" for i in range(160)]
    swapped = [f"{i},{np.sin(i)},{20 - i / 8},{i / 80}" for i in range(160)]
    write(tmp_path / "fleet" / "one", "t,ax,target.speed,target.heat", rows)
    write(tmp_path / "fleet" / "two", "t,ax,target.heat,target.speed", swapped)
    fleet = shoal.load(tmp_path / "fleet", length=16, stride=8)
    assert fleet.classes == ("speed", "heat")
    np.testing.assert_array_equal(fleet.devices["one"].train_y, fleet.devices["two"].train_y)
    result = shoal.simulate(fleet, algorithm="fedavg+regression", rounds=1)
    assert set(result.mae) == {"speed", "heat"}
    write(tmp_path / "fleet" / "two", "t,ax,target.heat,target.load", swapped)
    with pytest.raises(
        DataError,
        match="device two: labels are called heat, load, and those of device one are speed, heat",
    ):
        shoal.load(tmp_path / "fleet", length=16, stride=8)
    (tmp_path / "fleet" / "one" / "classes.txt").write_text("heat\nspeed\n")
    write(tmp_path / "fleet" / "two", "t,ax,target.heat,target.speed", swapped)
    assert shoal.load(tmp_path / "fleet", length=16, stride=8).classes == ("heat", "speed")


@pytest.mark.parametrize(
    ("listed", "told"),
    [
        (b"rest\nwalk\nrest\n", "classes.txt lists class 'rest' twice; list each class once"),
        (b"rest\n\0\n", "is no text"),
    ],
)
def test_a_list_of_classes_that_cannot_be_used_is_one_clear_error(
    tmp_path: Path, listed: bytes, told: str
) -> None:
    (tmp_path / "classes.txt").write_bytes(listed)
    write(tmp_path, "ax,label", ["1,rest"] * 16)
    with pytest.raises(DataError, match=told):
        load_folder(tmp_path, 8, 4)


def test_a_folder_of_recordings_makes_windows_of_steps(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(
            tmp_path,
            "ax,label",
            [f"{i % 7},{'walk' if i % 40 < 20 else 'rest'}" for i in range(320)],
            f"{name}.csv",
        )
    (tmp_path / "classes.txt").write_text("rest\nwalk\n")
    fleet = shoal.load(tmp_path, length=32, stride=16, steps=8)
    assert (fleet.window.steps, fleet.classes, sorted(fleet.devices)) == (
        8,
        ("rest", "walk"),
        ["one", "two"],
    )
    assert set(np.unique(fleet.devices["one"].train_y)) == {0, 1}
    result = shoal.simulate(fleet, algorithm="fedavg+sequence", rounds=1)
    assert result.predictions("one").shape == (fleet.devices["one"].num_test, 8)
    with pytest.raises(
        DataError,
        match="steps=4 must be left out unless data is a folder or a table of recordings",
    ):
        shoal.load("watch", steps=4)


def test_windows_without_names_have_none() -> None:
    x, y = np.zeros((2, 1, 4), np.float32), np.zeros(2, np.int64)
    assert Windows(x, y, x, y).names == ()


def test_files_as_spreadsheets_and_data_frames_write_them_are_read(tmp_path: Path) -> None:
    plain = load_folder(
        write(tmp_path / "plain", "t,ax,label", [f"{i},{i},{i // 40}" for i in range(80)]),
        length=8,
        stride=8,
    )
    rows = [f"{i}, {i}, {i // 40}.0" for i in range(80)]
    odd = load_folder(
        write(tmp_path / "odd", "\ufefft, ax, label", [*rows, "", ""]), length=8, stride=8
    )
    np.testing.assert_array_equal(odd.train_x, plain.train_x)
    np.testing.assert_array_equal(odd.train_y, plain.train_y)
    assert {*plain.train_y.tolist()} == {0, 1}


@pytest.mark.parametrize(
    ("header", "row", "said"),
    [
        (
            "t,ax,Activity,annotation",
            "0,1,2,3",
            "'Activity' and 'annotation' could all be the label. "
            'Add to shoal.toml .*: columns."Activity" = "label"',
        ),
        ("t,ax,ax", "0,1,2", "its header has 'ax' twice"),
        ("t,label,label", "0,1,2", "its header has 'label' twice"),
        ("t,ax,label", "0,1,5,1", "line 2 has 4 cells, and the header has 3"),
        (
            "t,ax,label",
            "0,1,99999999999999999999",
            "a class number must be between 0 and 65535, got 99999999999999999999",
        ),
        ("t,label", "0,1", "names no channel"),
    ],
)
def test_columns_that_would_be_taken_for_something_else_are_refused(
    tmp_path: Path, header: str, row: str, said: str
) -> None:
    with pytest.raises(DataError, match=said):
        load_folder(write(tmp_path, header, [row] * 20), length=8, stride=8)
