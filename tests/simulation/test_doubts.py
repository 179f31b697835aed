"""Warnings of commands about usable data with a probable mistake."""

from dataclasses import replace

import numpy as np
import pytest

from simulation.datasets.doubts import doubts
from simulation.datasets.windows import FleetData
from tests.support.fleets import synthetic_fleet
from wire.bundle import Window


def scaled(times: float, num: int = 4) -> FleetData:
    """A fleet of which one channel of the device d1 has other numbers."""
    fleet = synthetic_fleet(num)
    x = fleet.devices["d1"].train_x.copy()
    x[:, 0] *= times
    return replace(fleet, devices={**fleet.devices, "d1": replace(fleet.devices["d1"], train_x=x)})


def test_usual_data_raise_none() -> None:
    assert doubts(synthetic_fleet(4)) == []
    assert doubts(scaled(9.0)) == []


@pytest.mark.parametrize("times", [1000.0, 0.001])
def test_a_device_in_another_unit_is_named_with_its_channel(times: float) -> None:
    (said,) = doubts(scaled(times))
    channel = synthetic_fleet(4).window.channels[0]
    assert f"channel {channel} of device d1 is " in said
    assert said.endswith("Are all devices in the same unit?")


def test_two_devices_cannot_tell_which_of_them_is_wrong() -> None:
    assert doubts(scaled(1000.0, num=2)) == []


def test_a_channel_that_is_always_zero_is_no_unit() -> None:
    assert doubts(scaled(0.0)) == []


def test_ids_have_no_unit() -> None:
    fleet = scaled(1000.0)
    window = Window(fleet.window.channels, fleet.window.length, 1, vocabulary=9)
    ids = {
        d: replace(w, train_x=np.abs(w.train_x).astype(np.int64)) for d, w in fleet.devices.items()
    }
    assert doubts(replace(fleet, window=window, devices=ids)) == []


def test_one_class_is_a_doubt_where_labels_matter() -> None:
    fleet = synthetic_fleet(3)
    same = replace(
        fleet,
        devices={d: replace(w, train_y=np.zeros_like(w.train_y)) for d, w in fleet.devices.items()},
    )
    assert ["nothing to learn" in said for said in doubts(same)] == [True]
    assert doubts(same, of_classes=False) == []
