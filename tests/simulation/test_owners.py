"""Devices by the names of folders and files: never by activity in silence."""

import re
from pathlib import Path

import pytest

import shoal
from simulation.datasets.description import described
from tests.support.newcomers import files

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
    assert re.search("are taken for classes|devices are the persons in the names of files", text)
    add(tmp_path, lines_of(text)[-1])
    fleet = shoal.load(tmp_path)
    assert list(fleet.devices) == list(persons)
    assert sorted(fleet.classes) == (sorted(classes.split()) if classes else sorted(folders))
    assert not lines_of(described(fleet))


def test_a_user_says_that_folders_by_activity_are_devices(tmp_path: Path) -> None:
    for folder in ("Walking", "Sitting"):
        files(tmp_path / folder, *(f"{p}_{k}" for p in ("ann", "bob") for k in "xy"))
    text = described(shoal.load(tmp_path))
    assert "the first words of the files' names, such as ann, bob, for persons" in text
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
    assert "each file in them for a device" in described(fleet)


@pytest.mark.parametrize(
    ("names", "persons"),
    [
        (("S1-ADL1", "S1-Drill", "S2-ADL1", "S2-Drill"), "S1 S2"),
        (("p01_walk", "p01_sit", "p02_walk"), "p01 p02"),
        (("Subject 1 a", "Subject 1 b", "Subject 2 a"), "Subject 1,Subject 2"),
    ],
)
def test_files_that_begin_with_a_person_are_of_one_device(
    tmp_path: Path, names: tuple[str, ...], persons: str
) -> None:
    files(tmp_path, *names)
    fleet = shoal.load(tmp_path)
    assert list(fleet.devices) == persons.split("," if "," in persons else None)
    assert "devices are the persons in the names of files, such as " in described(fleet)


@pytest.mark.parametrize("names", [("S1", "S2"), ("S1-a", "S2-a"), ("S1-a", "S1-b", "other")])
def test_files_of_a_person_each_stay_devices(tmp_path: Path, names: tuple[str, ...]) -> None:
    files(tmp_path, *names)
    assert sorted(shoal.load(tmp_path).devices) == sorted(names)
