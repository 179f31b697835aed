"""Exports of loggers and programs: diaries, several lines of header, headers that come again."""

from datetime import datetime, timedelta
from pathlib import Path

import shoal
from simulation.datasets.description import described
from tests.support.layouts import COUNT, put, values

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
