"""A user's words in ``shoal.toml``: lines that errors suggest, and words that match nothing."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import shoal
from simulation.datasets.description import described
from simulation.datasets.windows import FleetData
from tests.support.layouts import put, values
from wire.errors import ConfigError, ShoalError

LINE = "beside the recordings: "


def rows(count: int, width: int, label: str = "") -> list[str]:
    return [",".join([*cells, *([label] if label else [])]) for cells in values(count, width)]


def pasted(folder: Path, most: int = 6) -> tuple[FleetData, list[str]]:
    """The fleet after each suggested line was added at the end of ``shoal.toml``, and the lines."""
    lines = list[str]()
    path = folder / "shoal.toml"
    while True:
        try:
            fleet = shoal.load(folder)
            suggested = re.findall(f"no column is the label.*?{LINE}(.*)", described(fleet))
            if not suggested:
                return fleet, lines
            line = suggested[0]
        except ShoalError as error:
            text = str(error)
            assert "\n" not in text
            line = text.partition(LINE)[2]
            assert line, text
        assert line not in lines
        assert len(lines) < most, lines
        lines.append(line)
        path.write_text((path.read_text() if path.exists() else "") + line + "\n")


def two_classes(folder: Path, header: str, more: Callable[[int], str], at: str = "a") -> None:
    lines = [
        f"{','.join(cells)},{more(i)},{'sit' if i < 400 else 'run'}"
        for i, cells in enumerate(values(800, 2))
    ]
    put(folder / at / "r.csv", [f"x,y,{header},label", *lines])


def sensors(folder: Path, time: str) -> None:
    for sensor in ("Accelerometer", "Gyroscope"):
        lines = [f"{i / 50},{row},{'?' if i == 7 else i % 3}" for i, row in enumerate(rows(600, 2))]
        put(folder / "ann" / f"walk-1/{sensor}.csv", [f"{time},x,y,note", *lines])
        put(folder / "ann" / f"sit-1/{sensor}.csv", [f"{time},x,y,note", *lines])


def other_columns(folder: Path, *names: str) -> None:
    for at, name in enumerate(names):
        put(folder / f"d{at}" / "r.csv", [f"x,{name},label", *rows(300, 2, "sit")])


def at_rates(folder: Path, *rates: int) -> None:
    for at, rate in enumerate(rates):
        lines = [f"{i / rate},{row}" for i, row in enumerate(rows(300, 1, "sit"))]
        put(folder / "one" / f"r{at}.csv", ["t,x,label", *lines])


def named(folder: Path, *names: str) -> None:
    for name in names:
        put(folder / f"{name}.csv", ["x,y", *rows(300, 2)])


CASES: dict[str, Callable[[Path], None]] = {
    "a cell that is no number": lambda f: two_classes(f, "z", lambda i: "!" if i == 9 else "1.5"),
    "a name with quotation marks": lambda f: two_classes(
        f, '"a ""b"" ü\\"', lambda i: "!" if i == 9 else "1.5"
    ),
    "cells of sensors": lambda f: sensors(f, "time"),
    "files of sensors without a time": lambda f: sensors(f, "moment"),
    "another channel": lambda f: other_columns(f, "y", "z"),
    "another channel in a third device": lambda f: other_columns(f, "y", "y", "extra col"),
    "two labels": lambda f: put(f / "a.csv", ["x,activity,class", *rows(300, 2, "sit")]),
    "a time that falls": lambda f: two_classes(f, "T", lambda i: str(i % 3)),
    "a time that is text": lambda f: two_classes(f, "time", lambda _i: "noon"),
    "rates in one device": lambda f: at_rates(f, 100, 100, 20),
    "rates of three": lambda f: at_rates(f, 20, 100, 50, 100, 100),
    "names of activities": lambda f: named(f / "p", "walk_1", "walking_1", "upstairs_2", "stairs"),
    "names of all devices": lambda f: named(f, "p1/walk", "p2/run"),
    "names in folders": lambda f: named(f / "p1", "day1/walk_1", "day2/run_1", "day2/run_2"),
    "no channel": lambda f: put(f / "a" / "r.csv", ["index,label", *rows(300, 1, "sit")]),
}


@pytest.mark.parametrize("before", ["", '[columns]\nx = "channel"\n', "window = 64\n[classes]\n"])
@pytest.mark.parametrize("name", CASES)
def test_a_line_that_an_error_says_is_read_where_it_is_added(
    tmp_path: Path, name: str, before: str
) -> None:
    CASES[name](tmp_path)
    if "x" not in before or "no channel" not in name:
        (tmp_path / "shoal.toml").write_text(before)
    fleet, lines = pasted(tmp_path)
    assert lines
    assert fleet.classes


def test_names_of_recordings_say_their_classes(tmp_path: Path) -> None:
    CASES["names of activities"](tmp_path)
    assert pasted(tmp_path)[0].classes == ("stairs", "upstairs", "walk", "walking")
    CASES["names of all devices"](tmp_path / "more")
    assert pasted(tmp_path / "more")[0].classes == ("run", "walk")


def test_of_two_lines_for_one_thing_the_later_one_counts(tmp_path: Path) -> None:
    at_rates(tmp_path, 100, 100)
    (tmp_path / "shoal.toml").write_text("rate = 90\n[columns]\nrate = 50\n")
    assert shoal.load(tmp_path).window.rate_hz == 50
    (tmp_path / "shoal.toml").write_text('columns = {x = "channel"}\nrate = 90\nrate = 60\n')
    assert shoal.load(tmp_path).window.rate_hz == 60
    (tmp_path / "shoal.toml").write_text('rate = 90\ncolumns."x = "channel"\n')
    with pytest.raises(ConfigError, match=r"shoal\.toml: .*line 2"):
        shoal.load(tmp_path)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ('[columns]\n"Acc-X" = "channel"', r"line 2.*'Acc-X'.*Nearest: 'acc_x'"),
        ('window = 64\ncolumns."labl" = "label"', r"line 2.*'labl'.*Nearest: 'label'"),
        ('[labels]\n"sitting*" = "sit"', r"line 2.*'sitting\*'.*Nearest: 'sit_1'"),
        ('\n\n[labels]\n"*walk_2" = "walk"', r"line 4.*'\*walk_2'.*Nearest: 'walk_1'"),
        ('[classes]\n"Sitting" = ""', r"line 2.*no sample has the label 'Sitting'.*'sitting'"),
        ('recordings = ["chest*"]', r"line 1.*'chest\*'.*sit_1"),
        ('names = ["t", "c1..c9"]', r"line 1.*header.*'acc_x'"),
        ("[columns]\nacc_x = 'chanel'", r"line 2.*'chanel'.*Nearest: 'channel'"),
        ("\nwindows = 64", r"line 2.*no setting is called 'windows'.*Nearest: 'window'"),
    ],
)
@pytest.mark.parametrize("of_device", [False, True])
def test_a_word_that_matches_nothing_is_an_error_with_the_nearest(
    tmp_path: Path, words: str, error: str, of_device: bool
) -> None:
    for name in ("sit_1", "walk_1"):
        put(tmp_path / "p1" / f"{name}.csv", ["acc_x,label", *rows(300, 1, "sitting")])
    (tmp_path / ("p1" if of_device else "") / "shoal.toml").write_text(words)
    with pytest.raises(ConfigError, match=rf"shoal\.toml, {error}"):
        shoal.load(tmp_path)


def test_a_word_may_match_in_one_device_alone(tmp_path: Path) -> None:
    for person, name in (("p1", "battery"), ("p2", "index")):
        put(tmp_path / person / "r.csv", [f"x,{name},label", *rows(300, 2, person)])
    (tmp_path / "shoal.toml").write_text('columns."battery" = "left out"\nclasses."p2" = "b"')
    assert shoal.load(tmp_path).classes == ("b", "p1")


def test_a_word_of_a_call_that_matches_nothing_is_an_error(tmp_path: Path) -> None:
    put(tmp_path / "p1" / "r.csv", ["Battery,x,label", *rows(300, 2, "a")])
    with pytest.raises(ConfigError, match=r"columns: no .* column 'battry'.*'Battery'"):
        shoal.load(tmp_path, columns={"battry": "left out"})


def of_persons(folder: Path, files: dict[str, list[str]], column: str = "subject") -> None:
    for name, persons in files.items():
        lines = [
            f"{10 * int(person[1:]) + float(cells[0]):.3f},{person},{'sit' if i < 300 else 'run'}"
            for person in persons
            for i, cells in enumerate(values(600, 1))
        ]
        put(folder / f"{name}.csv", [f"x,{column},label", *lines])


@pytest.mark.parametrize(
    "files",
    [
        {"a/b/x": ["s1", "s2"], "c/d/y": ["s3"]},
        {"a/b/x": ["s1"], "c/d/y": ["s2"], "c/e": ["s3"]},
        {"all/x": ["s1", "s2", "s3"]},
        {"a/x": ["s1", "s2", "s3"], "b/x": ["s3", "s1", "s2"]},
        {"s1/x": ["s2", "s3"], "s2/x": ["s1"]},
        {"x": ["s1", "s2"], "y": ["s3", "s1"]},
    ],
)
@pytest.mark.parametrize("column", ["subject", "User", "participant_id"])
def test_a_column_of_persons_has_a_device_for_each_in_any_folder(
    tmp_path: Path, files: dict[str, list[str]], column: str
) -> None:
    of_persons(tmp_path, files, column)
    fleet = shoal.load(tmp_path)
    assert list(fleet.devices) == ["s1", "s2", "s3"]
    for number, device in enumerate(fleet.devices.values(), 1):
        assert np.abs(device.train_x.mean() - 10 * number) < 1
    assert f"{column}  person        a device for each of 3 persons" in re.sub(
        r" +person +", "  person        ", described(fleet)
    )


def test_a_file_without_the_column_of_persons_is_refused_with_a_way_out(tmp_path: Path) -> None:
    of_persons(tmp_path, {"a/x": ["s1", "s2"]})
    put(tmp_path / "b" / "y.csv", ["x,label", *rows(600, 1, "sit")])
    fleet, lines = pasted(tmp_path)
    assert lines == ['columns."subject" = "left out"']
    assert list(fleet.devices) == ["a", "b"]


def test_folders_with_words_of_their_own_stay_devices_and_that_is_said(tmp_path: Path) -> None:
    of_persons(tmp_path, {"a/x": ["s1", "s2"], "b/x": ["s3"]})
    (tmp_path / "a" / "shoal.toml").write_text("rate = 50")
    assert "column 'subject' names several persons, and each folder is a device" in described(
        fleet := shoal.load(tmp_path)
    )
    assert list(fleet.devices) == ["a", "b"]


@pytest.mark.parametrize(
    ("folders", "file"),
    [
        (("dws_1", "ups_2", "wlk_7"), "sub_{}"),
        (("walking", "sitting"), "subject{}"),
        (("1-run", "2-rest"), "User-{}"),
        (("stairs up", "lie"), "Participant {}"),
        (("a/walk", "b/stand"), "proband{}"),
    ],
)
def test_persons_in_names_of_files_in_folders_by_activity_are_devices(
    tmp_path: Path, folders: tuple[str, ...], file: str
) -> None:
    for folder in folders:
        for person in (1, 2, 3):
            lines = [f"{i},{row}" for i, row in enumerate(rows(300, 2))]
            put(tmp_path / folder / f"{file.format(person)}.csv", [",attitude.roll,x", *lines])
    fleet, lines = pasted(tmp_path)
    assert list(fleet.devices) == [file.format(person) for person in (1, 2, 3)]
    assert fleet.window.channels == ("attitude.roll", "x")
    assert len(fleet.classes) == len(folders)
    assert len(lines) == 1
    assert "devices are the persons in the names of files" in described(fleet)


def test_files_in_folders_of_persons_stay_theirs(tmp_path: Path) -> None:
    named(tmp_path / "subject1", "user1", "user2")
    named(tmp_path / "subject2", "user1", "user2")
    assert list(pasted(tmp_path)[0].devices) == ["subject1", "subject2"]


PLACES: dict[str, Callable[[Path], None]] = {
    "names of files": lambda f: named(f / "p1/data", "acc_walk_chest", "acc_walk_head"),
    "names of folders": lambda f: named(f / "p1", "walk/LeftWrist", "walk/RightAnkle"),
    "kinds of devices": lambda f: named(f / "p1", "Phones_a", "Watch_a"),
    "a column": lambda f: put(
        f / "a.csv", ["Position,x,label", *(f"{w},{r}" for w in "uv" for r in rows(300, 1, "sit"))]
    ),
    "a column of devices": lambda f: put(
        f / "p/a.csv", ["Device,x,gt", *(f"{w},{r}" for w in "uv" for r in rows(300, 1, "sit"))]
    ),
}


@pytest.mark.parametrize("name", PLACES)
def test_places_on_a_body_are_said_and_chosen(tmp_path: Path, name: str) -> None:
    PLACES[name](tmp_path)
    fleet = shoal.load(tmp_path)
    windows = sum(w.num_train + w.num_test + w.num_unlabelled for w in fleet.devices.values())
    remark = next(
        line for line in described(fleet).splitlines() if "several devices or places" in line
    )
    (tmp_path / "shoal.toml").write_text(remark.partition(LINE)[2])
    fleet = shoal.load(tmp_path)
    chosen = sum(w.num_train + w.num_test + w.num_unlabelled for w in fleet.devices.values())
    assert chosen == windows / 2
    assert "several devices or places" not in described(fleet)


def test_the_classes_that_names_suggest_are_activities_and_not_people(tmp_path: Path) -> None:
    for name in ("anna_walk", "anna_sit", "ben_walk", "ben_sit"):
        put(tmp_path / f"{name}.csv", ["x,y", *rows(600, 2)])
    fleet, lines = pasted(tmp_path)
    assert lines == ['labels = {"*sit*" = "sit", "*walk*" = "walk"}']
    assert fleet.classes == ("sit", "walk")
