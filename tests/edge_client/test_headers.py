"""Headers of tables as programs write them: of several lines, behind other lines, or none."""

from pathlib import Path

import pytest

import shoal
from tests.support.layouts import put, values

ROWS = values(600, 3)


@pytest.mark.parametrize(
    ("head", "separator", "channels"),
    [
        (["sep=;", "x;y;z"], ";", "x y z"),
        (['"sep=,"', "x,y,z"], ",", "x y z"),
        (["SEP=|", "x|y|z"], "|", "x y z"),
        (["sep=\t", "x\ty\tz"], "\t", "x y z"),
        (['"sep=\\t"', "x\ty\tz"], "\t", "x y z"),
        (
            [
                "------------ Data File Created By ActiGraph GT3X+ at 30 Hz -----------",
                "Serial Number: NEO1F18120387",
                "Start Time 16:00:00",
                "Start Date 6/17/2012",
                "Epoch Period (hh:mm:ss) 00:00:00",
                "Download Time 12:23:55",
                "Download Date 6/25/2012",
                "Current Memory Address: 0",
                "Current Battery Voltage: 4.21     Mode = 12",
                "--------------------------------------------------",
                "Accelerometer X,Accelerometer Y,Accelerometer Z",
            ],
            ",",
            "Accelerometer X,Accelerometer Y,Accelerometer Z",
        ),
        (["DeviceTag:,XS-1", "Firmware:,1.0", "AccX,AccY,AccZ"], ",", "AccX AccY AccZ"),
        (["My logger", "", "x;y;z"], ";", "x y z"),
        (["a\tb\tc", "CAL\tCAL\tCAL", "m/(s^2)\tg\tno_units"], "\t", "a (m/s^2),b (g),c"),
        (["sep=\t", "a\tb\tc\t", "g\tg\tuT\t"], "\t", "a (g),b (g),c (uT)"),
        (["Shim,Shim,Shim", "a,b,c", "RAW,RAW,CAL", "g,g,g"], ",", "a (g),b (g),c (g)"),
        (["x,y,z", "g,g,g"], ",", "x (g),y (g),z (g)"),
    ],
)
def test_lines_about_a_table_are_no_rows_of_it(
    tmp_path: Path, head: list[str], separator: str, channels: str
) -> None:
    end = separator if head[-1].endswith("\t") else ""
    put(tmp_path / "a.csv", [*head, *(separator.join(cells) + end for cells in ROWS)])
    fleet = shoal.load(tmp_path)
    expected = channels.split("," if "," in channels else " ")
    assert list(fleet.window.channels) == expected
    assert fleet.devices["a"].unlabelled_x[0, :, 0].tolist() == pytest.approx(
        [float(cell) for cell in ROWS[0]]
    )


@pytest.mark.parametrize("mark", [" ", "T"])
def test_dates_and_measurements_need_no_header(tmp_path: Path, mark: str) -> None:
    rows = [
        f"2014-05-07{mark}16:29:{i / 50:06.3f},{','.join(cells)}" for i, cells in enumerate(ROWS)
    ]
    put(tmp_path / "a.csv", rows)
    fleet = shoal.load(tmp_path)
    assert fleet.window.channels == ("c1", "c2", "c3")
    assert fleet.window.rate_hz == 50
    (tmp_path / "shoal.toml").write_text('names = ["t", "x", "y", "z"]')
    assert shoal.load(tmp_path).window.channels == ("x", "y", "z")


def test_a_log_of_samples_is_a_table_and_another_log_is_none(tmp_path: Path) -> None:
    rows = ["\t".join([*cells, str(i // 300)]) for i, cells in enumerate(ROWS)]
    put(tmp_path / "mHealth_subject1.log", rows)
    put(tmp_path / "program.log", ["started", "ended"])
    (tmp_path / "shoal.toml").write_text('names = ["c1..c3", "label"]\nclasses."0" = ""')
    fleet = shoal.load(tmp_path)
    assert (list(fleet.devices), fleet.classes) == (["mHealth_subject1"], ("1",))
