"""Layouts of loggers, machines and meters: rates in comments, repeated rows, missing codes."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import shoal
from edge_client.data.tables.parts import role_line
from edge_client.data.tables.roles import LABEL
from edge_client.data.windows import read_folder
from simulation.datasets.description import described
from tests.support.layouts import COUNT, put, rows, suggested, values
from wire.errors import ShoalError

HEADER = "t,x,y,label"


def of_two(label: str = "walk") -> list[str]:
    """Rows of two classes, one after the other."""
    return [*rows(label), *rows("sit", begin=COUNT)]


class TestComments:
    """Comments before the rows that say the rate, or the names of columns."""

    def put(self, path: Path, comments: list[str], header: str = "", separator: str = "\t") -> None:
        cells = [[str(i % 16), "1", "0", *c] for i, c in enumerate(values(COUNT, 2))]
        put(path, [*comments, *([header] if header else []), *map(separator.join, cells)])

    @pytest.mark.parametrize("board", ["bitalino_rev", "biosignalsplux"])
    @pytest.mark.parametrize("rate", [100, 1000])
    def test_open_signals(self, tmp_path: Path, board: str, rate: int) -> None:
        columns = ["nSeq", "I1", "O1", "A1", "A2"]
        facts = {"device": board, "sampling rate": rate, "resolution": [4, 1], "column": columns}
        comments = ["# OpenSignals Text File Format", f"# {json.dumps({'00:07': facts})}"]
        for name in ("s1", "s2"):
            self.put(tmp_path / f"{name}.txt", [*comments, "# EndOfHeader"])
        fleet = shoal.load(tmp_path)
        assert (fleet.window.channels, fleet.window.rate_hz) == (("A1", "A2"), rate)
        assert "If it" not in described(fleet)

    @pytest.mark.parametrize(
        "comment",
        [
            "# Sampling rate: 250 Hz",
            "% sample_rate = 250",
            "// Sampling Frequency (Hz): 250",
            "# fs: 0.25 kHz",
            "# Samplerate 250",
            '# {"sampling rate": 250}',
        ],
    )
    def test_the_rate_counts_without_times(self, tmp_path: Path, comment: str) -> None:
        self.put(tmp_path / "a" / "r.csv", [comment], "n,i,o,x,y", ",")
        assert shoal.load(tmp_path).window.rate_hz == 250

    @pytest.mark.parametrize(
        "comments",
        [
            ["# rate of person 3"],
            ["# high pass at 0.5 Hz"],
            ["# acc: sampling rate 100 Hz", "# gyr: sampling rate 50 Hz"],
            ["# rated 5 of 5"],
            ["# sampled by Ann in 2026"],
        ],
    )
    def test_other_numbers_are_no_rate(self, tmp_path: Path, comments: list[str]) -> None:
        self.put(tmp_path / "a" / "r.csv", comments, "n,i,o,x,y", ",")
        assert shoal.load(tmp_path).window.rate_hz == 0

    def test_times_go_before_the_rate(self, tmp_path: Path) -> None:
        put(tmp_path / "a" / "r.csv", ["# sampling rate: 250 Hz", HEADER, *of_two()])
        assert shoal.load(tmp_path).window.rate_hz == 50

    @pytest.mark.parametrize(
        ("comment", "separator"),
        [
            ("# t,x,y,label", ","),
            ("% time;x;y;label", ";"),
            ("#t x y label", " "),
            ("// t\tx\ty\tlabel", "\t"),
            ('# {"columns": ["t", "x", "y", "label"]}', ","),
        ],
    )
    def test_names_in_the_last_comment_are_a_header(
        self, tmp_path: Path, comment: str, separator: str
    ) -> None:
        lines = [line.replace(",", separator) for line in of_two()]
        put(tmp_path / "a" / "r.csv", ["# by Ann", comment, *lines])
        fleet = shoal.load(tmp_path)
        assert (fleet.window.channels, fleet.classes) == (("x", "y"), ("sit", "walk"))

    def test_words_in_a_comment_are_no_names(self, tmp_path: Path) -> None:
        put(tmp_path / "a" / "r.csv", ["# recorded in my garden", *" ".join(rows()).split()])
        with pytest.raises(ShoalError, match=r'names = \["t", "c1..c2", "label"\]|names = \["t"'):
            shoal.load(tmp_path)


def test_a_counter_that_begins_anew_is_no_channel(tmp_path: Path) -> None:
    for device in "ab":
        lines = [f"{line},{i % 16},{i // 2 % 256},{i % 2}" for i, line in enumerate(of_two())]
        put(tmp_path / device / "r.csv", [f"{HEADER},k,p,f", *lines])
    fleet = shoal.load(tmp_path)
    assert fleet.window.channels == ("x", "y", "f")
    assert described(fleet).count("it grows and then begins anew, as a") >= 2


class TestRowsTwice:
    @pytest.mark.parametrize(
        "twice",
        [
            lambda lines: [line for line in lines for _ in range(2)],
            lambda lines: [line for line in lines for _ in range(3)],
            lambda lines: [line for i, line in enumerate(lines) for _ in range(1 + i % 2)],
            lambda lines: [
                line for i, line in enumerate(lines) for _ in range(2 if i < len(lines) // 2 else 1)
            ],
            lambda lines: [line for line in lines for _ in range(2)][1:],
        ],
    )
    def test_rows_that_repeat_the_row_before_are_left_out(
        self, tmp_path: Path, twice: Callable[[list[str]], list[str]]
    ) -> None:
        put(tmp_path / "once" / "r.csv", [HEADER, *of_two()])
        put(tmp_path / "twice" / "r.csv", [HEADER, *twice(of_two())])
        (once, _), (windows, reading) = (read_folder(tmp_path / n) for n in ("once", "twice"))
        assert np.array_equal(once.train_x, windows.train_x)
        assert reading is not None
        assert reading.rate_hz == 50
        assert any("repeat the row before them, with its time" in r for r in reading.remarks)

    def test_a_row_counter_beside_them_changes_nothing(self, tmp_path: Path) -> None:
        lines = [line for line in of_two() for _ in range(2)]
        put(
            tmp_path / "a" / "r.csv",
            [f"index,{HEADER}", *(f"{i},{x}" for i, x in enumerate(lines))],
        )
        assert shoal.load(tmp_path).window.rate_hz == 50

    def test_samples_of_rounded_times_stay(self, tmp_path: Path) -> None:
        lines = [f"{i // 50},{x},{y},a" for i, (x, y) in enumerate(values(COUNT, 2))]
        put(tmp_path / "a" / "r.csv", [HEADER, *lines])
        fleet = shoal.load(tmp_path)
        assert fleet.window.rate_hz == 50
        assert "repeat" not in described(fleet)

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ("a/1.csv", "a/2.csv"),
            ("a/1.csv", "b/1.csv"),
            ("a.csv", "b.csv"),
            ("a/walk.csv", "a/copy of walk.csv"),
            ("S1/r.csv", "S2/r (1).csv"),
        ],
    )
    def test_a_file_twice_under_two_names_is_said(
        self, tmp_path: Path, one: str, other: str
    ) -> None:
        for name in (one, other):
            put(tmp_path / name, [HEADER, *of_two()])
        text = described(shoal.load(tmp_path))
        assert text.count("have the same times and values") == 1
        put(tmp_path / other, [HEADER, *rows("sit", begin=COUNT), *rows("sit", begin=2 * COUNT)])
        assert "have the same times and values" not in described(shoal.load(tmp_path))

    @pytest.mark.parametrize("again", [1, 2])
    def test_rows_that_come_again_later_are_said(self, tmp_path: Path, again: int) -> None:
        put(tmp_path / "a" / "r.csv", [HEADER, *of_two(), *of_two() * again])
        text = described(shoal.load(tmp_path))
        assert f"{again * 2 * COUNT} rows have the time and the values of an earlier row" in text


class TestNumbersForNothing:
    def put(self, folder: Path, code: str, scale: float = 1, begin: float = 0) -> None:
        cells = [[f"{begin + scale * float(c):.4f}" for c in line] for line in values(2 * COUNT, 2)]
        for at in (*range(20), 300, 301, 900):
            cells[at][0] = code
        lines = [f"{i / 50},{','.join(c)},{'ab'[i // COUNT]}" for i, c in enumerate(cells)]
        put(folder / "a" / "r.csv", [HEADER, *lines])

    @pytest.mark.parametrize(
        ("code", "number"),
        [
            ("-9999", "-9999"),
            ("-999.0", "-999"),
            ("999999", "999999"),
            ("1e30", "1e+30"),
            ("-32768", "-32768"),
            ("99999.99", "99999.99"),
            ("-500", "-500"),
        ],
    )
    def test_they_are_said_and_a_word_makes_them_empty(
        self, tmp_path: Path, code: str, number: str
    ) -> None:
        self.put(tmp_path, code)
        assert f"{number} in 'x'" in described(shoal.load(tmp_path))
        text = described(shoal.load(tmp_path))
        assert f"missing = [{number}]" in text
        (tmp_path / "shoal.toml").write_text(f"missing = [{number}]\n")
        fleet = shoal.load(tmp_path)
        assert "far from all others" not in described(fleet)
        assert all(abs(w.train_x).max() < 10 for w in fleet.devices.values())

    def test_a_code_near_raw_values_is_said(self, tmp_path: Path) -> None:
        self.put(tmp_path, "-999", scale=100, begin=500)
        assert "-999 in 'x'" in described(shoal.load(tmp_path))

    @pytest.mark.parametrize(("code", "scale"), [("0", 1), ("-5", 1), ("999", 300), ("12.5", 2)])
    def test_values_among_others_are_not(self, tmp_path: Path, code: str, scale: float) -> None:
        self.put(tmp_path, code, scale)
        assert "far from all others" not in described(shoal.load(tmp_path))

    def test_another_code_keeps_the_first(self, tmp_path: Path) -> None:
        self.put(tmp_path, "-9999")
        path = tmp_path / "a" / "r.csv"
        path.write_text(path.read_text().replace("-9999", "-8888", 5))
        (tmp_path / "shoal.toml").write_text("missing = [-9999]\n")
        assert "missing = [-9999, -8888]" in described(shoal.load(tmp_path))

    def test_a_number_that_no_cell_is_is_an_error(self, tmp_path: Path) -> None:
        self.put(tmp_path, "-9999")
        (tmp_path / "shoal.toml").write_text("missing = [-9998]\n")
        with pytest.raises(ShoalError, match=r"line 1, missing: no cell is the number '-9998'"):
            shoal.load(tmp_path)

    @pytest.mark.parametrize("cell", ["1e300", "inf"])
    def test_a_number_that_is_too_large_has_a_way_out(self, tmp_path: Path, cell: str) -> None:
        self.put(tmp_path, cell)
        assert suggested(tmp_path).startswith("missing = [")
        assert shoal.load(tmp_path).window.channels == ("x", "y")

    def test_it_is_no_label_either(self, tmp_path: Path) -> None:
        lines = [*rows("1"), *rows("-999", begin=COUNT), *rows("2", begin=2 * COUNT)]
        put(tmp_path / "a" / "r.csv", [HEADER, *lines])
        (tmp_path / "shoal.toml").write_text("missing = [-999]\n")
        assert shoal.load(tmp_path).classes == ("1", "2")


class TestMachines:
    """Tables without header of several machines, one after another."""

    @pytest.mark.parametrize("cycles", [150, 200, 300])
    @pytest.mark.parametrize("separator", [" ", ","])
    def test_the_number_of_a_machine_is_a_person(
        self, tmp_path: Path, cycles: int, separator: str
    ) -> None:
        lines = [
            separator.join([str(unit), str(i + 1), *cells])
            for unit in range(1, 4)
            for i, cells in enumerate(values(cycles, 5))
        ]
        put(tmp_path / "train_FD001.txt", lines)
        assert suggested(tmp_path) == 'names = ["person", "t", "c1..c5"]'
        assert list(shoal.load(tmp_path, length=64).devices) == ["1", "2", "3"]

    def test_a_class_at_which_the_time_goes_on_is_the_label(self, tmp_path: Path) -> None:
        lines = [f"{1 + i // 300} {i + 1} {' '.join(c)}" for i, c in enumerate(values(900, 5))]
        put(tmp_path / "r.txt", lines)
        assert suggested(tmp_path) == 'names = ["label", "t", "c1..c5"]'

    @pytest.mark.parametrize("flags", ["1 1 0 0", "0 1 0 1", "1 0 1 1"])
    def test_columns_of_0_and_1_are_not_offered_as_the_label(
        self, tmp_path: Path, flags: str
    ) -> None:
        put(
            tmp_path / "r.txt",
            [f"{i / 50} {flags} {' '.join(c)}" for i, c in enumerate(values(600, 2))],
        )
        assert suggested(tmp_path) == 'names = ["t", "c1..c6"]'


class TestMeters:
    @pytest.mark.parametrize(
        "lines",
        [
            ["1 mains", "2 mains", "3 oven"],
            ["0 acc_x", "1 acc_y"],
            ["1,left hand", "2,right hand"],
            ["1\tkettle\tkitchen", "2\tlamp\thall"],
            ["oven,kitchen", "lamp,hall"],
        ],
    )
    def test_a_list_of_names_is_no_recording(self, tmp_path: Path, lines: list[str]) -> None:
        for house in ("house_1", "house_2"):
            meter = [f"{1303132929 + i} {c[0]}" for i, c in enumerate(values(COUNT, 1))]
            put(tmp_path / house / "power.dat", meter)
            put(tmp_path / house / "labels.dat", lines)
        (tmp_path / "shoal.toml").write_text('names = ["t", "power"]\n')
        fleet = shoal.load(tmp_path)
        assert fleet.window.channels == ("power",)
        assert "files beside the recordings are not read: labels.dat" in described(fleet)

    @pytest.mark.parametrize("begin", [0, 60, 250])
    def test_recordings_of_the_same_time_are_said(self, tmp_path: Path, begin: int) -> None:
        for number in (1, 2):
            meter = [
                f"{1303132929 + begin * (number - 1) + i} {float(c[0]) * number}"
                for i, c in enumerate(values(COUNT, 1))
            ]
            put(tmp_path / "house" / f"channel_{number}.dat", meter)
        (tmp_path / "shoal.toml").write_text('names = ["t", "power"]\n')
        text = described(shoal.load(tmp_path))
        assert "channel_1 and channel_2 are of the same time, and have the same channels" in text

    def test_recordings_one_after_another_are_not(self, tmp_path: Path) -> None:
        for number in (1, 2):
            begin = 1303132929 + 700 * number
            meter = [f"{begin + i} {float(c[0]) * number}" for i, c in enumerate(values(COUNT, 1))]
            put(tmp_path / "house" / f"channel_{number}.dat", meter)
        (tmp_path / "shoal.toml").write_text('names = ["t", "power"]\n')
        assert "of the same time" not in described(shoal.load(tmp_path))


class TestTimes:
    def put(self, folder: Path, name: str, times: list[str]) -> None:
        cells = zip(times, values(len(times), 2), strict=True)
        put(
            folder / "a" / "r.csv",
            [f"{name},x,y,label", *(f"{t},{x},{y},a" for t, (x, y) in cells)],
        )

    @pytest.mark.parametrize(
        ("name", "unit_s"),
        [
            ("minutes", 60),
            ("hours", 3600),
            ("Days", 86_400),
            ("elapsed_minutes", 60),
            ("minutes_elapsed", 60),
            ("hours since start", 3600),
            ("Minuten", 60),
            ("milliseconds", 1e-3),
            ("elapsedSeconds", 1),
        ],
    )
    def test_a_unit_is_the_name_of_a_time(self, tmp_path: Path, name: str, unit_s: float) -> None:
        self.put(tmp_path, name, [f"{i / 50 / unit_s:.10f}" for i in range(COUNT)])
        fleet = shoal.load(tmp_path)
        assert fleet.window.channels == ("x", "y")
        assert fleet.window.rate_hz == pytest.approx(50, rel=0.01)

    def test_a_channel_called_by_a_unit_has_a_way_out(self, tmp_path: Path) -> None:
        self.put(tmp_path, "minutes", [f"{i * 7 % 11}" for i in range(2 * COUNT)])
        with pytest.raises(ShoalError, match=r'columns\."minutes" = "channel"'):
            shoal.load(tmp_path)

    @pytest.mark.parametrize("begin", [0, 1770, 3590, 7000])
    @pytest.mark.parametrize("digits", [1, 2, 3])
    def test_minutes_and_seconds_with_fractions(
        self, tmp_path: Path, begin: int, digits: int
    ) -> None:
        at = [begin + i // (50 // 10) / 10 if digits == 1 else begin + i / 50 for i in range(COUNT)]
        width = 3 + digits
        self.put(
            tmp_path, "Time", [f"{int(s) // 60 % 60:02}:{s % 60:0{width}.{digits}f}" for s in at]
        )
        fleet = shoal.load(tmp_path)
        assert fleet.window.rate_hz == pytest.approx(50, rel=0.02)
        assert fleet.reading is not None
        assert not any(fleet.reading.gaps.values())

    @pytest.mark.parametrize(("unit", "rate"), [("min", 1), ("h", 1 / 60)])
    def test_two_numbers_need_a_unit(self, tmp_path: Path, unit: str, rate: float) -> None:
        self.put(tmp_path, "time", [f"{i // 60}:{i % 60:02}" for i in range(COUNT)])
        assert suggested(tmp_path) == 'time_unit = "min"'
        (tmp_path / "shoal.toml").write_text(f'time_unit = "{unit}"\n')
        assert shoal.load(tmp_path).window.rate_hz == pytest.approx(rate, rel=0.01)

    @pytest.mark.parametrize(
        "clock", ["%H:%M:%S.%f", "%H:%M:%S,%f", "%I:%M:%S.%f %p", "%H:%M:%S:%f", "%H:%M:%S"]
    )
    def test_times_of_day_go_on_after_midnight(self, tmp_path: Path, clock: str) -> None:
        begin = np.datetime64("2026-01-31T23:59:54", "us")
        every = 20_000 if "%f" in clock else 1_000_000
        moments = [(begin + i * every).astype(object) for i in range(COUNT)]
        times = [f'"{moment.strftime(clock)}"' for moment in moments]
        self.put(tmp_path, "time", times)
        fleet = shoal.load(tmp_path)
        assert fleet.window.rate_hz == pytest.approx(1e6 / every, rel=0.01)
        assert fleet.reading is not None
        assert not any(fleet.reading.gaps.values())

    @pytest.mark.parametrize(
        ("cells", "channels"),
        [
            ("{0},{1},{2}", ("c1", "c2", "c3")),
            ("{0} {1}", ("c1", "c2")),
            ("{0}\t{1}", ("c1", "c2")),
            ("{0};{1}", ("c1", "c2")),
            ("{0}", ("c1",)),
        ],
    )
    def test_the_serial_monitor_of_arduino(
        self, tmp_path: Path, cells: str, channels: tuple[str, ...]
    ) -> None:
        begin = np.datetime64("2026-01-31T23:59:54", "ms")
        lines = [
            f"{(begin + 20 * i).astype(object):%H:%M:%S.%f}"[:-3] + f" -> {cells.format(*c)}"
            for i, c in enumerate(values(COUNT, 3))
        ]
        put(tmp_path / "walk.log", lines)
        fleet = shoal.load(tmp_path)
        assert (fleet.window.channels, fleet.window.rate_hz) == (channels, 50)

    def test_a_header_of_the_serial_monitor_has_names(self, tmp_path: Path) -> None:
        lines = [f"12:00:{i / 50:06.3f} -> {','.join(c)}" for i, c in enumerate(values(COUNT, 2))]
        put(tmp_path / "walk.log", ["12:00:00.000 -> ax,ay", *lines])
        assert shoal.load(tmp_path).window.channels == ("ax", "ay")


class TestRowsOfSensors:
    @pytest.mark.parametrize("name", ["sensor", "type", "Variable", "signal", "k"])
    def test_numbers_of_sensors_are_refused(self, tmp_path: Path, name: str) -> None:
        lines = [
            f"{i // 3 / 50},{1 + i % 3},{c[0]},walk" for i, c in enumerate(values(3 * COUNT, 1))
        ]
        put(tmp_path / "a" / "r.csv", [f"t,{name},value,label", *lines])
        assert suggested(tmp_path) == f'columns."{name}" = "left out"'

    @pytest.mark.parametrize("codes", ["1,4", "10,20", "0,1"])
    def test_those_at_other_times_are_refused_by_their_name(
        self, tmp_path: Path, codes: str
    ) -> None:
        lines = [
            f"{i / 100},{codes.split(',')[i % 2]},{c[0]},walk"
            for i, c in enumerate(values(COUNT, 1))
        ]
        put(tmp_path / "a" / "r.csv", ["t,type,value,label", *lines])
        assert suggested(tmp_path) == 'columns."type" = "left out"'

    @pytest.mark.parametrize("name", ["which", "axis", "quantity"])
    def test_names_of_sensors_in_any_column_are_refused(self, tmp_path: Path, name: str) -> None:
        lines = [
            f"{i // 3 / 50},{'xyz'[i % 3]},{c[0]},walk" for i, c in enumerate(values(3 * COUNT, 1))
        ]
        put(tmp_path / "a" / "r.csv", [f"t,{name},value,label", *lines])
        assert suggested(tmp_path) == f'columns."{name}" = "left out"'

    @pytest.mark.parametrize(("column", "cells"), [("age", "34 57"), ("gender", "m f")])
    def test_what_is_of_persons_in_turn_is_no_sensor(
        self, tmp_path: Path, column: str, cells: str
    ) -> None:
        lines = [
            f"{i // 2 / 50},{'ab'[i % 2]},{cells.split()[i % 2]},{c[0]},walk"
            for i, c in enumerate(values(2 * COUNT, 1))
        ]
        put(tmp_path / "r.csv", [f"t,person,{column},x,label", *lines])
        assert list(shoal.load(tmp_path).devices) == ["a", "b"]

    @pytest.mark.parametrize("period", [1, 2, 50])
    def test_small_whole_numbers_at_rounded_times_are_measured(
        self, tmp_path: Path, period: int
    ) -> None:
        lines = [
            f"{i // 50},{x},{int(9 * abs(float(y))) % 3},walk"
            for i, (x, y) in enumerate(values(COUNT, 2))
        ]
        put(tmp_path / "a" / "r.csv", ["t,x,quality,label", *lines[::period]])
        assert shoal.load(tmp_path, length=8).window.channels == ("x", "quality")


class TestColumnsOfClasses:
    def put(self, folder: Path, names: str, one: str = "1", zero: str = "0") -> None:
        count = names.count(",") + 1
        flags = [[one if k == i else zero for k in range(count)] for i in range(count)]
        lines = [
            f"{i / 50},{','.join([*cells, *flags[i // 400 % count]])}"
            for i, cells in enumerate(values(2400, 2))
        ]
        put(folder / "a" / "r.csv", [f"t,x,y,{names}", *lines])

    @pytest.mark.parametrize(
        ("names", "one", "zero"),
        [
            ("walking,sitting,standing", "1", "0"),
            ("bearing_ok,imbalance", "1", "0"),
            ("a,b,c,d", "1.0", "0.0"),
            ("is_ok,is_worn,is_broken", "True", "False"),
            ("gehen,sitzen,liegen", "1", ""),
            ("up,down", "true", "false"),
        ],
    )
    def test_they_are_asked_and_read_as_the_label(
        self, tmp_path: Path, names: str, one: str, zero: str
    ) -> None:
        self.put(tmp_path, names, one, zero)
        text = described(shoal.load(tmp_path))
        each = names.split(",")
        line = role_line(LABEL, *each)
        assert line in text
        (tmp_path / "shoal.toml").write_text(line + "\n")
        fleet = shoal.load(tmp_path)
        assert (fleet.window.channels, fleet.classes) == (("x", "y"), tuple(sorted(each)))
        assert "(task classification)" in described(fleet)

    def test_a_switch_beside_them_is_none(self, tmp_path: Path) -> None:
        lines = [
            f"{i / 50},{x},{y},{i // 30 % 2},{1 - i // 300},{i // 300}"
            for i, (x, y) in enumerate(values(COUNT, 2))
        ]
        put(tmp_path / "a" / "r.csv", ["t,x,y,switch,walking,sitting", *lines])
        assert "of the columns 'walking' and 'sitting' one says 1" in described(
            shoal.load(tmp_path)
        )

    @pytest.mark.parametrize("cells", ["{0},{0}", "{0},0", "{1},{0}"])
    def test_other_columns_of_0_and_1_are_not(self, tmp_path: Path, cells: str) -> None:
        lines = [
            f"{i / 50},{x},{y},{cells.format(i // 20 % 2, i // 50 % 2)}"
            for i, (x, y) in enumerate(values(COUNT, 2))
        ]
        put(tmp_path / "a" / "r.csv", ["t,x,y,button,led", *lines])
        assert "as columns of classes do" not in described(shoal.load(tmp_path))

    def test_two_that_say_1_in_one_row_are_refused(self, tmp_path: Path) -> None:
        put(tmp_path / "a" / "r.csv", ["t,x,y,up,down", *(f"{r},1" for r in rows("1"))])
        (tmp_path / "shoal.toml").write_text('columns = {"up" = "label", "down" = "label"}\n')
        with pytest.raises(ShoalError, match="or several of which one says 1"):
            shoal.load(tmp_path)


class TestNamesOfClasses:
    """Names of files and folders that say classes which are no activities."""

    CLASSES = "bearing_ok", "imbalance", "cavitation"

    def put(self, folder: Path, name: str, classes: tuple[str, ...] = CLASSES) -> None:
        for i, label in enumerate(classes):
            for k in (1, 2):
                lines = [
                    f"{i + float(r.partition(',')[0]) + 100 * k},{r.partition(',')[2]}"
                    for r in rows()
                ]
                path = folder / name.format(label=label, k=k)
                put(path, ["t,x,y", *(line.rpartition(",")[0] for line in lines)])

    def say(self, folder: Path) -> None:
        """Take the line that a warning shows."""
        text = described(shoal.load(folder)).rpartition("such as ")[2]
        (folder / "shoal.toml").write_text(text.rpartition(", if these words are classes")[0])

    @pytest.mark.parametrize(
        "name",
        [
            "{label}_{k}.csv",
            "M{k}/{label}.csv",
            "run{k}-{label}.csv",
            "M{k}/{label}/acc_1.csv",
            "{label}/{k}.csv",
            "M{k}_{label}_0{k}.csv",
        ],
    )
    def test_they_are_asked(self, tmp_path: Path, name: str) -> None:
        self.put(tmp_path, name)
        self.say(tmp_path)
        assert shoal.load(tmp_path).classes == ("bearing_ok", "cavitation", "imbalance")

    @pytest.mark.parametrize("name", ["M{k}/{label}.csv", "P0{k}/{label}_acc.csv"])
    def test_a_class_in_the_name_of_another_is_one(self, tmp_path: Path, name: str) -> None:
        self.put(tmp_path, name, ("ok", "not_ok", "worn"))
        self.say(tmp_path)
        assert shoal.load(tmp_path).classes == ("not_ok", "ok", "worn")

    @pytest.mark.parametrize("name", ["{label}.csv", "rec_{k}_{label}.csv"])
    def test_numbers_and_single_names_tell_none(self, tmp_path: Path, name: str) -> None:
        self.put(tmp_path, name, ("1", "2"))
        assert "patterns of their names, such as '" in described(shoal.load(tmp_path))
