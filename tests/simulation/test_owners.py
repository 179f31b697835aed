"""Devices by the names of folders and files: never by activity in silence."""

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest

import shoal
from simulation.datasets.description import described
from tests.support.layouts import put, values
from tests.support.newcomers import files
from wire.errors import DataError

LINE = "beside the recordings: "


def add(folder: Path, line: str) -> None:
    path = folder / "shoal.toml"
    path.write_text((path.read_text() if path.exists() else "") + line + "\n")


def lines_of(text: str) -> list[str]:
    return re.findall(f"{LINE}(.*)", text)


@pytest.mark.parametrize(
    ("folders", "names", "classes"),
    [
        (("0.Stand", "1.Sit", "11.Walk-backward"), "{}_A_{}", "Stand Sit Walk-backward"),
        (("Walking", "Sitting", "Table tennis"), "{}-{}", ""),
        (("walk_1", "sit_2", "pick_3"), "{} take {}", "walk sit pick"),
        (("01_alpha", "02_beta"), "{}_B_{}", "alpha beta"),
        (("1 lie", "2 stand"), "{}/{}", "lie stand"),
    ],
)
@pytest.mark.parametrize("persons", [("1001", "1002"), ("p07", "p12")])
def test_folders_by_activity_are_classes_and_persons_in_files_are_devices(
    tmp_path: Path, folders: tuple[str, ...], names: str, classes: str, persons: tuple[str, ...]
) -> None:
    for folder in folders:
        files(tmp_path / folder, *(names.format(p, f"x{k}") for p in persons for k in (1, 2)))
    fleet = shoal.load(tmp_path)
    assert list(fleet.devices) == list(persons)
    text = described(fleet)
    assert re.search(
        "(look like|are) classes, not devices|devices are the persons in the names of files", text
    )
    add(tmp_path, lines_of(text)[-1])
    fleet = shoal.load(tmp_path)
    assert list(fleet.devices) == list(persons)
    assert sorted(fleet.classes) == (sorted(classes.split()) if classes else sorted(folders))
    assert not lines_of(described(fleet))


def test_a_user_says_that_folders_by_activity_are_devices(tmp_path: Path) -> None:
    for folder in ("Walking", "Sitting"):
        files(tmp_path / folder, *(f"{p}_{k}" for p in ("ann", "bob") for k in "xy"))
    text = described(shoal.load(tmp_path))
    assert "the first words of the files' names, ann, bob, are taken for persons" in text
    add(tmp_path, lines_of(text)[0])
    fleet = shoal.load(tmp_path)
    assert list(fleet.devices) == ["Sitting", "Walking"]
    assert not fleet.classes


@pytest.mark.parametrize("folders", [("01_alpha", "02_beta"), ("1. anna", "2. ben"), ("1x1", "2y")])
def test_folders_with_numbers_alone_are_devices_and_that_is_said(
    tmp_path: Path, folders: tuple[str, ...]
) -> None:
    for folder in folders:
        files(tmp_path / folder, *"012")
    fleet = shoal.load(tmp_path)
    text = described(fleet)
    assert list(fleet.devices) == list(folders)
    assert ("each is taken for a device. If each is a class" in text) == ("1x1" not in folders)
    if "1x1" not in folders:
        add(tmp_path, lines_of(text)[0])
        assert list(shoal.load(tmp_path).devices) == ["0", "1", "2"]


@pytest.mark.parametrize("folders", [("anna", "ben"), ("left", "right"), ("a01", "a02")])
@pytest.mark.parametrize("names", [("001", "002"), ("walk_1", "sit_1"), ("2026-01-31", "x")])
def test_other_folders_stay_devices_without_a_word(
    tmp_path: Path, folders: tuple[str, ...], names: tuple[str, ...]
) -> None:
    for folder in folders:
        files(tmp_path / folder, *names)
    fleet = shoal.load(tmp_path)
    assert list(fleet.devices) == list(folders)
    assert "taken for" not in described(fleet)


def test_files_of_activities_that_share_no_word_are_devices(tmp_path: Path) -> None:
    for folder in ("Walking", "Sitting"):
        files(tmp_path / folder, *(f"{folder[0]}{k}" for k in "abc"))
    fleet = shoal.load(tmp_path)
    assert len(fleet.devices) == 6
    assert "each file in them is taken for a device" in described(fleet)


@pytest.mark.parametrize(
    ("names", "persons"),
    [
        (("S1-ADL1", "S1-Drill", "S2-ADL1", "S2-Drill"), "S1 S2"),
        (("p01_walk", "p01_sit", "p02_walk"), "p01 p02"),
        (("Subject 1 a", "Subject 1 b", "Subject 2 a"), "Subject 1,Subject 2"),
        (("exp01_user01", "exp02_user01", "exp03_user02"), "user01 user02"),
        (("walk-sub_3-a", "sit-sub_3-a", "sit-sub_4-b"), "sub_3 sub_4"),
        (("a P2", "b P2", "b P3"), "P2 P3"),
    ],
)
def test_files_that_name_a_person_are_of_one_device(
    tmp_path: Path, names: tuple[str, ...], persons: str
) -> None:
    files(tmp_path, *names)
    fleet = shoal.load(tmp_path)
    assert list(fleet.devices) == persons.split("," if "," in persons else None)
    assert "devices are the persons in the names of files, such as " in described(fleet)


@pytest.mark.parametrize(
    "names", [("S1", "S2"), ("S1-a", "S2-a"), ("S1-a", "S1-b", "other"), ("a_s1", "b_s1", "c_s2")]
)
def test_files_of_a_person_each_stay_devices(tmp_path: Path, names: tuple[str, ...]) -> None:
    files(tmp_path, *names)
    assert sorted(shoal.load(tmp_path).devices) == sorted(names)


def of_persons(path: Path, header: str, step_s: float, count: int = 900) -> None:
    """A table of two persons, one after the other, with a time and a value."""
    begin = datetime(2016, 4, 12, 23)
    rows = [
        f"{person},{begin + timedelta(seconds=i * step_s):%m/%d/%Y %I:%M:%S %p},{c}"
        for person in (1503, 2022)
        for i, (c,) in numbered(count)
    ]
    put(path, [header, *rows])


def numbered(count: int) -> "enumerate[list[str]]":
    return enumerate(values(count, 1))


class TestSensorsOfPersons:
    """Files of a sensor each, in which columns name the person and the time."""

    @pytest.mark.parametrize("person", ["Id", "user", "Versuchsperson"])
    @pytest.mark.parametrize("place", ["", "all/"])
    def test_they_are_joined_by_person_and_time(
        self, tmp_path: Path, person: str, place: str
    ) -> None:
        of_persons(tmp_path / f"{place}heartrate_merged.csv", f"{person},Time,Value", 5)
        of_persons(tmp_path / f"{place}steps_merged.csv", f"{person},ActivityMinute,Steps", 15)
        fleet = shoal.load(tmp_path, length=50)
        assert list(fleet.devices) == ["1503", "2022"]
        assert fleet.window.channels == ("heartrate_merged.Value", "steps_merged.Steps")
        assert fleet.window.rate_hz == 0.2
        seconds = fleet.devices["1503"].num_unlabelled * 25 / 0.2
        assert abs(seconds - 900 * 5) < 300

    def test_one_that_comes_too_seldom_is_refused_with_the_lower_rate(self, tmp_path: Path) -> None:
        of_persons(tmp_path / "pulse.csv", "Id,Time,Value", 5)
        of_persons(tmp_path / "minutes.csv", "Id,Time,Steps", 60)
        with pytest.raises(
            DataError, match=r"minutes\.csv: one sample in 59\.9 s is too seldom"
        ) as e:
            shoal.load(tmp_path)
        add(tmp_path, str(e.value).partition(LINE)[2])
        fleet = shoal.load(tmp_path, length=20)
        assert 0.0166 < fleet.window.rate_hz < 0.0168
        assert all(w.num_unlabelled for w in fleet.devices.values())

    def test_several_files_of_one_sensor_are_an_error_that_leads_out(self, tmp_path: Path) -> None:
        of_persons(tmp_path / "pulse.csv", "Id,Time,Value", 5)
        for name in ("steps_1", "steps_2"):
            of_persons(tmp_path / f"{name}.csv", "Id,Time,Steps", 5)
        with pytest.raises(DataError, match="one of each sensor, joined by persons and") as e:
            shoal.load(tmp_path)
        line = str(e.value).partition(LINE)[2]
        assert line == 'recordings = ["pulse"]'
        add(tmp_path, line)
        assert shoal.load(tmp_path).window.channels == ("Value",)
        add(tmp_path, 'recordings = ["pulse", "steps_2"]')
        assert shoal.load(tmp_path).window.channels == ("pulse.Value", "steps_2.Steps")

    @pytest.mark.parametrize("cell", [str, lambda _: "", lambda row: str(900 - row)])
    def test_an_id_that_no_two_rows_share_is_the_number_of_a_row(
        self, tmp_path: Path, cell: Callable[[int], str]
    ) -> None:
        rows = [f"{cell(i)},{c}" for i, (c,) in numbered(300)]
        put(tmp_path / "a.csv", ["id,x", *rows])
        fleet = shoal.load(tmp_path)
        assert list(fleet.devices) == ["a"]
        assert "the number of a row" in described(fleet)
