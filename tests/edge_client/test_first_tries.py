"""Recordings as a newcomer brings them: read as they are meant, or one error with the way out."""

import gzip
from pathlib import Path

import numpy as np
import pytest

import shoal
from edge_client.data.tables.parts import header_of, spelled_out
from edge_client.data.tables.words import settings_in
from edge_client.data.windows import load_folder, read_windows
from simulation.datasets.description import described
from tests.support import layouts
from tests.support.layouts import put, values
from wire.bundle import Window
from wire.errors import DataError, ShoalError

LINE = "beside the recordings: "


def rows(count: int, width: int, label: str = "", hz: float = 50) -> list[str]:
    """Rows of a time in seconds, values, and a label unless it is empty."""
    more = [label] if label else []
    return [",".join([f"{i / hz}", *c, *more]) for i, c in enumerate(values(count, width))]


def with_line(folder: Path) -> str:
    """The line of the error of a folder, which is then in its ``shoal.toml``."""
    with pytest.raises(ShoalError) as raised:
        shoal.load(folder)
    line = str(raised.value).partition(LINE)[2]
    assert line, raised.value
    path = folder / "shoal.toml"
    path.write_text((path.read_text() if path.exists() else "") + line + "\n")
    return line


class TestStartAndRate:
    """Files whose first two lines are a time since 1970 and a rate."""

    @pytest.mark.parametrize(
        ("name", "width", "hz", "channels"),
        [
            ("ACC.csv", 3, 32, ("x", "y", "z")),
            ("HR.csv", 1, 1, ("hr",)),
            ("EDA.csv.gz", 1, 4, ("eda",)),
            ("quaternion.csv", 4, 12.5, ("c1", "c2", "c3", "c4")),
        ],
    )
    def test_a_file_alone_has_its_samples_and_rate(
        self, tmp_path: Path, name: str, width: int, hz: float, channels: tuple[str, ...]
    ) -> None:
        cells = [",".join(c) for c in values(300, width)]
        lines = [",".join([text] * width) for text in ("1683194400.00", f"{hz:.6f}")] + cells
        text = "\n".join(lines) + "\n"
        raw = gzip.compress(text.encode()) if name.endswith(".gz") else text.encode()
        (tmp_path / name).write_bytes(raw)
        windows = load_folder(tmp_path, 20, 20)
        assert windows.channels == channels
        assert windows.rate_hz == hz
        first = np.array([[float(cell) for cell in c] for c in values(300, width)][:20])
        np.testing.assert_allclose(windows.unlabelled_x[0], first.T, atol=1e-5)

    def test_sensors_are_joined_by_their_starts_and_other_files_are_said(
        self, tmp_path: Path
    ) -> None:
        layouts.empatica(tmp_path)
        fleet = shoal.load(tmp_path)
        assert "are not read: IBI.csv, info.txt, tags.csv" in described(fleet)
        seconds = fleet.devices["ann"].num_unlabelled * 64 / 64
        assert 2 * 27 <= seconds <= 2 * 31, "HR begins ten seconds later than the others"

    def test_a_model_predicts_from_the_folder_of_a_recording(self, tmp_path: Path) -> None:
        layouts.empatica(tmp_path)
        channels = ("ACC.x", "ACC.y", "ACC.z", "BVP.bvp", "EDA.eda", "HR.hr")
        window = Window(channels, 128, 64, 64.0)
        folder = next((tmp_path / "ann").iterdir())
        assert read_windows(folder, window).shape[1:] == (6, 128)
        for name in ("ACC.csv", "HR.csv"):
            with pytest.raises(
                DataError, match="Name the folder of the files of all sensors, such"
            ) as e:
                read_windows(folder / name, window)
            assert str(folder) in str(e.value)
            assert ", ".join(channels) in str(e.value)
        of_acc = Window(channels[:3], 64, 32, 32.0)
        assert len(read_windows(folder / "ACC.csv", of_acc))

    @pytest.mark.parametrize("second", ["1683194400.02", "0", "-4", "4,4"])
    def test_other_numbers_are_no_start_and_rate(self, tmp_path: Path, second: str) -> None:
        put(tmp_path / "a.csv", ["1683194400.00", second, *(c for (c,) in values(300, 1))])
        with pytest.raises(ShoalError, match="first line is a row of 1 cells"):
            shoal.load(tmp_path)


class TestSlowSensors:
    """A sensor of a lower rate in a file of its own."""

    @pytest.mark.parametrize("name", ["hr", "HR", "heart_rate", "HeartRate", "temp", "SpO2"])
    def test_it_is_joined_by_its_usual_names(self, tmp_path: Path, name: str) -> None:
        for action in ("walk", "sit"):
            put(tmp_path / f"p1/{action}_acc.csv", ["t,x,y,z", *rows(3000, 3)])
            put(tmp_path / f"p1/{action}_{name}.csv", ["t,value", *rows(60, 1, hz=1)])
        fleet = shoal.load(tmp_path)
        assert set(fleet.window.channels) == {"acc.x", "acc.y", "acc.z", f"{name}.value"}
        assert fleet.window.rate_hz == 50

    @pytest.mark.parametrize("step_s", [2, 5])
    def test_its_times_have_the_unit_of_the_fast_one(self, tmp_path: Path, step_s: int) -> None:
        put(tmp_path / "p1/walk_acc.csv", ["t,x", *rows(6000, 1)])
        put(tmp_path / "p1/walk_temp.csv", ["t,v", *rows(120 // step_s, 1, hz=1 / step_s)])
        fleet = shoal.load(tmp_path)
        assert fleet.window.rate_hz == 50
        assert fleet.devices["p1"].num_unlabelled

    @pytest.mark.parametrize("column", ["level", "Blood sugar"])
    def test_one_by_another_name_is_refused_with_two_ways_out(
        self, tmp_path: Path, column: str
    ) -> None:
        put(tmp_path / "p1/walk_acc.csv", ["t,x,y", *rows(1000, 2)])
        put(tmp_path / "p1/walk_gyr.csv", ["t,x,y", *rows(1000, 2)])
        put(tmp_path / "p1/walk_other.csv", [f"t,{column}", *rows(20, 1, hz=1)])
        with pytest.raises(ShoalError, match=r"name the files alike but for the sensor"):
            shoal.load(tmp_path)
        assert with_line(tmp_path) == f'columns."{column}" = "left out"'
        assert len(shoal.load(tmp_path).window.channels) == 4

    @pytest.mark.parametrize("names", [("Accelerometer", "Location"), ("acc", "battery")])
    def test_files_beside_a_single_sensor_are_said(
        self, tmp_path: Path, names: tuple[str, str]
    ) -> None:
        put(tmp_path / f"p1/{names[0]}.csv", ["t,x,y", *rows(1000, 2)])
        put(tmp_path / f"p1/{names[1]}.csv", ["t,level", *rows(20, 1, hz=1)])
        fleet = shoal.load(tmp_path)
        assert fleet.window.channels == ("x", "y")
        assert f"are not read: {names[1]}.csv" in described(fleet)


class TestPredict:
    """Windows to predict from a file."""

    @pytest.mark.parametrize(
        ("hz", "text"), [(50.0, " at 50 Hz without"), (0.0, " in a row without")]
    )
    def test_too_few_samples_are_refused_with_the_length(
        self, tmp_path: Path, hz: float, text: str
    ) -> None:
        time = "t" if hz else "id"
        put(tmp_path / "a.csv", [f"{time},x,y", *rows(90, 2)])
        with pytest.raises(DataError, match=f"needs 128 samples.*{text} a gap, got at most 90"):
            read_windows(tmp_path / "a.csv", Window(("x", "y"), 128, 64, hz))

    def test_columns_in_capitals_are_the_channels(self, tmp_path: Path) -> None:
        put(tmp_path / "a.csv", ["T,X,Y", *rows(300, 2)])
        put(tmp_path / "b.csv", ["t,x,y", *rows(300, 2)])
        window = Window(("y", "x"), 128, 64, 50.0)
        upper, lower = (read_windows(tmp_path / name, window) for name in ("a.csv", "b.csv"))
        np.testing.assert_array_equal(upper, lower)


@pytest.mark.parametrize(
    ("header", "other"),
    [
        ("t,ax,ay,label", "T,AX,AY,LABEL"),
        ("time,acc_x,acc_y,Activity", "Time,Acc_X,Acc_y,ACTIVITY"),
    ],
)
@pytest.mark.parametrize("places", [("a.csv", "b.csv"), ("p/a.csv", "p/b.csv")])
def test_a_header_in_capitals_has_the_same_columns(
    tmp_path: Path, header: str, other: str, places: tuple[str, str]
) -> None:
    lines = [*rows(400, 2, "sit"), *(rows(800, 2, "walk")[400:])]
    for place, names in zip(places, (header, other), strict=True):
        put(tmp_path / place, [names, *lines])
    fleet = shoal.load(tmp_path)
    assert fleet.window.channels == tuple(header.split(",")[1:3])
    assert fleet.classes == ("sit", "walk")
    windows = list(fleet.devices.values())
    if len(windows) == 2:
        np.testing.assert_array_equal(windows[0].train_x, windows[1].train_x)
    (tmp_path / "shoal.toml").write_text(f'columns."{header.split(",")[1]}" = "left out"\n')
    assert shoal.load(tmp_path).window.channels == (header.split(",")[2],)


def test_columns_that_differ_by_case_in_one_file_stay_apart(tmp_path: Path) -> None:
    for name in "ab":
        put(tmp_path / f"{name}.csv", ["t,x,X", *rows(300, 2)])
    assert shoal.load(tmp_path).window.channels == ("x", "X")


class TestWords:
    """Lines for ``shoal.toml`` beside lines that are there."""

    @pytest.mark.parametrize(
        ("words", "names"),
        [
            ('names = ["person", "t"]', ["person", "t", "c1", "c2", "c3"]),
            ('names = ["s1", "s3", "s5", "s7"]', ["s1", "s3", "s5", "s7", "c1"]),
            ('names = ["who", "t", "acc", "gyr_1"]', ["who", "t", "acc", "gyr_1", "c1"]),
            (
                'names = ["person", "t", "c1..c4"]',
                ["person", "t", "c1", "c2", "c3"],
            ),
        ],
    )
    def test_names_of_a_user_stay_in_a_hint(
        self, tmp_path: Path, words: str, names: list[str]
    ) -> None:
        (tmp_path / "shoal.toml").write_text(words + "\n")
        put(tmp_path / "a.csv", [f"7,{row}" for row in rows(300, 3)])
        with_line(tmp_path)
        assert list(spelled_out(tuple(settings_in(tmp_path).names))) == names
        assert shoal.load(tmp_path).devices

    @pytest.mark.parametrize("encoding", ["cp1252", "utf-16", "utf-8-sig"])
    def test_a_file_in_another_encoding_is_read(self, tmp_path: Path, encoding: str) -> None:
        text = '# für alle\n[columns]\n"Höhe" = "left out"\n'
        (tmp_path / "shoal.toml").write_bytes(text.encode(encoding))
        put(tmp_path / "a.csv", ["t,x,Höhe", *rows(300, 2)])
        assert shoal.load(tmp_path).window.channels == ("x",)
        (tmp_path / "shoal.toml").write_bytes(text.replace("Höhe", "Häher").encode(encoding))
        with pytest.raises(ShoalError, match="line 3, columns: no recording has a column 'Häher'"):
            shoal.load(tmp_path)

    @pytest.mark.parametrize("encoding", ["cp1252", "utf-8"])
    def test_a_list_of_classes_in_another_encoding_is_read(
        self, tmp_path: Path, encoding: str
    ) -> None:
        (tmp_path / "classes.txt").write_bytes("gehen\r\nläuft\r\n".encode(encoding))
        put(tmp_path / "a.csv", ["t,x,label", *rows(300, 1, "läuft")])
        assert shoal.load(tmp_path).classes == ("gehen", "läuft")


class TestRuns:
    """Runs of a class that are shorter than a window."""

    @pytest.mark.parametrize(("lengths", "fits"), [([100] * 6, 100), ([100, 90, 80, 9, 9], 90)])
    def test_the_error_says_the_longest_run_and_a_length_that_fits(
        self, tmp_path: Path, lengths: list[int], fits: int
    ) -> None:
        lines = [row for k, n in enumerate(lengths) for row in rows(n, 2, "ab"[k % 2])]
        lines = [f"{i / 50},{line.partition(',')[2]}" for i, line in enumerate(lines)]
        for name in ("one", "two"):
            put(tmp_path / f"{name}.csv", ["t,x,y,label", *lines])
        with pytest.raises(DataError, match="the longest run without a gap has 100"):
            shoal.load(tmp_path)
        assert with_line(tmp_path) == f"window = {fits}"
        assert shoal.load(tmp_path).window.length == fits
        with pytest.raises(DataError, match=f"with length={fits}"):
            shoal.load({"x": np.zeros(fits), "who": np.zeros(fits)}, person="who")

    def test_gaps_that_leave_no_window_are_said_with_a_length_that_fits(
        self, tmp_path: Path
    ) -> None:
        for name in ("one", "two"):
            lines = [f"{i / 50 + i // 60 * 9},{c[0]},sit" for i, c in enumerate(values(600, 1))]
            put(tmp_path / f"{name}.csv", ["t,x,label", *lines])
        text = described(shoal.load(tmp_path))
        assert "the longest run without a gap has 60" in text
        line = text.partition(LINE)[2].splitlines()[0]
        (tmp_path / "shoal.toml").write_text(line)
        assert shoal.load(tmp_path).devices["one"].num_train


def test_a_blank_within_dates_separates_no_cells(tmp_path: Path) -> None:
    lines = [f"2024-01-01 10:{i // 60:02d}:{i % 60:02d} +0100,{70 + i % 7}" for i in range(600)]
    put(tmp_path / "ann/heart.csv", ["startDate,value", *lines])
    assert header_of(tmp_path / "ann/heart.csv") == ("startDate", "value")
    assert shoal.load(tmp_path, length=50).window.channels == ("value",)


def test_a_first_row_of_missing_cells_is_no_header(tmp_path: Path) -> None:
    lines = [f"{i / 50} 1 {x} {y}" for i, (x, y) in enumerate(values(400, 2))]
    put(tmp_path / "ann/a.dat", ["0 1 NaN NaN", *lines[1:]])
    (tmp_path / "shoal.toml").write_text('names = ["t", "label", "x", "y"]\n')
    assert shoal.load(tmp_path, length=50).window.channels == ("x", "y")


class TestLabels:
    """Labels that stand where a class begins, and semicolons in them."""

    @pytest.mark.parametrize("width", [1, 3])
    @pytest.mark.parametrize("name", ["7030 sleeping;MET 0.95", "a;b;c"])
    def test_a_semicolon_in_a_label_separates_no_cells(
        self, tmp_path: Path, name: str, width: int
    ) -> None:
        header = ",".join(["time", *"xyz"[:width], "annotation"])
        put(tmp_path / "a.csv", [header, *rows(300, width, name)])
        fleet = shoal.load(tmp_path)
        assert fleet.window.channels == tuple("xyz"[:width])
        assert fleet.classes == (name,)

    @pytest.mark.parametrize("order", ["in order", "by person"])
    @pytest.mark.parametrize("end", ["end", "null"])
    def test_a_label_where_a_class_begins_holds_up_to_the_next_one(
        self, tmp_path: Path, order: str, end: str
    ) -> None:
        begins = {100: "sit", 700: "walk", 1300: end}
        lines = [f"{row},{begins.get(i, '')}" for i, row in enumerate(rows(2000, 2))]
        if end == "end":
            (tmp_path / "shoal.toml").write_text('classes."end" = ""\n')
        if order == "in order":
            put(tmp_path / "a.csv", ["t,x,y,label", *lines])
        else:
            lines = [*(f"{line},1" for line in lines), *(f"{line},2" for line in lines)]
            put(tmp_path / "a.csv", ["t,x,y,label,person", *lines])
        fleet = shoal.load(tmp_path, length=100, stride=100)
        assert fleet.classes == ("sit", "walk")
        for windows in fleet.devices.values():
            count = [int((windows.train_y == k).sum()) for k in (0, 1)]
            assert count == [3, 3], "of six windows one is between the parts, and two for testing"
            assert windows.num_unlabelled == 8
        assert "holds up to the next one" in described(fleet)

    def test_rows_that_are_windows_keep_their_own_labels(self, tmp_path: Path) -> None:
        lines = [
            f"{','.join(c)},{'ab'[i % 4 // 2] if i % 2 else ''}"
            for i, c in enumerate(values(80, 3))
        ]
        put(tmp_path / "a.csv", ["x,y,z,label", *lines])
        windows = shoal.load(tmp_path, length=1).devices["a"]
        assert windows.num_unlabelled == 40

    @pytest.mark.parametrize("separator", [",", ";"])
    def test_a_file_of_labels_beside_the_samples_says_their_classes(
        self, tmp_path: Path, separator: str
    ) -> None:
        layouts.labels_beside(tmp_path, separator)
        fleet = shoal.load(tmp_path, length=100, stride=100)
        windows = fleet.devices["ann"]
        assert fleet.classes == ("sit", "walk")
        assert [int((windows.train_y == k).sum()) for k in (0, 1)] == [6, 6]
        assert "classes are those of labels.csv" in described(fleet)
        np.testing.assert_allclose(
            windows.train_x[0, :, 0], [float(cell) for cell in values(2000, 3)[0]], atol=1e-5
        )

    def test_labels_of_another_clock_are_refused(self, tmp_path: Path) -> None:
        lines = [f"{1_700_000_000 + i / 50:.2f},{c}" for i, (c,) in enumerate(values(1000, 1))]
        put(tmp_path / "ann/acc.csv", ["t,x", *lines])
        put(tmp_path / "ann/labels.csv", ["t,label", "0,sit", "10,walk"])
        with pytest.raises(DataError, match=r"labels.csv: its times .* Give both the same clock"):
            shoal.load(tmp_path)

    @pytest.mark.parametrize(
        "header", ["start,end,activity", "Label;Begin (ms);End (ms);Comment", "id,from,to,class"]
    )
    def test_a_file_of_intervals_says_the_classes_of_the_samples_in_them(
        self, tmp_path: Path, header: str
    ) -> None:
        separator = ";" if ";" in header else ","
        factor = 1000 if "ms" in header else 1
        lines = []
        for begin, end, name in ((2, 8, "sit"), (8, 14, "walk"), (16, 18, "sit")):
            cells: dict[str, object] = {
                "begin": begin * factor,
                "start": begin,
                "from": begin,
                "end": end * factor,
            }
            cells |= {"to": end, "activity": name, "label": name, "class": name}
            words = [word.partition(" ")[0].lower() for word in header.split(separator)]
            lines.append(separator.join(str(cells.get(word, "")) for word in words))
        put(tmp_path / "ann/acc.csv", ["t,x", *rows(1000, 1)])
        put(tmp_path / "ann/notes.csv", [header, *lines])
        fleet = shoal.load(tmp_path, length=50, stride=50)
        windows = fleet.devices["ann"]
        assert fleet.classes == ("sit", "walk")
        assert windows.num_unlabelled == 6
        count = [int((windows.train_y == k).sum() + (windows.test_y == k).sum()) for k in (0, 1)]
        assert count == [7, 5]

    @pytest.mark.parametrize("name", ["annotations", "labels", "segments"])
    @pytest.mark.parametrize(
        "of_sits",
        [[(0, 6), (12, 18)], [(0, 6.3), (12, 18.1)], [(12, 18), (0, 6)], [(-2, 6), (12, 30)]],
    )
    def test_intervals_may_touch_overlap_and_be_in_any_order(
        self, tmp_path: Path, name: str, of_sits: list[tuple[float, float]]
    ) -> None:
        lines = [f"{begin},{end},sit" for begin, end in of_sits] + ["6,12,walk"]
        put(tmp_path / "ann/acc.csv", ["t,x", *rows(900, 1)])
        put(tmp_path / f"ann/{name}.csv", ["start,end,activity", *lines])
        classes = ["sit"] * 300 + ["walk"] * 300 + ["sit"] * 300
        labelled = [f"{row},{c}" for row, c in zip(rows(900, 1), classes, strict=True)]
        put(tmp_path / "bob/acc.csv", ["t,x,activity", *labelled])
        fleet = shoal.load(tmp_path, length=50, stride=50)
        ann, bob = fleet.devices["ann"], fleet.devices["bob"]
        assert ann.num_unlabelled == 0
        np.testing.assert_array_equal(ann.train_y, bob.train_y)
        np.testing.assert_array_equal(ann.train_x, bob.train_x)

    @pytest.mark.parametrize("shift_s", [0.0, 0.003, 0.5])
    def test_persons_whose_rows_alternate_have_a_rate_each(
        self, tmp_path: Path, shift_s: float
    ) -> None:
        x = values(500, 4)
        rows_of = [
            (f"{i / 25 + shift_s * k:.3f},p{k},{x[i][k]},{'sit' if i < 250 else 'walk'}")
            for i in range(500)
            for k in range(4)
        ]
        put(tmp_path / "b/all.csv", ["time_s,person,x,label", *rows_of])
        in_turn = sorted(rows_of, key=lambda row: row.split(",")[1])
        put(tmp_path / "c/all.csv", ["time_s,person,x,label", *in_turn])
        alternate, turns = (shoal.load(tmp_path / k, length=50, stride=50) for k in "bc")
        assert (alternate.window.rate_hz, turns.window.rate_hz) == (25, 25)
        for name, device in turns.devices.items():
            np.testing.assert_array_equal(alternate.devices[name].train_x, device.train_x)

    def test_a_text_may_begin_with_lines_of_a_program(self, tmp_path: Path) -> None:
        about = ["# OpenSignals Text File Format", '# {"sampling rate": 100}', "# EndOfHeader"]
        put(tmp_path / "ann/a.txt", [*about, *(f"{i}\t{i % 7}\t{i % 5}" for i in range(500))])
        (tmp_path / "shoal.toml").write_text('names = ["index", "x", "y"]')
        assert shoal.load(tmp_path, length=50).window.channels == ("x", "y")

    @pytest.mark.parametrize("column", ["person", "device"])
    def test_series_of_other_rates_in_one_table_are_said_or_refused(
        self, tmp_path: Path, column: str
    ) -> None:
        def write(folder: str, rates: dict[str, int]) -> Path:
            rows_of = [
                f"{i / rate:.3f},{name},{x[0]},{'sit' if i < 5 * rate else 'walk'}"
                for name, rate in rates.items()
                for i, x in enumerate(values(10 * rate, 1))
            ]
            put(tmp_path / folder / "all.csv", [f"time_s,{column},x,label", *rows_of])
            return tmp_path / folder

        some = shoal.load(write("some", {"a": 100, "b": 100, "c": 60}), length=50)
        assert some.window.rate_hz == 100
        assert "c from 60 Hz brought onto 100 Hz" in described(some)
        few = write("few", {"a": 100, "b": 100, "c": 40})
        with pytest.raises(DataError, match="has 40 samples a second, and 100 are wanted"):
            shoal.load(few)
        if column == "device":
            (few / "shoal.toml").write_text('recordings = ["c"]')
            assert shoal.load(few, length=50).window.rate_hz == 40

    def test_intervals_of_several_persons_in_one_file_are_refused(self, tmp_path: Path) -> None:
        for name in ("p1", "p2"):
            put(tmp_path / f"{name}.csv", ["t,x", *rows(500, 1)])
        put(tmp_path / "annotations.csv", ["participant,start,end,activity", "p1,0,5,sit"])
        with pytest.raises(DataError, match=r"annotations.csv: .*several persons.*'participant'"):
            shoal.load(tmp_path)

    def test_a_table_with_begin_end_and_measurements_is_no_file_of_intervals(
        self, tmp_path: Path
    ) -> None:
        lines = [f"{i},{i + 1},{x},{y},a" for i, (x, y) in enumerate(values(300, 2))]
        put(tmp_path / "ann/acc.csv", ["start,end,x,y,label", *lines])
        assert {"x", "y"} <= set(shoal.load(tmp_path, length=50).window.channels)

    def test_samples_before_the_first_label_have_none(self, tmp_path: Path) -> None:
        put(tmp_path / "ann/acc.csv", ["t,x", *rows(1000, 1)])
        put(tmp_path / "ann/events.csv", ["t,activity", "10,sit", "15,"])
        windows = shoal.load(tmp_path, length=50, stride=50).devices["ann"]
        assert windows.num_train == 3, "of five windows one is between, and one for testing"
        assert windows.num_unlabelled == 15


@pytest.mark.parametrize(
    "names", [("2026-01-31_12-00-00", "2026-02-01_09-30-00"), ("20260131", "20260201")]
)
def test_folders_named_by_dates_may_be_of_one_person_and_that_is_said(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    for name in names:
        for sensor in ("Accelerometer", "Gyroscope"):
            put(tmp_path / name / f"{sensor}.csv", ["seconds_elapsed,x,y", *rows(500, 2)])
    text = described(shoal.load(tmp_path))
    assert f"their names have dates, as those of recordings: {names[0]}, {names[1]}. If" in text
    assert f"such as {names[0]!r}" in text, "a recording has the name of its folder"


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("a.xlsx", "pandas.read_excel('a.xlsx').to_csv('a.csv', index=False)"),
        ("a.json", "pandas.read_json('a.json').to_csv('a.csv', index=False)"),
        ("a.mat", "shoal.load(x, y, owner)"),
    ],
)
@pytest.mark.parametrize("place", ["", "p1"])
def test_files_of_other_kinds_are_said_with_a_way(
    tmp_path: Path, name: str, way: str, place: str
) -> None:
    put(tmp_path / place / name, ["{}"])
    for path in (tmp_path, tmp_path / place / name):
        with pytest.raises(ShoalError) as raised:
            shoal.load(path)
        assert f"{name} is of a kind that is not read" in str(raised.value)
        assert way in str(raised.value)


def test_times_that_fall_are_to_be_sorted(tmp_path: Path) -> None:
    for name, order in (("back", slice(None, None, -1)), ("mixed", np.argsort(np.arange(300) % 7))):
        lines = np.array(rows(300, 1), str)[order]
        put(tmp_path / name / "a.csv", ["t,x", *lines])
        with pytest.raises(DataError, match=r"values fall in .*\. Sort the rows by it\. If"):
            shoal.load(tmp_path / name)


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ({5: "33,Jog,1,2;"}, r"line 6: \['33', 'Jog', '1', '2'\] does not fit .*'y'\. Mend the l"),
        ({5: "33,Jog,1,2,3,4,33,Jog,5,6,7,8;"}, "line 6 has 12 cells, and the header has 6. Mend"),
        (
            {5: "33,Jog,", 7: "x", 9: ""},
            r"line 6: .*'x'\. 1 more line does not fit either: 8\. Mend",
        ),
        (
            dict.fromkeys(range(100, 150), "33,Jog,1;"),
            r"line 101: .* 49 more lines do not fit either: 102, .*, 121, \.\.\.\. Mend",
        ),
    ],
)
def test_lines_that_do_not_fit_the_header_are_one_error(
    tmp_path: Path, lines: dict[int, str], error: str
) -> None:
    rows = [f"33,Jog,{1e9 + i * 5e7:.0f},{','.join(c)};" for i, c in enumerate(values(400, 3))]
    put(tmp_path / "raw.txt", [lines.get(i, row) for i, row in enumerate(rows)])
    (tmp_path / "shoal.toml").write_text('names = ["person", "label", "t", "x", "y", "z"]')
    with pytest.raises(DataError, match=rf"raw\.txt, {error}"):
        shoal.load(tmp_path)
