"""Exports of loggers and programs: diaries, several lines of header, headers that come again."""

import gzip
import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest

import shoal
from simulation.datasets.description import described
from tests.support.layouts import COUNT, put, suggested, values
from wire.errors import DataError

BEGIN = datetime(2026, 4, 13, 0, 3)


class TestDiaries:
    """Files of intervals with a label beside a recording."""

    def test_intervals_that_touch(self, tmp_path: Path) -> None:
        def at(i: int) -> str:
            return f"{BEGIN + timedelta(minutes=15 * i):%d-%m-%Y %H:%M}"

        for person in ("ann", "bob"):
            samples = [f"{at(i)},{x}" for i, (x,) in enumerate(values(COUNT, 1))]
            put(tmp_path / person / "glucose.csv", ["time,mmol", *samples])
            diary = [f"{at(200 * i)};{at(200 * i + 200)};{('fast', 'fed')[i % 2]}" for i in (0, 1)]
            put(tmp_path / person / "diary.csv", ["begin;end;activity", *diary])
        fleet = shoal.load(tmp_path)
        assert fleet.classes == ("fast", "fed")
        assert "repeat" not in described(fleet)


class TestHeaders:
    """Headers of several lines, and headers that come again."""

    def test_kinds_of_values_below_the_units(self, tmp_path: Path) -> None:
        header = [
            '"TOA5","Station","CR1000","1234","CR1000.Std.32"',
            '"TIMESTAMP","RECORD","AirTC_Avg","RH","label"',
            '"TS","RN","Deg C","%",""',
            '"","","Avg","Smp","Smp"',
        ]
        samples = [
            f'"{BEGIN + timedelta(minutes=10 * i)}",{i},{",".join(cells)},"{"ab"[i // 300]}"'
            for i, cells in enumerate(values(COUNT, 2))
        ]
        put(tmp_path / "s" / "Station_Table1.dat", [*header, *samples])
        fleet = shoal.load(tmp_path)
        assert fleet.window.channels == ("AirTC_Avg (Deg C)", "RH (%)")
        assert fleet.classes == ("a", "b")

    def test_two_lines_of_names_in_a_text(self, tmp_path: Path) -> None:
        samples = [
            "\t".join([at.strftime("%m/%d/%y\t%I:%M%p").lower()[:-1], *cells, "W" if i else "---"])
            for i, cells in enumerate(values(COUNT, 2))
            for at in [BEGIN + timedelta(minutes=5 * i)]
        ]
        header = ["\t\tTemp\tOut\tWind", "Date\tTime\tOut\tHum\tDir"]
        put(tmp_path / "s" / "download.txt", [*header, *samples])
        fleet = shoal.load(tmp_path)
        assert (fleet.window.channels, fleet.window.rate_hz) == (("Out", "Hum"), 0.00333)

    def test_a_header_that_comes_again(self, tmp_path: Path) -> None:
        header = "Device Time, GPS Speed (m/s), Engine RPM(rpm)"
        samples = [
            f"{BEGIN + timedelta(seconds=i)},{','.join(c)}" for i, c in enumerate(values(COUNT, 2))
        ]
        put(tmp_path / "s" / "trackLog.csv", [header, *samples[:300], header, *samples[300:]])
        with pytest.raises(DataError, match=r"line 302, column Device Time.*header comes again"):
            shoal.load(tmp_path)

    def test_dates_with_the_day_first_and_no_header(self, tmp_path: Path) -> None:
        samples = [
            f"{BEGIN + timedelta(seconds=i):%d/%m/%Y %H:%M:%S};{i % 7};{i * i % 11}"
            for i in range(COUNT)
        ]
        put(tmp_path / "plug" / "dev_B7E6FA.csv", samples)
        fleet = shoal.load(tmp_path)
        assert (fleet.window.channels, fleet.window.rate_hz) == (("c1", "c2"), 1)

    def test_lines_about_the_program_with_as_many_cells_as_the_rows(self, tmp_path: Path) -> None:
        about = ["LabVIEW Measurement\t", "Writer_Version\t2", "***End_of_Header***\t", "\t"]
        about += ["Channels\t2\t\t", *(f"{word}\t0,1\t0,1\t" for word in ("X0", "Delta_X"))]
        header = [*about, "***End_of_Header***\t\t\t", "X_Value\tAcc\tCurrent\tComment"]
        samples = [
            "\t".join([f"{i / 2000:.6f}", *cells, ""]).replace(".", ",")
            for i, cells in enumerate(values(COUNT, 2))
        ]
        put(tmp_path / "motor" / "healthy.txt", [*header, *samples])
        assert shoal.load(tmp_path).window.channels == ("Acc", "Current")

    def test_lines_about_the_program_without_a_header(self, tmp_path: Path) -> None:
        about = ["Geolife trajectory", "WGS 84", "0,2,255,My Track,0", "0"]
        path = tmp_path / "000" / "2008.csv"
        samples = [f"{','.join(c)},{i}" for i, c in enumerate(values(COUNT, 4))]
        put(path, [*about, *samples])
        with pytest.raises(DataError, match=r"line 3 has 5 cells.*put # before each line"):
            shoal.load(tmp_path)
        put(path, [*(f"# {line}" for line in about), *samples])
        assert suggested(tmp_path) == 'names = ["c1..c4", "t"]'
        assert shoal.load(tmp_path).window.channels == ("c1", "c2", "c3", "c4")


def test_rows_in_bursts_are_said(tmp_path: Path) -> None:
    times = [1.7e9 + i // 4 * 4 / 200 + i % 4 * 1e-4 for i in range(COUNT)]
    rows = [f"{t:.4f},{','.join(c)}" for t, c in zip(times, values(COUNT, 2), strict=True)]
    put(tmp_path / "s" / "raw.csv", ["%Sample Rate = 200 Hz", "Timestamp,a,b", *rows])
    assert "in bursts" in described(shoal.load(tmp_path))
    path = tmp_path / "shoal.toml"
    path.write_text("rate = 200\n")
    fleet = shoal.load(tmp_path)
    assert (fleet.window.rate_hz, "in bursts" in described(fleet)) == (200, False)


class TestBids:
    """BIDS tables without header, each with a JSON file and a file of events."""

    @pytest.mark.parametrize("start_s", [0, -2])
    def test_events_say_the_classes(self, tmp_path: Path, start_s: float) -> None:
        for person in ("sub-01", "sub-02"):
            path = tmp_path / person / "beh" / f"{person}_task-stress_physio.tsv.gz"
            path.parent.mkdir(parents=True)
            lines = ["\t".join(cells) for cells in values(2000, 2)]
            path.write_bytes(gzip.compress("\n".join(lines).encode()))
            facts = {"SamplingFrequency": 50.0, "StartTime": start_s, "Columns": ["ecg", "resp"]}
            path.with_name(f"{person}_task-stress_physio.json").write_text(json.dumps(facts))
            events = [f"{10 * i}\t8.0\t{('rest', 'stress')[i % 2]}" for i in range(4)]
            put(
                path.with_name(f"{person}_task-stress_events.tsv"),
                ["onset\tduration\ttrial_type", *events],
            )
        fleet = shoal.load(tmp_path, length=50, stride=50)
        assert (fleet.window.channels, fleet.window.rate_hz) == (("ecg", "resp"), 50)
        assert fleet.classes == ("rest", "stress")
        for windows in fleet.devices.values():
            assert windows.num_unlabelled >= 4  # between two events, and before the first


@pytest.mark.parametrize(
    ("name", "way"),
    [("2008.plt", "a text with a table, name it"), ("a.txt", "second one a number")],
)
def test_files_of_other_kinds_are_named(tmp_path: Path, name: str, way: str) -> None:
    put(tmp_path / "000" / "Trajectory" / name, ["Geolife", "WGS", "Altitude", "3,4"])
    with pytest.raises(DataError, match=rf"{name} is .*{way}"):
        shoal.load(tmp_path)


def test_names_for_dates_beside_times_of_day(tmp_path: Path) -> None:
    rows = [
        f"{40 + i * 1e-5:.5f},{','.join(c)},{at:%Y-%m-%d},{at:%H:%M:%S}"
        for i, c in enumerate(values(COUNT, 1))
        for at in [BEGIN + timedelta(seconds=5 * i)]
    ]
    put(tmp_path / "000" / "2008.csv", rows)
    assert suggested(tmp_path) == 'names = ["c1", "c2", "date", "t"]'
    assert shoal.load(tmp_path).window.rate_hz == 0.2


def test_columns_with_few_values_are_named(tmp_path: Path) -> None:
    def rows(i: int, cells: list[str]) -> list[str]:
        at = BEGIN + timedelta(minutes=15 * i)
        meal = [f"{at + timedelta(minutes=6):%d-%m-%Y %H:%M},5,,45"] * (i % 50 == 3)
        return [f"{at:%d-%m-%Y %H:%M},0,{cells[0]},", *meal]

    lines = [row for i, cells in enumerate(values(COUNT, 1)) for row in rows(i, cells)]
    for person in ("ann", "bob"):
        put(tmp_path / person / "g.csv", ["Device Timestamp,Kind,Glucose,Carbs", *lines])
    assert suggested(tmp_path) == 'columns."Carbs" = "left out"'
    assert "Glucose" in shoal.load(tmp_path).window.channels


def test_serial_numbers_in_the_names_of_columns(tmp_path: Path) -> None:
    for number in (1, 2):
        lines = [f"{i},{i / 10},{','.join(c)}" for i, c in enumerate(values(COUNT, 2))]
        header = f'#,t,"Temp, °C (S/N: {number})","RH, % (S/N: {number})"'
        put(tmp_path / f"barn{number}" / "r.csv", [f'"Plot Title: {number}"', header, *lines])
    suggested(tmp_path)
    fleet = shoal.load(tmp_path)
    assert fleet.window.channels == ("Temp, °C (S/N: 1)", "RH, % (S/N: 1)")


def test_slower_columns_in_the_first_rows_are_said(tmp_path: Path) -> None:
    for person in ("ann", "bob"):
        rows = [
            f"{i / 1000},{x},{i / 125 if i < 75 else ''},{y if i < 75 else ''}"
            for i, (x, y) in enumerate(values(COUNT, 2))
        ]
        put(tmp_path / person / "curl.csv", ["t,emg (V),X[s],acc (g)", *rows])
    text = described(shoal.load(tmp_path, length=16))
    assert "'X[s]' and 'acc (g)' have no value in the last half of the rows" in text
    words = 'columns = {"X[s]" = "left out", "acc (g)" = "left out"}\n'
    (tmp_path / "shoal.toml").write_text(words)
    assert "last half" not in described(shoal.load(tmp_path))
