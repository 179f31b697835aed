"""The benchmark of groups from secret sums: its table has every fleet, and counts what is right."""

from benchmarks.secret_groups import FLEETS, FleetCase, groups_of, text
from tests.support.fleets import synthetic_fleet


def test_the_table_has_a_row_for_each_fleet_and_counts_what_is_right() -> None:
    run = {"groups": 2, "rounds": 6, "bytes_up": 24_000.0, "cpu_s": 3.0}
    runs = [{**run, "seed": seed, "ari": 0.5 if seed == 90 else 1.0} for seed in (0, 80, 90)]
    rows = [{"seed": 0, "secret": 0.5, "clear": 0.25, "one model": 0.125}]
    fleets = dict.fromkeys(FLEETS, runs)
    shown = text({"machine": "a machine", "fleets": fleets, "accuracies": rows})
    for name in FLEETS:
        assert f"| {name} | 1 of 1 | 1 of 2 | 2: 3 | 6 | 24.0 KB | 3.0 s |" in shown
    assert "| secret, groups from sums | 50.0 | 50.0 |" in shown


def test_a_fleet_is_run_until_its_groups_are_known() -> None:
    result = groups_of(FleetCase("synthetic", (0,)), synthetic_fleet(20, shift=1.0), 0)
    assert (result["groups"], result["ari"], result["rounds"]) == (2, 1.0, 6)
    assert result["bytes_up"] > 10_000
