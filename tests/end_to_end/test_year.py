"""A year of a fleet, with real processes, Mosquitto and TLS: devices enrol, leave, come back, are
banned and forgotten; campaigns are extended, a bundle and an algorithm change, one sends int8 and
one trains at night; a worse release goes back by itself; the service's machine is lost; its
database is migrated."""

import re
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.end_to_end.fleet import find_mosquitto
from tests.end_to_end.year_fleet import YearFleet

TRAINING = ("--local-epochs", 8, "--min-devices", 4, "--grace", 2)
SERVICE = (
    "--run",
    "spring",
    "--rounds",
    3,
    *TRAINING,
    "--release",
    "auto",
    "--rollout-steps",
    "canary,0.3,1",
    "--rollout-patience",
    5,
)


@pytest.fixture
def year(tmp_path: Path) -> Iterator[YearFleet]:
    year = YearFleet(tmp_path, find_mosquitto())
    yield year
    year.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_year_of_a_fleet(year: YearFleet) -> None:
    a_fleet_is_made(year)
    devices_leave_and_return_while_a_campaign_is_extended(year)
    one_is_banned_and_forgotten(year)
    the_bundle_is_upgraded_while_half_are_away(year)
    the_algorithm_changes(year)
    a_worse_canary_goes_back(year)
    the_machine_is_lost(year)
    another_campaign_starts_after_that(year)
    year.agrees(year.devices)
    for device_id, share in year.accuracy().items():
        assert year.predicted(device_id) == share, device_id


def a_fleet_is_made(year: YearFleet) -> None:
    year.export("first", "first")
    year.init(year.bundle("first"))
    year.start_broker()
    year.serve(*SERVICE)
    year.enrol(year.devices)
    year.run("shoal", "devices", "tag", year.served, year.devices[0], "--tags", "canary")
    year.come(year.devices)
    year.rolled_out("spring")
    year.wait_for_use(year.devices, 0)
    year.keeps_accuracy("spring")


def devices_leave_and_return_while_a_campaign_is_extended(year: YearFleet) -> None:
    left, stayed = year.devices[-2:], year.devices[:-2]
    year.stop(*left)
    before = year.last_release
    assert "goes on with rounds 5" in year.campaign("set", "spring", "--rounds", 5)
    rollout = year.rolled_out("spring", after=before)
    assert rollout["steps"][0]["confirmed"] == 1, "the canary by its tag, alone"
    year.wait_for_use(stayed, before)
    year.come(left)
    year.wait_for_use(year.devices, before)
    year.keeps_accuracy("the extension of spring")


def one_is_banned_and_forgotten(year: YearFleet) -> None:
    banned = year.devices[-1]
    year.run("shoal", "devices", "ban", year.served, banned, "--reason", "stolen")
    year.wait(
        lambda: (
            "The broker denies access" in year.log(banned) or "Connection lost" in year.log(banned)
        )
    )
    year.run("shoal", "devices", "forget", year.served, banned, "--yes")
    year.stop(banned)
    year.devices = year.devices[:-1]
    listed = year.run("shoal", "devices", "list", year.served).splitlines()
    assert next(line for line in listed if line.startswith(banned + " ")).split()[1:3] == [
        "banned",
        "never",
    ]
    year.agrees(year.devices)


def the_bundle_is_upgraded_while_half_are_away(year: YearFleet) -> None:
    here, away = year.devices[::2], year.devices[1::2]
    year.stop(*away)
    year.export("larger", "larger", "--bundle-version", 2)
    before = year.last_release
    year.campaign(
        "start",
        "summer",
        "--bundle",
        year.bundle("larger"),
        "--rounds",
        4,
        "--update-encoding",
        "int8",
        *TRAINING,
    )
    year.rolled_out("summer")
    year.wait_for_use(here, before)
    year.keeps_accuracy("summer")
    year.come(away)
    year.wait_for_use(year.devices, before)
    year.keeps_accuracy("the return to summer")
    log = year.log("serve")
    assert re.search("Devices start from the models of release [0-9]+ of campaign spring,", log)
    assert "tensors=6/20: " in log
    assert set(year.versions().values()) == {2}


def the_algorithm_changes(year: YearFleet) -> None:
    before = year.last_release
    nights = ("--window", in_hours(6))
    year.campaign(
        "start",
        "autumn",
        "--bundle",
        year.bundle("larger"),
        "--algorithm",
        "personal+none+median",
        "--rounds",
        2,
        *nights,
        *TRAINING,
    )
    assert year.asks_nobody("autumn", for_s=3.0)
    year.campaign("set", "autumn", "--window", in_hours(-1))
    year.rolled_out("autumn")
    year.wait_for_use(year.devices, before)
    year.keeps_accuracy("autumn")
    before = year.last_release
    year.campaign("set", "autumn", "--rounds", 4)
    year.rolled_out("autumn", after=before)
    year.wait_for_use(year.devices, before)
    year.keeps_accuracy("the extension of autumn")


def in_hours(from_now: int) -> str:
    """Three hours of the day, from so many hours from now on."""
    began = datetime.now(UTC) + timedelta(hours=from_now)
    return f"{began:%H}:00-{began + timedelta(hours=3):%H}:00"


def a_worse_canary_goes_back(year: YearFleet) -> None:
    models = {device_id: model for device_id, (_, model) in year.in_use(year.devices).items()}
    worse = (
        "--rounds",
        1,
        "--lr",
        1e-7,
        "--start-from",
        "initial",
        "--algorithm",
        "personal+none",
        *TRAINING,
    )
    year.campaign("start", "worse", "--bundle", year.bundle("larger"), *worse)
    year.wait(lambda: year.rollout("worse").get("phase") == "failed")
    assert "accuracy fell by" in year.rollout("worse")["reason"]
    year.wait(
        lambda: (
            {device_id: model for device_id, (_, model) in year.in_use(year.devices).items()}
            == models
        )
    )
    year.keeps_accuracy("the worse release")


def the_machine_is_lost(year: YearFleet) -> None:
    year.run("shoal", "backup", year.served, year.folder / "backup")
    before = year.in_use(year.devices)
    year.stop("serve", "broker")
    shutil.rmtree(year.served)
    year.configuration.unlink()
    year.run("shoal", "restore", year.folder / "backup", year.served)
    year.init(year.bundle("first"))
    year.start_broker()
    year.serve(*SERVICE)
    year.wait(
        lambda: (
            sum(device["online"] for device in year.get("/devices")["devices"]) == len(year.devices)
        )
    )
    assert year.in_use(year.devices) == before
    year.agrees(year.devices)
    year.keeps_accuracy("the loss of the machine")


def another_campaign_starts_after_that(year: YearFleet) -> None:
    before = year.last_release
    year.campaign("start", "winter", "--bundle", year.bundle("larger"), "--rounds", 2, *TRAINING)
    year.rolled_out("winter")
    year.wait_for_use(year.devices, before)
    year.keeps_accuracy("winter")
