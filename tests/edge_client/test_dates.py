"""Dates as spreadsheets and loggers write them: in other orders, and apart from the time of day."""

from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import shoal
from edge_client.data.tables.clock import days_first, read_times, with_dates
from simulation.datasets.description import described
from simulation.datasets.doubts import doubts
from tests.support.layouts import put, values
from wire.errors import DataError

BEGIN = datetime(2026, 1, 31, 23, 59, 50)
SINCE_1970 = (BEGIN - datetime(1970, 1, 1)).total_seconds()


def clock(at: datetime) -> str:
    return f"{at:%H:%M:%S}.{at.microsecond // 1000:03d}"


@pytest.mark.parametrize(
    ("header", "date", "time"),
    [
        ("date,time", "%Y-%m-%d", ""),
        ("Datum,Uhrzeit", "%d.%m.%Y", ""),
        ("Time,Date", "%m/%d/%Y", "%I:%M:%S.%f %p"),
        ("fecha,hora", "%d/%m/%y", ""),
        ("date,time", "%Y-%m-%d 00:00:00", ""),
        ("time,jour", "%d-%m-%Y", "%H:%M:%S,%f"),
    ],
)
def test_a_date_beside_a_time_of_day_is_of_it(
    tmp_path: Path, header: str, date: str, time: str
) -> None:
    lines = []
    for day in (0, 1):
        for i, (x,) in enumerate(values(400, 1)):
            at = BEGIN + timedelta(days=day, seconds=i / 20)
            cells = {"d": f"{at:{date}}", "t": f"{at:{time}}" if time else clock(at)}
            order = "td" if header.lower().startswith("time") else "dt"
            lines.append(";".join([*(cells[c] for c in order), x, "sit"]))
    put(tmp_path / "a.csv", [f"{header.replace(',', ';')};x;label", *lines])
    fleet = shoal.load(tmp_path, length=100, stride=100)
    assert (fleet.window.channels, fleet.window.rate_hz) == (("x",), 20)
    assert fleet.reading is not None
    assert fleet.reading.gaps == {"a": 1}, "midnight is none"
    assert "the date of the time" in described(fleet)


def test_days_apart_at_the_same_hour_are_a_gap(tmp_path: Path) -> None:
    lines = [
        f"2026-01-{10 + i // 300},12:{i % 300 // 1200 + i // 300 // 9:02d}:{i / 20 % 60:06.3f},{x}"
        for i, (x,) in enumerate(values(900, 1))
    ]
    put(tmp_path / "a.csv", ["date,time,x", *lines])
    fleet = shoal.load(tmp_path, length=100, stride=100)
    assert fleet.reading is not None
    assert fleet.reading.gaps == {"a": 2}, "by the time alone there is none"


def test_two_columns_that_a_user_calls_the_time_are_date_and_time(tmp_path: Path) -> None:
    lines = [f"31.01.2026,{i // 20 // 60:02d}:{i / 20 % 60:06.3f},{x}" for i, (x,) in _rows(300)]
    lines = [line.replace(",", ",12:", 1) for line in lines]
    put(tmp_path / "a.csv", ["Tag,Zählzeit,x", *lines])
    fleet = shoal.load(tmp_path, columns={"Tag": "time", "Zählzeit": "time"})
    assert (fleet.window.channels, fleet.window.rate_hz) == (("x",), 20)


@pytest.mark.parametrize("as_text", [True, False])
def test_a_table_in_memory_has_its_date_beside_its_time(as_text: bool) -> None:
    pandas = pytest.importorskip("pandas", reason="pip install 'shoal[pandas]' would run this")
    at = [BEGIN + timedelta(seconds=i / 20) for i in range(400)]
    days, clocks = [moment.date() for moment in at], [moment.time() for moment in at]
    columns = {"date": days, "time": clocks, "x": np.arange(400) % 7, "who": ["a"] * 400}
    if as_text:
        columns |= {"date": [str(day) for day in days], "time": [clock(moment) for moment in at]}
    fleet = shoal.load(pandas.DataFrame(columns), person="who", length=100)
    assert (fleet.window.channels, fleet.window.rate_hz) == (("x",), 20)
    assert fleet.reading is not None
    assert fleet.reading.gaps == {"a": 0}, "midnight is none"


def _rows(count: int) -> "enumerate[list[str]]":
    return enumerate(values(count, 1))


@pytest.mark.parametrize(
    "cells",
    [
        ("2026-01-31T23:59:50", "2026-02-01T00:00:10"),
        ("31.01.2026 23:59:50", "01.02.2026 00:00:10"),
        ("1/31/2026 11:59:50 PM", "2/1/2026 12:00:10 AM"),
        ("31/01/26 23:59:50", "01/02/26 00:00:10"),
        ("2026/01/31 23:59:50", "2026/02/01 00:00:10"),
        ("31-01-2026, 23:59:50", "01-02-2026, 00:00:10"),
    ],
)
def test_dates_have_the_order_that_their_numbers_allow(cells: tuple[str, str]) -> None:
    seconds, are_dates, wrong = read_times(np.array([*cells, ""]))
    assert (are_dates, wrong) == (True, None)
    np.testing.assert_array_equal(seconds, [SINCE_1970, SINCE_1970 + 20, np.nan])


def test_the_number_that_alone_changes_is_the_day() -> None:
    for cells, first in (("03/04 04/04 05/04", True), ("04/03 04/04 04/05", False)):
        column = np.array([f"{cell}/2026 12:00:00" for cell in cells.split()])
        assert days_first(column) == {"/": first}
        assert np.diff(read_times(column)[0]).tolist() == [86400, 86400]
    assert days_first(np.array(["03/04/2026 12:00:00"])) == {}


def test_the_order_of_dates_is_that_of_all_files(tmp_path: Path) -> None:
    def write(name: str, begin: datetime, count: int) -> None:
        times = [begin + timedelta(seconds=i / 20) for i in range(count)]
        rows = [f"{at:%d/%m/%Y} {clock(at)},{i % 7},sit" for i, at in enumerate(times)]
        put(tmp_path / f"{name}.csv", ["time,x,label", *rows])

    write("a", datetime(2026, 3, 4, 23, 59, 50), 400)
    write("b", datetime(2026, 4, 12, 23), 20 * 3700)  # rows are read in parts of 65,536
    fleet = shoal.load(tmp_path, length=100, stride=100)
    assert fleet.reading is not None
    assert fleet.reading.gaps == {"a": 0, "b": 0}, "midnight is none"


@pytest.mark.parametrize("name", ["when", "dt", "logged"])
@pytest.mark.parametrize("kind", ["text", "parquet", "memory"])
def test_the_only_column_of_dates_is_the_time(tmp_path: Path, name: str, kind: str) -> None:
    at = pd.Timestamp(BEGIN) + pd.to_timedelta(np.arange(800) / 20, unit="s")
    x = np.random.default_rng(0).normal(size=800)
    table = pd.DataFrame({"x": x, name: at, "label": ["sit", "walk"] * 400, "person": "ann"})
    if kind == "text":
        table.to_csv(tmp_path / "a.csv", index=False)
    else:
        table.to_parquet(tmp_path / "a.parquet")
    if kind == "memory":
        fleet = shoal.load(table, person="person", length=1, stride=1)
    else:
        fleet = shoal.load(tmp_path, length=1, stride=1)
    assert (fleet.window.channels, fleet.window.rate_hz) == (("x",), 20)
    assert "its cells are dates" in described(fleet)


def test_the_index_of_pandas_is_the_number_of_a_row_or_the_time(tmp_path: Path) -> None:
    at = pd.Timestamp(BEGIN) + pd.to_timedelta(np.arange(800) / 20, unit="s")
    table = pd.DataFrame({"x": np.random.default_rng(0).normal(size=800), "label": "sit"})
    for name, index, rate in (("counted", pd.Index(np.arange(800)), 0), ("timed", at, 20)):
        (tmp_path / name).mkdir()
        table.set_index(index).to_parquet(tmp_path / name / "a.parquet")
        fleet = shoal.load(tmp_path / name, length=50)
        assert (fleet.window.channels, fleet.window.rate_hz) == (("x",), rate)
        assert not [text for text in doubts(fleet) if "index" in text]


def test_one_of_two_columns_of_dates_is_chosen_by_the_user(tmp_path: Path) -> None:
    at = pd.Timestamp(BEGIN) + pd.to_timedelta(np.arange(800) / 20, unit="s")
    table = pd.DataFrame({"x": np.arange(800) % 9 / 2, "sent": at, "came": at})
    table.to_parquet(tmp_path / "a.parquet")
    assert shoal.load(tmp_path, length=50).window.rate_hz == 0
    assert shoal.load(tmp_path, length=50, columns={"sent": "time"}).window.rate_hz == 20


def test_minutes_need_no_seconds_beside_a_date() -> None:
    seconds, _, wrong = read_times(np.array(["31.01.2026 23:59", "01.02.2026 00:00"]))
    assert wrong is None
    assert seconds[1] - seconds[0] == 60
    assert read_times(np.array(["03:25", "03:26"]))[2] == 0, "minutes and seconds, or hours"


@pytest.mark.parametrize(
    ("dates", "times"),
    [
        (["2026-01-31", "2026-01-31"], ["0.02", "0.04"]),
        (["2026-01-31T12:00:00", ""], ["12:00:00", "12:00:01"]),
        (["", ""], ["12:00:00", "12:00:01"]),
    ],
)
def test_other_columns_are_not_put_together(dates: list[str], times: list[str]) -> None:
    column = np.array(times)
    assert with_dates(column, np.array(dates)) is column


def test_a_day_that_is_none_is_refused_with_its_line(tmp_path: Path) -> None:
    put(tmp_path / "a.csv", ["date,time,x", "30.01.2026,12:00:00,1", "31.02.2026,12:00:01,2"])
    with pytest.raises(DataError, match=r"line 3, column time: '31.02.2026 12:00:01' is no time"):
        shoal.load(tmp_path)
