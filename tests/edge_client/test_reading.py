"""Recordings as people have them: what is taken for what, and what is refused in which words."""

import gzip
from pathlib import Path

import numpy as np
import pytest

import shoal
from edge_client.data.recordings.cutting import NEITHER, TEST, TRAIN, parts_of_run
from edge_client.data.tables.clock import rate_of, read_times, spread, unit_of_time
from edge_client.data.tables.parts import header_of, parts_of
from simulation.datasets.description import described
from simulation.datasets.windows import FleetData
from wire.errors import ConfigError, DataError

CLASSES = ("sit", "walk", "run")


def recorded(
    folder: Path,
    column: str,
    values: "object",
    persons: int = 3,
    count: int = 900,
) -> FleetData:
    """A fleet of noise, a recording of each class, with one more column.

    `values` makes it of the number of a class, a generator, and the number of samples.
    """
    for person in range(persons):
        rng = np.random.default_rng(person)
        for number, name in enumerate(CLASSES):
            x = rng.standard_normal((count, 2)).round(4)
            more = values(number, rng, count)  # type: ignore[operator]
            rows = [f"{x[i, 0]},{more[i]},{x[i, 1]},{name}" for i in range(count)]
            path = folder / f"p{person}" / f"{name}.csv"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join([f"ax,{column},ay,label", *rows]))
    return shoal.load(folder)


def counting(number: int, _rng: np.random.Generator, count: int) -> list[str]:
    return [str(number * count + i) for i in range(count)]


@pytest.mark.parametrize(
    "name",
    ["time", "Timestamp", "ts", "Time (s)", "time_ms", "sensor_timestamp", "index", "Unnamed: 0.1"],
)
def test_a_time_by_its_name_is_no_channel(tmp_path: Path, name: str) -> None:
    assert recorded(tmp_path, name, counting).window.channels == ("ax", "ay")


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (counting, "it only grows"),
        (lambda n, _rng, count: [str(9e9 - n * count - i) for i in range(count)], "it only falls"),
        (lambda _n, _rng, count: [str(i % 200) for i in range(count)], "it grows and then"),
        (lambda n, rng, count: np.cumsum(rng.random(count)) + n, "it only grows"),
        (lambda n, _rng, count: [str(7 - n)] * count, "it is constant in each recording"),
        (
            lambda n, rng, count: [str(10 * n + i) for i in rng.integers(0, 4, count)],
            "each of its values occurs with one class alone",
        ),
        (lambda _n, _rng, count: ["a"] * count, "no numbers"),
        (lambda _n, _rng, count: [""] * count, "empty"),
    ],
)
def test_a_column_that_is_no_measurement_by_its_values_is_left_out_and_said(
    tmp_path: Path, values: object, reason: str
) -> None:
    fleet = recorded(tmp_path, "extra", values)
    assert fleet.reading is not None
    extra = next(column for column in fleet.reading.columns if column.name == "extra")
    assert (fleet.window.channels, extra.role) == (("ax", "ay"), "left out")
    assert extra.reason.startswith(reason)
    assert f"extra   left out        {extra.reason}" in described(fleet)


def test_a_channel_that_alone_tells_the_classes_is_said(tmp_path: Path) -> None:
    fleet = recorded(tmp_path, "extra", lambda n, rng, count: 10 * n + rng.random(count))
    assert fleet.window.channels == ("ax", "extra", "ay")
    assert "channel 'extra' alone tells the classes apart" in described(fleet)


def test_measurements_stay_channels(tmp_path: Path) -> None:
    fleet = recorded(tmp_path, "extra", lambda _n, rng, count: rng.integers(0, 3, count))
    assert fleet.window.channels == ("ax", "extra", "ay")
    assert "warning" not in described(fleet)


def test_the_word_of_a_user_goes_first(tmp_path: Path) -> None:
    recorded(tmp_path, "extra", counting)
    said = shoal.load(tmp_path, columns={"extra": "channel", "ay": "left out"})
    assert said.window.channels == ("ax", "extra")
    (tmp_path / "shoal.toml").write_text('rate = 50\nwindow = 64\ncolumns."ax" = "left out"\n')
    fleet = shoal.load(tmp_path)
    assert (fleet.window.channels, fleet.window.length, fleet.window.rate_hz) == (("ay",), 64, 50)
    assert shoal.load(tmp_path, length=32).window.length == 32
    (tmp_path / "p0" / "shoal.toml").write_text('columns."ay" = "chanel"\n')
    with pytest.raises(ConfigError, match=r"p0/shoal\.toml.*chanel"):
        shoal.load(tmp_path)
    with pytest.raises(ConfigError, match=r"columns must have roles of time, .*, got 'chanel'"):
        shoal.load(tmp_path, columns={"ax": "chanel"})  # type: ignore[dict-item]


LAYOUTS = {
    "decimal commas": ("utf-8", "x;y;label", lambda i: f"{i % 7},5;{i % 5},25;1"),
    "tabs": ("utf-8", "x\ty\tlabel", lambda i: f"{i % 7}.5\t{i % 5}.25\t1"),
    "utf-16": ("utf-16", "x,y,label", lambda i: f"{i % 7}.5,{i % 5}.25,1"),
    "Windows": ("cp1252", "x,y,Größe,label", lambda i: f"{i % 7}.5,{i % 5}.25,ä,1"),
    "a mark": ("utf-8-sig", "x,y,label", lambda i: f"{i % 7}.5,{i % 5}.25,1"),
    "separators at the end": ("utf-8", "x,y,label,,", lambda i: f"{i % 7}.5,{i % 5}.25,1,,"),
    "upper case": ("utf-8", "x,y,ACTIVITY", lambda i: f"{i % 7}.5,{i % 5}.25,1"),
    "comments": ("utf-8", "# a logger\n# v2\nx,y,label", lambda i: f"{i % 7}.5,{i % 5}.25,1"),
    "sep=": ("utf-8", "sep=;\nx;y;label", lambda i: f"{i % 7}.5;{i % 5}.25;1"),
    "quotation marks": ("utf-8", '"x","y","label"', lambda i: f'"{i % 7}.5","{i % 5}.25","1"'),
    "a person": ("utf-8", "User,x,y,gt", lambda i: f"a,{i % 7}.5,{i % 5}.25,1"),
    "missing cells": (
        "utf-8",
        "x,y,label",
        lambda i: f"{i % 7}.5,{'NaN' if i % 5 == 3 else f'{i % 5}.25'},1",
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_that_programs_write_are_read(tmp_path: Path, name: str) -> None:
    encoding, header, row = LAYOUTS[name]
    (tmp_path / "a.csv").write_bytes("\n".join([header, *map(row, range(800))]).encode(encoding))
    fleet = shoal.load(tmp_path)
    device = fleet.devices["a"]
    assert (fleet.window.channels, fleet.classes) == (("x", "y"), ("1",))
    np.testing.assert_array_equal(device.train_x[0, 0], np.arange(128) % 7 + 0.5)
    expected = np.arange(128) % 5 + 0.25
    if name != "missing cells":
        np.testing.assert_array_equal(device.train_x[0, 1], expected)
    else:
        np.testing.assert_allclose(device.train_x[0, 1], expected, atol=1e-4)


def sensor_logger(folder: Path) -> None:
    for sensor, hz in (("Accelerometer", 100), ("Gyroscope", 50), ("Barometer", 1)):
        t = np.arange(60 * hz) / hz
        names = "x,y,z" if sensor != "Barometer" else "relativeAltitude,pressure"
        rng = np.random.default_rng(hz)
        with (folder / f"{sensor}.csv").open("w") as file:
            print(f"time,seconds_elapsed,{names}", file=file)
            for at in t:
                values = ",".join(f"{v:.4f}" for v in rng.normal(size=names.count(",") + 1))
                print(f"{int(1.7e18 + at * 1e9)},{at:.4f},{values}", file=file)
    (folder / "Metadata.csv").write_text("version,device name\n3,phone\n")
    (folder / "shoal.toml").write_text('labels."*" = "walk"\n')


def test_one_file_for_each_sensor_is_one_recording(tmp_path: Path) -> None:
    for device_id in ("one", "two"):
        (tmp_path / device_id).mkdir()
        sensor_logger(tmp_path / device_id)
    fleet = shoal.load(tmp_path)
    assert fleet.window.rate_hz == 100
    assert fleet.window.channels[:3] == ("Accelerometer.x", "Accelerometer.y", "Accelerometer.z")
    assert len(fleet.window.channels) == 8
    assert fleet.classes == ("walk",)
    assert 80 < fleet.devices["one"].num_train + fleet.devices["one"].num_test < 93


def test_rows_without_names_are_refused_with_the_line_that_names_them(tmp_path: Path) -> None:
    rows = [
        f"33,{'Jogging' if i > 450 else 'Sitting'},{49105962326000 + i * 50000000},"
        f"{i % 7}.25,{i % 11}.5,{i % 3}.125;"
        for i in range(900)
    ]
    (tmp_path / "raw.csv").write_text("\n".join(rows))
    with pytest.raises(DataError, match=r"raw\.csv, line 1: the first line is a row of 6") as error:
        shoal.load(tmp_path)
    line = str(error.value).partition("recordings: ")[2]
    assert line == 'names = ["person", "label", "t", "c1", "c2", "c3"]'
    (tmp_path / "shoal.toml").write_text(line)
    fleet = shoal.load(tmp_path)
    assert (fleet.window.channels, fleet.classes) == (("c1", "c2", "c3"), ("Jogging", "Sitting"))
    assert fleet.window.rate_hz == 20


def test_a_table_of_all_people_has_a_device_for_each(tmp_path: Path) -> None:
    rows = [
        f"{10 * person + i % 9 / 9:.3f},{i % 7},s{person},{1 + i // 400}"
        for person in range(3)
        for i in range(800)
    ]
    (tmp_path / "all.csv").write_text("\n".join(["x,y,subject,Activity", *rows]))
    for source in (tmp_path / "all.csv", tmp_path):
        fleet = shoal.load(source)
        assert (list(fleet.devices), fleet.classes) == (["s0", "s1", "s2"], ("1", "2"))
        means = [w.train_x[:, 0].mean().round() for w in fleet.devices.values()]
        assert means == [0, 10, 20]


@pytest.mark.parametrize(
    ("files", "error"),
    [
        (
            {"a.csv": "x,y,label\n1,2,0\n1,2,0\n1,!,0"},
            r"a\.csv, line 4, column y: '!' is not a number.*columns.\"y\" = \"left out\"",
        ),
        (
            {"a.csv": "when,x,Time\n1,2,noon\n1,2,1"},
            r"a\.csv, line 2, column Time: 'noon' is no time.*columns.\"Time\" = \"left out\"",
        ),
        (
            {"a.csv": "x,T\n" + "\n".join(f"{i % 7},{i % 3}" for i in range(300))},
            "'T' has the name of a time, and its values fall in 33% of the rows",
        ),
        (
            {"a.csv": "x,label\n1,0", "b.csv": "x,z,label\n1,1,0"},
            r"b\.csv: channels must be x, as in a\.csv, got x, z.*left out",
        ),
        ({"a.csv": "x,label\n1,0,7"}, "line 2 has 3 cells, and the header has 2"),
        ({"a.csv": ""}, "is empty"),
    ],
)
def test_what_is_not_clear_is_one_error_with_its_place_and_the_way_out(
    tmp_path: Path, files: dict[str, str], error: str
) -> None:
    for name, text in files.items():
        (tmp_path / "a").mkdir(exist_ok=True)
        (tmp_path / "a" / name).write_text(text)
    with pytest.raises(DataError, match=error):
        shoal.load(tmp_path)


def at_rate(folder: Path, hz: float, seconds: float = 60.0) -> None:
    folder.mkdir(parents=True)
    t = np.arange(int(seconds * hz)) / hz
    for number, name in enumerate(("slow", "fast")):
        rows = [f"{at:.4f},{np.sin(2 * np.pi * (1 + number) * at):.5f},{name}" for at in t]
        (folder / f"{name}.csv").write_text("\n".join(["t,ax,label", *rows]))


def test_devices_of_other_rates_are_brought_onto_one_or_refused(tmp_path: Path) -> None:
    for hz in (40, 80, 160):
        at_rate(tmp_path / f"d{hz}", hz)
    fleet = shoal.load(tmp_path)
    assert fleet.window.rate_hz == 80
    assert "d160 from 160 Hz, d40 from 40 Hz brought onto 80 Hz" in described(fleet)
    wave = np.sin(2 * np.pi * np.arange(40) / 80)
    for device in fleet.devices.values():
        slow = device.train_x[device.train_y == fleet.classes.index("slow")][0, 0]
        best = max(abs(np.corrcoef(np.roll(slow, s)[:40], wave)[0, 1]) for s in range(80))
        assert best > 0.99
    at_rate(tmp_path / "d20", 20)
    with pytest.raises(DataError, match=r"20 samples a second, and 60 are .*: rate = 20"):
        shoal.load(tmp_path, rate=60)
    assert shoal.load(tmp_path, rate=20).window.rate_hz == 20


@pytest.mark.parametrize("pause_s", [0.0, 2.0, 3600.0])
def test_no_window_spans_a_gap(tmp_path: Path, pause_s: float) -> None:
    t = np.arange(3000) / 50 + pause_s * (np.arange(3000) // 500)
    rows = [f"{at:.3f},{i},0" for i, at in enumerate(t)]
    (tmp_path / "a.csv").write_text("\n".join(["time,ax,label", *rows]))
    fleet = shoal.load(tmp_path, length=64, stride=32, columns={"ax": "channel"})
    windows = fleet.recordings["a"].x[:, 0]
    spans = {(int(w[0]) // 500, int(w[-1]) // 500) for w in windows}
    assert len(windows) == (6 * 14 if pause_s else 92)
    assert all(a == b for a, b in spans) == bool(pause_s)


def test_one_recording_and_many_small_ones_give_the_same(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    runs = [
        (name, rng.normal(size=(count, 1)).round(4))
        for name, count in [("walk", 600), ("sit", 900), ("walk", 300), ("sit", 200), ("run", 1000)]
    ]
    texts = ["\n".join(f"{v[0]},{name}" for v in x) for name, x in runs]
    for folder in ("one", "many"):
        (tmp_path / folder / "a").mkdir(parents=True)
    (tmp_path / "one" / "a" / "all.csv").write_text("\n".join(["ax,label", *texts]))
    for i, text in enumerate(texts):
        (tmp_path / "many" / "a" / f"{i}.csv").write_text(f"ax,label\n{text}")
    one, many = (shoal.load(tmp_path / folder).devices["a"] for folder in ("one", "many"))
    for part in ("train_x", "train_y", "test_x", "test_y"):
        np.testing.assert_array_equal(getattr(one, part), getattr(many, part))
    assert set(one.test_y.tolist()) == {0, 1, 2} == set(one.train_y.tolist())


@pytest.mark.parametrize(("count", "length", "stride"), [(40, 128, 64), (9, 10, 10), (30, 8, 3)])
def test_a_window_lies_between_the_parts_of_a_run(count: int, length: int, stride: int) -> None:
    part = parts_of_run(count, length, stride, 0)
    train, test = (np.flatnonzero(part == which) * stride for which in (TRAIN, TEST))
    assert test.min() - (train.max() + length) >= length
    assert (part == NEITHER).sum() * stride < 2 * length + stride
    assert len(test) == round(count / 4)


@pytest.mark.parametrize(
    ("count", "stride", "parts"),
    [
        *((4, 64, (4, 0)), (5, 64, (1, 1)), (6, 64, (2, 1)), (7, 64, (3, 1)), (8, 64, (3, 2))),
        *((6, 128, (3, 2)), (20, 16, (20, 0)), (22, 16, (4, 3)), (24, 32, (11, 6))),
    ],
)
def test_a_short_run_has_more_training_windows_than_test_windows(
    count: int, stride: int, parts: tuple[int, int]
) -> None:
    part = parts_of_run(count, 128, stride, 0)
    assert ((part == TRAIN).sum(), (part == TEST).sum()) == parts


def test_a_class_without_a_test_window_is_said(tmp_path: Path) -> None:
    rows = [f"{i % 7},{0 if i < 600 else 1}" for i in range(800)]
    (tmp_path / "a.csv").write_text("\n".join(["ax,label", *rows]))
    assert "class 1 has no test window on any device" in described(shoal.load(tmp_path))


def test_a_split_by_time_or_session_works_on_recordings(tmp_path: Path) -> None:
    for device in ("a", "b"):
        for session in range(3):
            rows = [f"{(i + session) % 7},{i // 500}" for i in range(1000)]
            path = tmp_path / device / f"{session}.csv"
            path.parent.mkdir(exist_ok=True)
            path.write_text("\n".join(["ax,label", *rows]))
    for split in ("time", "session"):
        shoal.simulate(str(tmp_path), algorithm="fedavg", rounds=1, split=split)


@pytest.mark.parametrize(
    ("name", "times", "unit", "hz"),
    [
        ("t", np.arange(90) / 50, "s", 50),
        ("timestamp", 1.7e18 + np.arange(90) * 1e7, "ns", 100),
        ("timestamp", 1.7e12 + np.arange(90) * 20, "ms", 50),
        ("ts", 1.7e9 + np.arange(90) * 0.04, "s", 25),
        ("time", 4.9e13 + np.arange(90) * 5e7, "ns", 20),
        ("time", np.arange(90) * 20, "ms", 50),
        ("Time (s)", np.arange(90), "s", 1),
        ("row time", np.arange(90), "", 0),
        ("t", 1.85e15 + 12_345_678 + 5e7 * np.arange(100), "ns", 20.0),
        ("t", 1.6e15 + 6e7 * np.arange(100), "us", 0.0167),
    ],
)
def test_the_unit_of_a_time_is_read(name: str, times: np.ndarray, unit: str, hz: float) -> None:
    assert unit_of_time(name, times) == unit
    seconds = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "": 0.0}[unit]
    assert rate_of(times * seconds) == hz


@pytest.mark.parametrize(
    "cells",
    [
        ["2026-01-31T12:00:00.00", "2026-01-31T12:00:00.02"],
        ["2026-01-31 12:00:00", "2026-01-31 12:00:00.020"],
        ["2026-01-31T12:00:00.00Z", "2026-01-31T13:00:00.02+01:00"],
        ["12:00:00.000", "12:00:00.020"],
        ["31/01/2026 11:59:59.990 PM", "31/01/2026 11:59:59:01 PM"],
    ],
)
def test_dates_are_times(cells: list[str]) -> None:
    seconds, are_seconds, wrong = read_times(np.array(cells))
    assert (are_seconds, wrong) == (True, None)
    assert abs(abs(seconds[1] - seconds[0]) - 0.02) < 1e-3 or cells[0].endswith("PM")


def test_rounded_times_are_spread() -> None:
    t = spread(np.repeat(np.arange(10.0), 50))
    assert rate_of(t) == 50
    assert (np.diff(t) > 0).all()


def test_a_table_is_read_in_parts_and_from_an_archive(tmp_path: Path) -> None:
    path = tmp_path / "P001.csv.gz"
    path.write_bytes(gzip.compress(("time,x\n" + "1,2\n" * 70_000).encode()))
    assert header_of(path) == ("time", "x")
    assert [len(part.lines) for part in parts_of(path)] == [65_536, 4_464]


def test_a_report_says_what_was_taken_for_what(tmp_path: Path) -> None:
    recorded(tmp_path / "data", "extra", counting)
    shoal.simulate(str(tmp_path / "data"), rounds=1, out=tmp_path / "out", models="none")
    report = (tmp_path / "out" / "report.html").read_text()
    assert "Recordings: what was taken for what" in report
    assert "<td>it only grows, as a clock or a counter does</td>" in report
