"""Layouts that programs and published data sets have: read, or one error whose line reads them."""

from pathlib import Path

import numpy as np
import pytest

import shoal
from edge_client.data.tables.parts import spelled_out
from edge_client.data.tables.words import settings_in
from simulation.datasets.description import described
from simulation.datasets.windows import FleetData
from tests.support import layouts
from tests.support.layouts import values
from wire.errors import DataError, ShoalError

LINE = "beside the recordings: "


def lines_until_read(folder: Path) -> tuple[FleetData, list[str]]:
    """The fleet of a folder, and the lines that its errors and warnings had to be given."""
    lines = list[str]()
    while len(lines) < 4:
        try:
            fleet = shoal.load(folder)
        except DataError as error:
            lines.append(str(error).partition(LINE)[2] if str(folder) in str(error) else "")
        else:
            missing = "no column is the label" in described(fleet)
            if not missing:
                return fleet, lines
            lines.append(described(fleet).partition("names: ")[2].partition(LINE)[2])
        (folder / "shoal.toml").write_text("\n".join(lines))
    raise AssertionError(lines)


@pytest.mark.parametrize(
    ("write", "lines", "devices", "channels", "classes", "rate"),
    [
        (
            layouts.sensor_logger,
            ['labels = {"sitting*" = "sitting", "walking*" = "walking"}'],
            "ann bob",
            "Accelerometer.z Accelerometer.y Accelerometer.x Gyroscope.z Gyroscope.y Gyroscope.x "
            "WatchHeartRate.bpm",
            "sitting walking",
            100,
        ),
        *(
            (
                write,
                ['labels = {"stairs*" = "stairs", "walk*" = "walk"}'],
                "one two",
                [f"Linear Acceleration {axis} (m/s^2)" for axis in "xyz"],
                "stairs walk",
                100,
            )
            for write in (layouts.phyphox, layouts.phyphox_of_spreadsheets)
        ),
        (
            layouts.physics_toolbox,
            ['labels = {"run*" = "run", "walk*" = "walk"}'],
            "one two",
            "gFx gFy gFz TgF",
            "run walk",
            50,
        ),
        (
            layouts.physics_toolbox_of_forces,
            ['labels = {"run*" = "run", "walk*" = "walk"}'],
            "one two",
            [f"a{axis} (m/s^2)" for axis in "xyzT"],
            "run walk",
            50,
        ),
        (
            layouts.core_motion,
            [],
            "one two",
            "motionUserAccelerationX(G) motionYaw(rad)",
            "0 1",
            50,
        ),
        (layouts.health_kit, [], "one", "value", "rest run", 0.2),
        (
            layouts.wisdm,
            ['names = ["person", "label", "t", "c1", "c2", "c3"]'],
            "33 5",
            "c1 c2 c3",
            "Jogging Upstairs",
            20,
        ),
        (
            layouts.wisdm_of_sensors,
            ['names = ["person", "label", "t", "c1", "c2", "c3"]'],
            "watch",
            "accel.c1 accel.c2 accel.c3 gyro.c1 gyro.c2 gyro.c3",
            "A B",
            20,
        ),
        (
            layouts.pamap2,
            ['names = ["t", "label", "c1..c52"]'],
            "subject101 subject102",
            [f"c{i}" for i in range(1, 53)],
            "0 12 4",
            100,
        ),
        (
            layouts.opportunity,
            ['names = ["t", "c1..c31", "label", "label_2", "label_3", "label_4"]'],
            "S1-ADL1 S2-ADL1",
            [f"c{i}" for i in range(1, 31)],
            "0 1 2",
            30.3,
        ),
        (
            layouts.hhar,
            [],
            "a b",
            "accelerometer.x accelerometer.y accelerometer.z gyroscope.x gyroscope.y gyroscope.z",
            "stand walk",
            200,
        ),
        (
            layouts.capture24,
            [],
            "P001 P002",
            "x y z",
            ["7030 sleeping;MET 0.95", "home activity;sitting;MET 1.3"],
            100,
        ),
        (
            layouts.table_of_features,
            ["window = 1"],
            "1 2 3",
            [f"tBodyAcc-{n}()-{axis}" for n in ("mean", "std", "mad", "max") for axis in "XYZ"],
            "LAYING SITTING STANDING",
            0,
        ),
        (
            layouts.empatica,
            ['labels = {"sit*" = "sit", "walk*" = "walk"}'],
            "ann bob",
            "ACC.x ACC.y ACC.z BVP.bvp EDA.eda HR.hr",
            "sit walk",
            64,
        ),
        (
            layouts.daily_and_sports,
            [
                'names = ["c1..c9"]',
                "window = 125",
                'labels = {"a01/*" = "a01", "a02/*" = "a02"}',
            ],
            "p1 p2",
            [f"c{i}" for i in range(1, 10)],
            "a01 a02",
            0,
        ),
        (layouts.labels_beside, [], "ann bob", "x y z", "sit walk", 50),
        (layouts.table_of_windows, ["window = 1"], "0 1", [f"x_{i}" for i in range(64)], "a b", 0),
    ],
)
def test_a_layout_is_read_with_the_lines_that_its_errors_say(
    tmp_path: Path,
    write: layouts.Writer,
    lines: list[str],
    devices: str,
    channels: str | list[str],
    classes: str | list[str],
    rate: float,
) -> None:
    write(tmp_path)
    fleet, needed = lines_until_read(tmp_path)
    assert needed == lines
    assert list(fleet.devices) == devices.split()
    assert list(fleet.window.channels) == (
        channels.split() if isinstance(channels, str) else channels
    )
    names = classes.split() if isinstance(classes, str) else classes
    assert sorted(fleet.classes) == sorted(names)
    assert fleet.window.rate_hz == rate
    assert all(w.num_train >= 1 for w in fleet.devices.values())


@pytest.mark.parametrize("write", [layouts.table_of_features, layouts.table_of_windows])
def test_rows_of_features_are_said_and_have_a_model(tmp_path: Path, write: layouts.Writer) -> None:
    write(tmp_path)
    fleet, _ = lines_until_read(tmp_path)
    assert "look like features: each row is a window of one sample" in described(fleet)
    with pytest.warns(UserWarning, match="look like features"):
        result = shoal.simulate(fleet, rounds=1, algorithm="fedavg", exportable="off")
    assert len(result.predict(np.zeros((2, *fleet.window.shape), np.float32))) == 2


def test_files_that_are_no_recordings_are_said(tmp_path: Path) -> None:
    layouts.sensor_logger(tmp_path)
    text = described(shoal.load(tmp_path))
    names = "Annotation.csv, Battery.csv, Location.csv, Pedometer.csv"
    assert f"files beside the recordings are not read: {names}" in text


@pytest.mark.parametrize("name", ["quest.csv", "quest.tsv", "quest.dat"])
@pytest.mark.parametrize("text", ["# a\n# b;1\n\n# c", "", "\n\n"])
def test_a_file_without_any_row_is_left_out_and_named(tmp_path: Path, name: str, text: str) -> None:
    layouts.put(tmp_path / "one" / "a.csv", ["x,y", *(",".join(c) for c in values(300, 2))])
    (tmp_path / "one" / name).write_text(text)
    for folder in (tmp_path, tmp_path / "one"):
        fleet = shoal.load(folder)
        assert fleet.window.channels == ("x", "y")
        assert f"are not read: {name}" in described(fleet)
    (tmp_path / "one" / "a.csv").unlink()
    with pytest.raises(DataError, match="is empty"):
        shoal.load(tmp_path)


@pytest.mark.parametrize("inner", ["", "one", "one/two"])
@pytest.mark.parametrize(
    ("files", "names"),
    [
        (["100annotations.txt"], "100annotations.txt"),
        (["b.zip", "a.xlsx", "readme.txt", "LICENSE", "notes.md", ".x"], "a.xlsx, b.zip"),
        ([f"{i}.json" for i in range(9)], "0.json, 1.json, 2.json, 3.json, 4.json and 4 more"),
        (["README.txt", "unlabelled.md"], ""),
    ],
)
def test_each_file_that_is_not_read_is_named_once(
    tmp_path: Path, inner: str, files: list[str], names: str
) -> None:
    for person in "ab":
        cells = [",".join(c) for c in values(300, 2)]
        layouts.put(tmp_path / inner / f"{person}.csv", ["x,y", *cells])
    for file in files:
        (tmp_path / inner / file).write_text("some text\n")
    text = described(shoal.load(tmp_path))
    assert text.count("are not read") == bool(names)
    assert f"are not read: {names}\n" in text or not names


@pytest.mark.parametrize(
    ("width", "time", "is_said"),
    [(187, "", True), (80, "", True), (45, "", False), (187, "t", False)],
)
def test_rows_that_may_be_whole_windows_are_said(
    tmp_path: Path, width: int, time: str, is_said: bool
) -> None:
    rows = [
        [str(i / 50)] * bool(time) + c + [f"{i // 60}"] for i, c in enumerate(values(300, width))
    ]
    layouts.put(tmp_path / "train.csv", [",".join(row) for row in rows])
    with pytest.raises(DataError, match="in place of names") as error:
        shoal.load(tmp_path)
    assert ("If each row is a whole window, make arrays" in str(error.value)) == is_said
    assert "names = [" in str(error.value)


def test_a_file_of_other_columns_says_how_to_leave_it_out(tmp_path: Path) -> None:
    for name, width in (("Hips_Motion.txt", 7), ("Hips_Cells.txt", 4)):
        rows = [f"{i * 10} {' '.join(c)}" for i, c in enumerate(values(300, width))]
        layouts.put(tmp_path / "one" / name, rows)
    (tmp_path / "shoal.toml").write_text('names = ["t", "c1..c7"]\n')
    with pytest.raises(DataError, match=r"5 cells .* names, names = \{.*If all have 5"):
        shoal.load(tmp_path)
    (tmp_path / "shoal.toml").write_text('names = ["t", "c1..c7"]\nrecordings = ["*_Motion"]\n')
    assert len(shoal.load(tmp_path).window.channels) == 7


def test_a_table_beside_the_folders_of_devices_is_named(tmp_path: Path) -> None:
    for person in "ab":
        cells = [",".join(c) for c in values(300, 2)]
        layouts.put(tmp_path / person / "walk.csv", ["x,y", *cells])
    (tmp_path / "subjects.csv").write_text("code,age\n1,40\n2,50\n")
    fleet = shoal.load(tmp_path)
    assert "beside the recordings are not read: subjects.csv" in described(fleet)
    fleet = shoal.load(tmp_path / "a" / "walk.csv")
    assert "are not read" not in described(fleet)


def test_a_folder_of_archives_says_to_unpack_them(tmp_path: Path) -> None:
    (tmp_path / "one" / "data").mkdir(parents=True)
    (tmp_path / "one" / "data" / "acc_csv.zip").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"acc_csv\.zip is an archive: unpack it"):
        shoal.load(tmp_path)


def without_times(folder: Path, rows: dict[str, int], names: str = "") -> list[list[str]]:
    """Files of sensors without a column of times; the cells of the last one."""
    for sensor, count in rows.items():
        for recording in ("exp01_user01", "exp02_user01", "exp03_user02"):
            cells = values(count + len(sensor), 3)[len(sensor) :]
            lines = [names] * bool(names) + [" ".join(row) for row in cells]
            layouts.put(folder / f"{sensor}_{recording}.txt", lines)
    return cells


@pytest.mark.parametrize(("names", "words"), [("", 'names = ["c1..c3"]\n'), ("x y z", "")])
def test_files_of_sensors_without_times_belong_together_row_by_row(
    tmp_path: Path, names: str, words: str
) -> None:
    cells = without_times(tmp_path, {"acc": 600, "gyro": 600}, names)
    (tmp_path / "shoal.toml").write_text(words)
    with pytest.raises(DataError, match="how many a second") as error:
        shoal.load(tmp_path)
    line = str(error.value).partition(LINE)[2]
    (tmp_path / "shoal.toml").write_text(f"{words}{line}")
    fleet = shoal.load(tmp_path)
    assert (list(fleet.devices), fleet.window.rate_hz) == (["user01", "user02"], 50)
    window = fleet.devices["user02"].unlabelled_x[0]
    np.testing.assert_array_equal(
        window[-1], np.array([row[-1] for row in cells[:128]], np.float32)
    )
    assert len(window) == 6


@pytest.mark.parametrize("count", [599, 700])
def test_files_of_sensors_without_times_and_other_numbers_of_rows_are_refused(
    tmp_path: Path, count: int
) -> None:
    without_times(tmp_path, {"acc": 600, "gyro": count}, "x y z")
    (tmp_path / "shoal.toml").write_text("rate = 50")
    with pytest.raises(DataError, match=f"it has {count} rows, not 600 .* a column of times"):
        shoal.load(tmp_path)


def test_files_of_sensors_of_which_one_has_times_are_refused(tmp_path: Path) -> None:
    without_times(tmp_path, {"acc": 600}, "x y z")
    without_times(tmp_path, {"gyro": 600}, "t x y")
    with pytest.raises(DataError, match="joined by their time, and no column is one"):
        shoal.load(tmp_path, rate=50)


def test_devices_at_the_same_time_are_recordings_of_their_own(tmp_path: Path) -> None:
    layouts.hhar(tmp_path)
    fleet = shoal.load(tmp_path)
    assert "accelerometer.Device         left out        it divides recordings" in described(fleet)
    assert fleet.devices["a"].num_unlabelled > 0, "null is no class"
    sessions = fleet.recordings["a"].session
    assert sessions is not None
    assert set(sessions.tolist()) == {0, 1}


@pytest.mark.parametrize("inner", ["", "one"])
@pytest.mark.parametrize("pattern", ["nexus4_1", "*nexus4*", "s3_?"])
def test_a_device_that_is_chosen_leaves_out_files_of_other_devices(
    tmp_path: Path, inner: str, pattern: str
) -> None:
    folder = tmp_path / inner
    layouts.hhar(folder)
    for sensor in ("accelerometer", "gyroscope"):
        text = (folder / f"Phones_{sensor}.csv").read_text()
        (folder / f"Watch_{sensor}.csv").write_text(
            text.replace("s3_1", "lgwatch_1").replace("nexus4_1", "gear_1").replace(",x,", ",u,")
        )
    (folder / "shoal.toml").write_text(f'recordings = ["{pattern}"]')
    fleet = shoal.load(tmp_path)
    assert fleet.window.channels[0] == "accelerometer.x"
    assert len(fleet.window.channels) == 6
    assert list(fleet.devices) == ["a", "b"]
    (folder / "shoal.toml").write_text('recordings = ["*s5*"]')
    with pytest.raises(ShoalError):
        shoal.load(tmp_path)


@pytest.mark.parametrize("name", ["session", "Trial", "phone", "placement", "recording_id"])
def test_no_window_spans_two_values_of_a_column_that_divides(tmp_path: Path, name: str) -> None:
    rows = [f"{i % 7},{i // 250},0" for i in range(1000)]
    layouts.put(tmp_path / "a.csv", [f"x,{name},label", *rows])
    fleet = shoal.load(tmp_path)
    assert fleet.window.channels == ("x",)
    assert len(fleet.recordings["a"].y) == 4 * 2


def test_a_user_gives_classes_other_names_or_none(tmp_path: Path) -> None:
    layouts.pamap2(tmp_path)
    (tmp_path / "shoal.toml").write_text(
        'names = ["t", "label", "heart_rate", "c1..c51"]\n[classes]\n0 = ""\n4 = "walking"'
    )
    fleet = shoal.load(tmp_path)
    assert fleet.classes == ("12", "walking")
    assert fleet.window.channels[:2] == ("heart_rate", "c1")
    assert all(w.num_unlabelled > 0 for w in fleet.devices.values())


def test_the_window_of_a_user_leaves_no_samples_out(tmp_path: Path) -> None:
    layouts.capture24(tmp_path)
    assert shoal.load(tmp_path, length=32).window.stride == 16
    assert shoal.load(tmp_path, length=256).window.stride == 64


def test_the_words_of_the_page_are_read(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    (tmp_path / "shoal.toml").write_text(page.partition("```toml\n")[2].partition("```")[0])
    words = settings_in(tmp_path)
    assert (words.rate, words.window, words.time_unit) == (50, 128, "ms")
    assert words.classes == {"0": "", "4": "walking"}
    assert spelled_out(tuple(words.names))[-1] == "c9"
