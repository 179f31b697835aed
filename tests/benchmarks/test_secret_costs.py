"""The benchmark of secret sums: it opens the right sum, and its table has both systems."""

import pytest

from benchmarks.secret_costs import CELLS, SHARES, measure, text


def test_costs_grow_with_parameters_for_a_device_and_with_devices_for_a_helper() -> None:
    small, wide, many = measure(100, 10), measure(10_100, 10), measure(100, 30)
    assert wide["device_up"] - small["device_up"] == pytest.approx(20_000, rel=0.01)
    assert wide["helper_out"] - small["helper_out"] == pytest.approx(40_000, rel=0.01)
    assert wide["helper_in"] == pytest.approx(small["helper_in"], rel=0.01)
    assert many["helper_in"] > 2 * small["helper_in"]
    assert {each["exchanges"] for each in (small, wide, many)} == {1}


def test_the_table_has_a_row_for_each_system_and_size() -> None:
    ours = measure(100, 10)
    theirs = {name: value for name, value in ours.items() if "helper" not in name}
    rows = [
        {
            "parameters": parameters,
            "devices": devices,
            "shoal": ours,
            "flower": {**theirs, "exchanges": 4, "version": "1.42.0"},
        }
        for parameters, devices in CELLS
    ]
    shown = text({"machine": "a machine", "load": 0.0, "rows": rows})
    for parameters, devices in CELLS:
        assert f"| {parameters:,} | {devices} | Shoal | 1 |" in shown
        assert f"| {parameters:,} | {devices} | Flower 1.42.0 | 4 |" in shown
    assert all(f"at {devices} devices" in shown for devices in SHARES)
