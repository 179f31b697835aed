"""Devices and their hours from CSV files, and files that are wrong."""

import math
from pathlib import Path

import numpy as np
import pytest

from simulation.timing.availability import stays_until
from simulation.timing.fleet import JobSize, TimedFleet
from simulation.timing.profiles import Profiles, make_profiles, read_profiles
from wire.errors import DataError


class TestTraces:
    DEVICES = (
        "device,examples_per_s,down_bytes_per_s,up_bytes_per_s,dropout,battery_examples,"
        "charge_from_h,charge_hours\n"
        'pixel,120,1e6,5e5,0.1,20000,23,6\n"moto, g",30,2e5,1e5,,,,\npi,9.5,5e6,1e6,0,,,\n'
    )
    INTERVALS = "device,start_s,end_s\npi,0,86400\npixel,3600,7200\npixel,100,900.5\n"

    def write(self, folder: Path, devices: str, intervals: str | None = None) -> str:
        (folder / "d.csv").write_text(devices)
        if intervals is None:
            return f"trace:devices={folder / 'd.csv'}"
        (folder / "i.csv").write_text(intervals)
        return f"trace:devices={folder / 'd.csv'}:intervals={folder / 'i.csv'}"

    def test_devices(self, tmp_path: Path) -> None:
        trace = make_profiles(read_profiles(self.write(tmp_path, self.DEVICES)), 3, 0)
        assert trace.examples_per_s.tolist() == [120.0, 30.0, 9.5]
        assert trace.up_bytes_per_s.tolist() == [5e5, 1e5, 1e6]
        assert trace.latency_s.tolist() == [0.0, 0.0, 0.0]
        assert trace.dropout.tolist() == [0.1, 0.0, 0.0]
        assert trace.battery_examples.tolist() == [20000.0, math.inf, math.inf]
        assert trace.charge_from_s.tolist() == [23 * 3600.0, 0.0, 0.0]
        assert trace.charge_s.tolist() == [6 * 3600.0, 86400.0, 86400.0]
        assert trace.availability.ask(np.arange(3), np.zeros(3)).all()
        assert len(make_profiles(read_profiles(self.write(tmp_path, self.DEVICES)), 2, 0)) == 2

    def test_intervals(self, tmp_path: Path) -> None:
        trace: Profiles = make_profiles(
            read_profiles(self.write(tmp_path, self.DEVICES, self.INTERVALS)), 3, 0
        )
        for at_s, expected in (
            (0, "001"),
            (100, "101"),
            (900.5, "001"),
            (3600, "101"),
            (7200, "001"),
            (86400 + 3700, "101"),
        ):
            assert trace.availability.ask(np.arange(3), np.full(3, float(at_s))).tolist() == [
                c == "1" for c in expected
            ]
        fleet = TimedFleet(trace, JobSize(np.full(3, 60_000), 0, 0), 0)
        until_s = stays_until(
            trace.availability, np.array([0, 2]), np.array([3600.0, 50.0]), np.array([1e4, 1e6])
        )
        assert until_s.tolist() == [7200.0, 1e6]  # the board's intervals touch where they repeat
        assert not fleet.look(np.array([1]), 100.0)[0].any()

    @pytest.mark.parametrize(
        ("devices", "message"),
        [
            (
                "",
                "d.csv, line 1: columns must be device, examples_per_s, down_bytes_per_s, "
                "up_bytes_per_s and optionally latency_s",
            ),
            ("device,speed\n", "line 1: columns must be device, examples_per_s"),
            (
                DEVICES.replace("120", "fast"),
                "line 2: examples_per_s must be a number above 0, got 'fast'",
            ),
            (
                DEVICES.replace("9.5", "0"),
                "line 4: examples_per_s must be a number above 0, got '0'",
            ),
            (
                DEVICES.replace("0.1", "1.5"),
                "line 2: dropout must be a number from 0 to 1, got '1.5'",
            ),
            (DEVICES.replace("120", ""), "line 2: examples_per_s must be a number above 0, got ''"),
            (
                DEVICES.replace("120", "nan"),
                "line 2: examples_per_s must be a number above 0, got 'nan'",
            ),
            (
                DEVICES.replace(",23,6", ",23"),
                "line 2 must have 8 fields, device,examples_per_s",
            ),
            (DEVICES.replace("pi,", "pixel,"), "line 4: device 'pixel' is already in line 2"),
            (DEVICES.replace("pi,", ","), "line 4: the device's name is missing"),
            (
                DEVICES.replace("pi,9.5,5e6,1e6,0,,,\n", ""),
                "d.csv must have at least the fleet's 3 devices, got 2",
            ),
        ],
    )
    def test_bad_devices(self, tmp_path: Path, devices: str, message: str) -> None:
        with pytest.raises(DataError) as error:
            make_profiles(read_profiles(self.write(tmp_path, devices)), 3, 0)
        assert message in str(error.value)

    @pytest.mark.parametrize(
        ("intervals", "message"),
        [
            (
                "device,start_s\n",
                "i.csv, line 1: columns must be device, start_s, end_s, got device, start_s",
            ),
            (INTERVALS + "pi3,0,1\n", "i.csv, line 5: device 'pi3' is not in"),
            (INTERVALS + "pixel,9,9\n", "line 5: end_s must be above start_s, got 9 and 9"),
            (
                INTERVALS + "pixel,800,1000\n",
                "line 5: 800 to 1000 s overlaps with line 4 of the same device, 100 to 900.5 s",
            ),
            (INTERVALS + "pixel,-1,2\n", "line 5: start_s must be a number from 0, got '-1'"),
            ("device,start_s,end_s\n", "i.csv: no device of the fleet is ever available"),
        ],
    )
    def test_bad_intervals(self, tmp_path: Path, intervals: str, message: str) -> None:
        with pytest.raises(DataError) as error:
            make_profiles(read_profiles(self.write(tmp_path, self.DEVICES, intervals)), 3, 0)
        assert message in str(error.value)

    def test_no_such_file_and_no_text(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"gone\.csv cannot be read as CSV"):
            make_profiles(read_profiles(f"trace:devices={tmp_path / 'gone.csv'}"), 1, 0)
        (tmp_path / "d.csv").write_bytes(b"\xff\xfe\x00")
        with pytest.raises(DataError, match=r"d\.csv cannot be read as CSV"):
            make_profiles(read_profiles(f"trace:devices={tmp_path / 'd.csv'}"), 1, 0)
