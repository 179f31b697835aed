"""Columns by names that nobody knows: what they are taken for, and the lines that say better."""

import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import shoal
from simulation.datasets.description import described
from simulation.datasets.windows import FleetData
from tests.support.layouts import put, values
from tests.support.newcomers import LAYOUTS
from wire.errors import ConfigError, DataError

LINE = "beside the recordings: "


def suggested(fleet: FleetData) -> list[str]:
    """Lines for ``shoal.toml`` in the account of a fleet."""
    return re.findall(f"{LINE}(.*)", described(fleet))


def role_of(fleet: FleetData, name: str) -> str:
    assert fleet.reading is not None
    return next(column.role for column in fleet.reading.columns if column.name == name)


def with_line(folder: Path, line: str) -> FleetData:
    """The fleet of a copy of a folder with one more line in ``shoal.toml``."""
    copy = folder.with_name(f"{folder.name}-{len(list(folder.parent.iterdir()))}") / folder.name
    shutil.copytree(folder, copy)
    path = copy / "shoal.toml"
    path.write_text((path.read_text() if path.exists() else "") + line + "\n")
    return shoal.load(copy)


def table(
    folder: Path,
    header: str,
    cells: Callable[[int], list[str]],
    count: int = 1800,
    names: tuple[str, ...] = ("all",),
) -> Path:
    """A folder with tables of a time, two channels and further columns."""
    for name in names:
        lines = [f"{i / 50},{','.join([*c, *cells(i)])}" for i, c in enumerate(values(count, 2))]
        put(folder / f"{name}.csv", [f"t,x,y,{header}", *lines])
    return folder


def alike(cells: list[str], _row: int) -> list[str]:
    """Cells that are alike in all rows."""
    return cells


def number(code: Callable[[int, int], int], at: int, row: int) -> list[str]:
    """One cell: the number of a row in the file at this place."""
    return [str(code(at, row))]


WALKS = ("sit", "walk")


class TestPersons:
    """A column that names a person, and whose name says nothing."""

    @pytest.mark.parametrize("cells", [("7", "8", "12"), ("ann", "bob", "cy"), ("a 1", "b 2", "3")])
    @pytest.mark.parametrize("order", ["by person", "by class"])
    def test_it_is_left_out_and_its_line_makes_devices(
        self, tmp_path: Path, cells: tuple[str, ...], order: str
    ) -> None:
        def row(i: int) -> list[str]:
            person, label = (
                (i // 600, i // 300 % 2)
                if order == "by person"
                else (
                    i // 300 % 3,
                    i // 900,
                )
            )
            return [cells[person], WALKS[label]]

        folder = table(tmp_path / "data", "runner,label", row)
        fleet = shoal.load(folder)
        assert fleet.window.channels == ("x", "y")
        assert suggested(fleet) == ['columns."runner" = "person"']
        assert sorted(with_line(folder, suggested(fleet)[0]).devices) == sorted(cells)

    @pytest.mark.parametrize("header", ["who", "Läufer", "NAME"])
    def test_it_may_be_constant_in_each_of_several_files(self, tmp_path: Path, header: str) -> None:
        for name in ("ann", "bob"):
            for label in WALKS:
                table(
                    tmp_path / "data" / "all",
                    f"{header},label",
                    partial(alike, [name, label]),
                    600,
                    (f"{name}_{label}",),
                )
        fleet = shoal.load(tmp_path / "data")
        assert suggested(fleet)[:1] == [f'columns."{header}" = "person"']
        assert list(with_line(tmp_path / "data", suggested(fleet)[0]).devices) == ["ann", "bob"]

    def test_one_whose_values_come_back_is_a_channel_and_said(self, tmp_path: Path) -> None:
        folder = table(
            tmp_path / "data", "level,label", lambda i: [str(i // 200 % 3), WALKS[i // 1800]], 3600
        )
        fleet = shoal.load(folder)
        assert role_of(fleet, "level") == "channel"
        assert "'level' is taken as a channel" in described(fleet)
        assert with_line(folder, suggested(fleet)[0]).devices.keys() == {"0", "1", "2"}

    @pytest.mark.parametrize(
        ("header", "cell"),
        [
            ("heart_rate", lambda i: str(60 + i // 300 % 5)),
            ("steps", lambda i: str(i * 7 % 31)),
            ("temp", lambda i: str(30 + i // 700)),
            ("force", lambda i: f"{i * i % 97 / 7:.3f}"),
        ],
    )
    def test_sensors_stay_channels_without_a_word(
        self, tmp_path: Path, header: str, cell: Callable[[int], str]
    ) -> None:
        fleet = shoal.load(
            table(tmp_path / "data", f"{header},label", lambda i: [cell(i), WALKS[i // 900]])
        )
        assert role_of(fleet, header) == "channel"
        assert not suggested(fleet)

    def test_what_a_known_person_has_is_no_person(self, tmp_path: Path) -> None:
        folder = table(
            tmp_path / "data",
            "user,sex,age,label",
            lambda i: [
                str(i // 450),
                "fmfm"[i // 450],
                str(31 + i // 450 % 3),
                WALKS[i // 225 % 2],
            ],
        )
        fleet = shoal.load(folder)
        assert fleet.window.channels == ("x", "y")
        assert suggested(fleet) == ['columns."age" = "channel"']


class TestLabels:
    """Classes in a column whose name says nothing, or says it in another language."""

    @pytest.mark.parametrize(
        "cells", [("walking", "lying", "stairs"), ("gehen", "sitzen", "laufen")]
    )
    def test_activities_are_the_label(self, tmp_path: Path, cells: tuple[str, ...]) -> None:
        folder = table(tmp_path / "data", "was", lambda i: [cells[i // 600]])
        assert suggested(fleet := shoal.load(folder)) == ['columns."was" = "label"']
        assert with_line(folder, suggested(fleet)[0]).classes == tuple(sorted(cells))

    @pytest.mark.parametrize(
        ("code", "count"), [(lambda _at, i: i // 600, 3), (lambda at, _i: at, 2)]
    )
    def test_numbers_that_may_be_of_persons_or_classes_are_no_channel_and_both_are_said(
        self, tmp_path: Path, code: Callable[[int, int], int], count: int
    ) -> None:
        for folder in "de":
            for at, name in enumerate("ab"):
                table(
                    tmp_path / "data" / folder,
                    "code",
                    partial(number, code, at),
                    names=(name,),
                )
        fleet = shoal.load(tmp_path / "data")
        assert fleet.window.channels == ("x", "y")
        assert 'names the person (for the label, write "label")' in described(fleet)
        (line,) = suggested(fleet)
        assert line == 'columns."code" = "person"'
        assert len(with_line(tmp_path / "data", line).devices) == count
        label = line.replace("person", "label")
        assert len(with_line(tmp_path / "data", label).classes) == count

    @pytest.mark.parametrize("header", ["state", "Machine State", "Zustand"])
    def test_states_of_a_machine_are_offered_as_the_label(
        self, tmp_path: Path, header: str
    ) -> None:
        names = ("normal", "unbalance", "worn")
        folder = table(tmp_path / "data", header, lambda i: [names[i // 600]])
        assert suggested(fleet := shoal.load(folder)) == [f'columns."{header}" = "label"']
        assert with_line(folder, suggested(fleet)[0]).classes == names

    def test_numbers_that_come_back_in_a_recording_are_the_label(self, tmp_path: Path) -> None:
        folder = table(tmp_path / "data", "code", lambda i: [str(i // 200 % 3)], 3600)
        fleet = shoal.load(folder)
        assert suggested(fleet) == ['columns."code" = "label"']
        assert with_line(folder, suggested(fleet)[0]).classes == ("0", "1", "2")

    @pytest.mark.parametrize(
        "header",
        [
            "Zeit,Person,x,Tätigkeit",
            "Zeitstempel,Versuchsperson,x,AKTIVITÄT",
            "temps,sujet,x,activité",
            "tiempo,sujeto,x,Actividad",
            "ora,soggetto,x,attività",
            "Marca de tiempo,usuário,x,atividade",
        ],
    )
    @pytest.mark.parametrize("encoding", ["utf-8", "cp1252"])
    def test_roles_have_names_in_other_languages(
        self, tmp_path: Path, header: str, encoding: str
    ) -> None:
        lines = [
            f"{i / 50},{'ab'[i // 600]},{c[0]},{WALKS[i // 300 % 2]}"
            for i, c in enumerate(values(1200, 1))
        ]
        (tmp_path / "a.csv").write_bytes("\n".join([header, *lines]).encode(encoding))
        fleet = shoal.load(tmp_path)
        assert (fleet.window.channels, fleet.classes) == (("x",), WALKS)
        assert (list(fleet.devices), fleet.window.rate_hz) == (["a", "b"], 50)

    @pytest.mark.parametrize("name", ["加速度", "ускорение", "επιτάχυνση"])
    def test_a_name_in_another_script_is_no_number_of_a_row(
        self, tmp_path: Path, name: str
    ) -> None:
        put(tmp_path / "a.csv", [f"t,{name}", *(f"{i / 50},{c}" for i, (c,) in _numbered(300))])
        assert shoal.load(tmp_path).window.channels == (name,)


class TestSeveralLabels:
    """Columns that are called by a label: none of them is a channel unbidden."""

    @pytest.mark.parametrize(
        ("beside", "channels"),
        [
            ("label_source", "x y"),
            ("Label-Confidence", "x y"),
            ("labels.raw", "x y"),
            ("label2", "x y"),
            ("labeller", "x y labeller"),
        ],
    )
    @pytest.mark.parametrize("label", ["label", "Activity", "target.speed", "label.walk"])
    def test_one_beside_the_label_is_no_channel(
        self, tmp_path: Path, beside: str, channels: str, label: str
    ) -> None:
        header = f"{beside},{label}"
        folder = table(tmp_path / "data", header, lambda i: [str(i % 5), str(i // 900)])
        fleet = shoal.load(folder)
        assert " ".join(fleet.window.channels) == channels

    @pytest.mark.parametrize("header", ["label_name", "label:class", "Label 1", "LABEL.text"])
    def test_one_alone_is_left_out_with_the_line_that_takes_it(
        self, tmp_path: Path, header: str
    ) -> None:
        folder = table(tmp_path / "data", header, lambda i: [str(i // 900)])
        fleet = shoal.load(folder)
        assert fleet.window.channels == ("x", "y")
        assert suggested(fleet) == [f'columns."{header}" = "label"']
        assert with_line(folder, suggested(fleet)[0]).classes == ("0", "1")
        assert not suggested(shoal.load(folder, columns={header: "left out"}))

    @pytest.mark.parametrize(
        "header",
        ["label:SIT,label:WALK,label_source", "label1,label2,label3", "Label.a,Label.b,Label.c"],
    )
    def test_several_are_refused_with_the_line_that_takes_one(
        self, tmp_path: Path, header: str
    ) -> None:
        folder = table(tmp_path / "data", header, lambda i: [str(i // 900)] * 3)
        with pytest.raises(DataError, match=r"could all be the label.*columns label\.NAME"):
            shoal.load(folder)
        first = header.partition(",")[0]
        fleet = shoal.load(folder, columns={first: "label"})
        assert (fleet.window.channels, fleet.classes) == (("x", "y"), ("0", "1"))

    @pytest.mark.parametrize("header", ["label:a,label:b,z", "p,q,label", "Activity,class,gt"])
    def test_several_by_a_users_word_are_refused_with_the_line_that_takes_one(
        self, tmp_path: Path, header: str
    ) -> None:
        folder = table(tmp_path / "data", header, lambda i: [str(i // 900), str(i % 3), "1"])
        first, second, _ = header.split(",")
        (folder / "shoal.toml").write_text(
            f'columns."{first}" = "label"\ncolumns."{second}" = "label"\n'
        )
        with pytest.raises(DataError, match=f"one column may be the label, got '{first}'") as error:
            shoal.load(folder)
        better = with_line(folder, str(error.value).partition(LINE)[2])
        assert better.classes == ("0", "1")
        assert second not in better.window.channels

    def test_a_users_word_goes_before_the_name(self, tmp_path: Path) -> None:
        folder = table(tmp_path / "data", "label,kind", lambda i: [str(i % 3), WALKS[i // 900]])
        fleet = shoal.load(folder, columns={"kind": "label"})
        assert (fleet.window.channels, fleet.classes) == (("x", "y"), WALKS)

    def test_many_are_counted(self, tmp_path: Path) -> None:
        header = ",".join(f"label:{i}" for i in range(51))
        folder = table(tmp_path / "data", header, lambda _i: ["1"] * 51)
        with pytest.raises(DataError, match=r"'label:3' and 47 more could all be the label"):
            shoal.load(folder)


class TestPatterns:
    """Patterns in place of names of columns."""

    @pytest.mark.parametrize(
        ("words", "channels"),
        [
            ('columns."gyr_*" = "left out"', "acc_x acc_y mag [uT]"),
            ('columns."GYR?X" = "left out"', "acc_x acc_y gyr_y mag [uT]"),
            ('[columns]\n"gyr_*" = "left out"\ngyr_y = "channel"', "acc_x acc_y gyr_y mag [uT]"),
            ('[columns]\n"*" = "left out"\n"acc*" = "channel"', "acc_x acc_y"),
            ('columns."mag [uT]" = "left out"', "acc_x acc_y gyr_x gyr_y"),
        ],
    )
    def test_a_role_is_of_all_columns_that_match(
        self, tmp_path: Path, words: str, channels: str
    ) -> None:
        put(
            tmp_path / "a.csv",
            ["acc_x,acc_y,gyr_x,gyr_y,mag [uT]", *(",".join(c) for c in values(300, 5))],
        )
        (tmp_path / "shoal.toml").write_text(words)
        assert " ".join(shoal.load(tmp_path).window.channels) == channels

    @pytest.mark.parametrize("pattern", ["mag*", "acc?", "gyr_[xy]"])
    def test_one_that_matches_nothing_is_an_error(self, tmp_path: Path, pattern: str) -> None:
        put(tmp_path / "a.csv", ["acc_x,gyr_x", *(",".join(c) for c in values(300, 2))])
        with pytest.raises(ConfigError, match="no recording has a column"):
            shoal.load(tmp_path, columns={pattern: "left out"})

    def test_a_sensor_is_left_out_by_its_name(self, tmp_path: Path) -> None:
        for sensor in ("acc", "gyr", "barometer"):
            put(
                tmp_path / f"ann/{sensor}.csv",
                ["t,x", *(f"{i / 50},{c}" for i, (c,) in _numbered(300))],
            )
        fleet = shoal.load(tmp_path, columns={"barom*": "left out"})
        assert fleet.window.channels == ("acc.x", "gyr.x")


def _numbered(count: int) -> "enumerate[list[str]]":
    return enumerate(values(count, 1))


def test_a_clock_by_another_name_is_the_time(tmp_path: Path) -> None:
    lines = [f"{20 * i},{c}" for i, (c,) in _numbered(600)]
    put(tmp_path / "data" / "a.csv", ["Tempo (ms),x", *lines])
    fleet = shoal.load(tmp_path / "data")
    assert (fleet.window.channels, suggested(fleet)) == (("x",), ['columns."Tempo (ms)" = "time"'])
    assert with_line(tmp_path / "data", suggested(fleet)[0]).window.rate_hz == 50


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_line_of_a_warning_is_read_and_makes_no_person_a_class(
    tmp_path: Path, name: str
) -> None:
    persons = LAYOUTS[name](tmp_path / "data")
    fleet = shoal.load(tmp_path / "data")
    for line in suggested(fleet):
        better = with_line(tmp_path / "data", line)
        assert line not in suggested(better)
        assert not {*better.classes} & persons
        assert line.startswith('labels = {"*') or better.devices.keys() != {*better.classes}


@pytest.mark.parametrize("name", ["{}", "dev-{}", "10{}"])
@pytest.mark.parametrize("shift_ms", [0, 5])
def test_ids_in_turn_are_persons(tmp_path: Path, name: str, shift_ms: int) -> None:
    """No number of a row comes twice, wherever in the file the second one is."""
    rng, lines = np.random.default_rng(0), ["id,activity,timestamp,x,y"]
    for sample in range(600):
        activity = ("Walking", "Sitting")[sample // 300]
        for person in range(7):
            at_ms = 1_600_000_000_000 + 40 * sample + shift_ms * person
            x, y = rng.normal(size=2)
            lines.append(f"{name.format(person)},{activity},{at_ms},{x:.3f},{y:.3f}")
    (tmp_path / "sensor.csv").write_text("\n".join(lines))
    fleet = shoal.load(tmp_path, length=100)
    assert len(fleet.devices) == 7
    assert fleet.window.rate_hz == 25


def test_ids_that_never_repeat_are_numbers_of_rows(tmp_path: Path) -> None:
    rng, lines = np.random.default_rng(0), ["id,activity,timestamp,x,y"]
    for sample in range(1200):
        x, y = rng.normal(size=2)
        activity = ("Walking", "Sitting")[sample // 600]
        lines.append(f"{sample},{activity},{1_600_000_000_000 + 40 * sample},{x:.3f},{y:.3f}")
    for person in ("a", "b"):
        (tmp_path / person).mkdir()
        (tmp_path / person / "sensor.csv").write_text("\n".join(lines))
    assert sorted(shoal.load(tmp_path, length=100).devices) == ["a", "b"]
