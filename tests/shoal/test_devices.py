"""`shoal devices`, on the folder of a service; tests/end_to_end/test_devices.py has a whole one."""

import json
import shlex
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from aggregator.enrolment.order_handlers import DeviceOrders
from aggregator.leadership.identity import lock_service
from aggregator.operator.desk import Desk
from aggregator.service.devices import Devices
from aggregator.storage.engine import sqlite_url
from aggregator.storage.registry_table import RegistryTable
from aggregator.storage.sql_store import SqlStore
from algorithms.personalisation.kept import Kept
from shoal.cli import application
from tests.aggregator.http_service import taking_orders
from tests.support.operator import COMMANDS
from wire.errors import ConfigError
from wire.messages import CheckIn, Metrics, Policy, Update

WRITTEN = [command for command in COMMANDS if command.startswith("shoal devices")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "served"
    folder.mkdir(parents=True)
    url = sqlite_url(folder / "shoal.db")
    SqlStore(url, "run-1").close()
    with closing(RegistryTable(url)) as table:
        devices = Devices(table, lambda: 1_800_000_000.0)
        devices.on_check_in(CheckIn("pi-1", 160, 40, client="shoal 0.1.0", battery_percent=71.0))
        devices.on_update(
            Update(
                "r", 1, 1, 0, "pi-1", "0" * 64, 160, 5, Metrics(), Metrics(160, 80.0, 90), 1000, 2.0
            ),
            500,
        )
        devices.tag(["pi-2"], ["nights", "berlin"])
        devices.on_kept("pi-1", "autumn", 3, Kept("tuned, neighbours 0.5", 12, 0.25))
        devices.save()
    return folder


class Idle:
    """A runner without campaigns, as far as orders on devices know it."""

    def __init__(self, devices: Devices) -> None:
        self.devices, self.campaigns = devices, dict[str, object]()

    def forget(self, device_id: str) -> None:
        pass

    def tell_devices(self) -> None:
        pass


@pytest.fixture
def service(folder: Path) -> Iterator[None]:
    """A service that takes orders on devices."""
    url = sqlite_url(folder / "shoal.db")
    with closing(RegistryTable(url)) as table:
        devices = Devices(table, lambda: 1_800_000_000.0)
        runner: Any = Idle(devices)
        with taking_orders(folder, Desk(folder, DeviceOrders(runner, folder, url).handlers)):
            yield


def shoal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    application("devices")(["devices", *arguments], standalone_mode=False)
    return capsys.readouterr().out


@pytest.mark.full
def test_the_commands_of_the_page_run_as_written(
    folder: Path, service: None, capsys: pytest.CaptureFixture[str]
) -> None:
    told = {command.split()[2]: shoal(capsys, *shlex.split(command)[2:]) for command in WRITTEN}
    assert list(told) == ["list", "show", "profile", "tag", "untag", "ban", "unban", "forget"]
    assert told["list"].splitlines()[1].split() == [
        "pi-2",
        "away",
        "never",
        "-",
        "-",
        "-",
        "0",
        "-",
        "berlin,",
        "nights",
    ]
    assert '"battery_percent":71.0' in told["show"]
    assert told["profile"] == (
        "1 devices: runs/fleet.csv\nbytes a second of 1 are not known, the usual ones stand for "
        "them: pi-1\n"
    )
    assert Path("runs/fleet.csv").read_text().splitlines()[1:] == ["pi-1,80,1e+06,1e+06,0"]
    assert told["tag"] == "2 devices tagged nights, berlin\n"
    assert told["untag"] == "2 devices without nights\n"
    assert "pi-1 is forgotten; it stays in models" in told["forget"]
    left = json.loads(shoal(capsys, "list", str(folder), "--json"))
    assert left == [{"id": "pi-2", "tags": ["berlin"]}]
    noted = [json.loads(line) for line in (folder / "audit.log").read_text().splitlines()]
    assert [json.loads(line["what"])["type"] for line in noted] == [
        "tag-devices",
        "untag-devices",
        "ban-device",
        "unban-device",
        "forget-device",
    ]


def test_to_forget_a_device_that_nobody_knows_says_so(
    folder: Path, service: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "device nope is not known: nothing of it was in the registry" in shoal(
        capsys, "forget", str(folder), "nope", "--yes"
    )


def test_the_list_says_why_nothing_is_kept(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(RegistryTable(sqlite_url(folder / "shoal.db"))) as table:
        devices = Devices(table, lambda: 1_800_000_000.0)
        devices.on_check_in(CheckIn("pi-1", 160, 40, policy=Policy(unreported=("choose",))))
        devices.on_check_in(CheckIn("pi-3", 160, 40))
        devices.change("pi-3", release=1, release_alone="what is kept is of another model")
        devices.save()
    lines = {line.split()[0]: line for line in shoal(capsys, "list", str(folder)).splitlines()}
    assert "  not told  " in lines["pi-1"]
    assert "  alone  " in lines["pi-3"]


def test_a_list_is_for_people_and_for_programs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shoal(capsys, "list", str(folder)).splitlines()
    assert lines[1].split() == [
        "pi-1",
        "away",
        "2027-01-15",
        "08:00",
        "0.1.0",
        "71",
        "%",
        "160",
        "0",
        *["tuned,", "neighbours", "0.5"],
    ]
    (entry,) = json.loads(shoal(capsys, "list", str(folder), "--json", "--where", "battery > 70"))
    assert entry["said"]["num_train"] == 160
    assert json.loads(shoal(capsys, "show", str(folder), "pi-2", "--json"))["tags"] == [
        "berlin",
        "nights",
    ]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("show", "FOLDER", "pi-9"), "device 'pi-9': the registry of .* does not have it"),
        (("list", "nowhere"), "there is no shoal.db"),
        (
            ("list", "FOLDER", "--where", "battery >"),
            "at character 10: the rule ends: expected a value",
        ),
        (("tag", "FOLDER", "--tags", "a"), "either by their ids or with --where"),
        (
            ("tag", "FOLDER", "pi-1", "--where", "online", "--tags", "a"),
            "either by their ids or with --where",
        ),
        (("tag", "FOLDER", "--where", "online", "--tags", "a"), "it means no device"),
        (("tag", "FOLDER", "pi/1", "--tags", "a"), "device id 'pi/1': expected"),
        (("tag", "FOLDER", "pi-1", "--tags", "a b"), "tag 'a b': expected"),
        (
            ("tag", "FOLDER", "pi-1", "--tags", ",".join(f"t{i}" for i in range(99))),
            "more than 64 tags",
        ),
        (("tag", "FOLDER", "pi-1", "--tags", " , "), "there is none in it"),
        (("unban", "FOLDER", "pi-1"), "it is not banned"),
        (("ban", "FOLDER", "../x"), "device id '../x': expected"),
    ],
)
def test_a_mistake_is_one_clear_error(
    folder: Path,
    service: None,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    error: str,
) -> None:
    with pytest.raises(ConfigError, match=error):
        shoal(capsys, *(str(folder) if word == "FOLDER" else word for word in arguments))


def test_reading_does_not_disturb_a_service_that_runs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock_service(folder)
    assert len(shoal(capsys, "list", str(folder)).splitlines()) == 3


def test_without_a_service_there_are_no_orders(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match=r"No service runs in .*Start it with `shoal serve"):
        shoal(capsys, "ban", str(folder), "pi-1")
