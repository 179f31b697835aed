"""A year of a fleet, with real processes, Mosquitto and TLS."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.fleet import find_mosquitto
from tests.end_to_end.year_fleet import YearFleet

SETTINGS = ("--run", "spring", "--rounds", 2, "--local-epochs", 6, "--min-devices", 4, "--grace", 2, "--release", "auto")
ROLLOUT = ("--rollout-steps", "0.3,1", "--rollout-patience", 5)


@pytest.fixture
def year(tmp_path: Path) -> Iterator[YearFleet]:
    year = YearFleet(tmp_path, find_mosquitto())
    yield year
    year.close()


@pytest.mark.timeout(900)
def test_a_year_of_a_fleet(year: YearFleet) -> None:
    began = time.monotonic()

    def tell(what: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {what}", flush=True)

    year.export("first", "first")
    tell("exported")
    year.init(year.bundle("first"))
    year.start_broker()
    year.serve(*SETTINGS, *ROLLOUT)
    tell("serves")
    year.enrol(year.devices)
    tell("enrolled")
    year.come(year.devices)
    year.rolled_out("spring")
    tell("rolled out")
    year.wait_for_use(year.devices, 0)
    tell(f"in use {year.in_use(year.devices)}")
    tell(str(year.accuracy(year.devices)))
    print(year.run("shoal", "models", "list", year.served))
