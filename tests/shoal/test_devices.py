"""`shoal devices`, on the folder of a service; tests/end_to_end/test_devices.py has a whole one."""

import json
import re
import shlex
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from aggregator.enrolment.order_handlers import DeviceOrders
from aggregator.fleet import events as e
from aggregator.fleet.reconcile import Turn
from aggregator.fleet.records import Assignment, Fleet
from aggregator.fleet.step import take_in
from aggregator.leadership.identity import lock_service
from aggregator.operator import device_orders
from aggregator.operator.desk import Desk
from aggregator.service.telemetry import Telemetry
from aggregator.storage.engine import sqlite_url
from aggregator.storage.fleet_store import FleetStore
from aggregator.storage.telemetry_table import TelemetryTable
from shoal.cli import application
from tests.aggregator.http_service import taking_orders
from tests.support.operator import COMMANDS
from wire.errors import ConfigError
from wire.messages import CheckIn, InUse, Metrics, Policy, Update

WRITTEN = [command for command in COMMANDS if command.startswith("shoal devices")]


NOW_S = 1_800_000_000.0


class Service:
    """A service without campaigns, as far as orders on devices know it."""

    def __init__(self, folder: Path) -> None:
        url = sqlite_url(folder / "shoal.db")
        self.now_s, self.store = NOW_S, FleetStore(url)
        self.telemetry = Telemetry(TelemetryTable(url), lambda: NOW_S)
        self.fleet = self.store.load()

    def order(self, *events: e.Event) -> None:
        turn = Turn(self.fleet)
        for event in events:
            take_in(turn, event)
        self.store.commit(self.fleet, turn.fleet(), turn.changed, events)
        self.fleet = turn.fleet()

    def check_in(self, device_id: str, **facts: Any) -> None:
        said = CheckIn(device_id, 160, 40, **facts)
        self.order(e.CheckedIn(at_s=NOW_S, device_id=device_id, facts=said))

    def forget(self, device_id: str) -> None:
        self.order(e.Forgotten(at_s=NOW_S, device_id=device_id))
        self.telemetry.forget(device_id)

    def close(self) -> None:
        self.telemetry.save()
        self.telemetry.close()
        self.store.close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "served"
    folder.mkdir(parents=True)
    trained = Metrics(160, 80.0, 90)
    update = Update("r", 1, 1, 0, "pi-1", "0" * 64, 160, 5, Metrics(), trained, 1000, 2.0)
    work = Assignment(1, "train", "autumn", 1, "0", "0" * 64, (), NOW_S)
    with closing(Service(folder)) as service:
        service.check_in("pi-1", client="shoal 0.1.0", battery_percent=71.0)
        service.telemetry.on_update(update, service.fleet.devices["pi-1"], work, 500)
        service.order(*device_orders.tag(Fleet(), ["pi-2"], ["nights", "berlin"], NOW_S))
    return folder


@pytest.fixture
def service(folder: Path) -> Iterator[None]:
    """A service that takes orders on devices."""
    url = sqlite_url(folder / "shoal.db")
    with closing(Service(folder)) as service:
        runner: Any = service
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
        "offline",
        "never",
        "-",
        "-",
        "-",
        "-",
        "0",
        "-",
        "berlin,",
        "nights",
    ]
    assert "facts battery percent       71.0" in told["show"]
    assert told["profile"] == (
        "runs/fleet.csv: the speeds of 1 device\ntransfer speed not known, the usual one is "
        "written: pi-1\n"
    )
    assert Path("runs/fleet.csv").read_text().splitlines()[1:] == ["pi-1,80,1e+06,1e+06,0"]
    assert told["tag"] == "2 devices tagged nights, berlin\n"
    assert told["untag"] == "2 devices without nights\n"
    assert "pi-1 is forgotten; it stays in models" in told["forget"]
    left = json.loads(shoal(capsys, "list", str(folder), "--json"))
    assert [(device["id"], device["tags"]) for device in left] == [("pi-2", ["berlin"])]
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
    with closing(Service(folder)) as service:
        service.check_in("pi-1", policy=Policy(unreported=("choose",)))
        service.check_in("pi-3")
        in_use = InUse("pi-3", 1, 1, alone="what is kept is of another model")
        service.order(e.UsesRelease(at_s=NOW_S, device_id="pi-3", in_use=in_use))
    lines = {line.split()[0]: line for line in shoal(capsys, "list", str(folder)).splitlines()}
    assert "  not reported" in lines["pi-1"]
    assert "  not in use" in lines["pi-3"]


def test_a_list_is_for_people_and_for_programs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shoal(capsys, "list", str(folder)).splitlines()
    assert lines[1].split() == [
        "pi-1",
        "offline",
        "2027-01-15",
        "08:00",
        "0.1.0",
        "71",
        "%",
        "160",
        "-",
        "0",
        "-",
    ]
    assert len(lines[0]) <= 100
    (device,) = json.loads(shoal(capsys, "list", str(folder), "--json", "--where", "battery > 70"))
    assert device["facts"]["num_train"] == 160
    assert device["training"]["examples"] == 160
    shown = json.loads(shoal(capsys, "show", str(folder), "pi-2", "--json"))
    assert shown["tags"] == ["berlin", "nights"]


def test_a_device_is_shown_with_all_that_is_known_of_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *others = shoal(capsys, "show", str(folder), "pi-1").splitlines()
    lines = dict(re.split(" {2,}", line.strip(), maxsplit=1) for line in others)
    assert first == "device pi-1: offline"
    assert lines["first seen"] == "2027-01-15 08:00 UTC"
    assert lines["facts battery percent"] == "71.0"
    assert lines["training examples"] == "160"
    assert lines["training train"] == "2.0 s"
    assert lines["training bytes up"] == "500 B"
    assert not {"pool", "marks", "wake", "tags"} & lines.keys()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("show", "FOLDER", "pi-9"), "No device 'pi-9' in"),
        (("list", "nowhere"), "No shoal.db in folder nowhere"),
        (
            ("list", "FOLDER", "--where", "battery >"),
            "at character 10: end of the rule: expected a value",
        ),
        (("tag", "FOLDER", "--tags", "a"), r"either by their ids or by a rule \(where\)"),
        (
            ("tag", "FOLDER", "pi-1", "--where", "online", "--tags", "a"),
            r"either by their ids or by a rule \(where\)",
        ),
        (("tag", "FOLDER", "--where", "banned", "--tags", "a"), "no device matches it"),
        (("tag", "FOLDER", "pi/1", "--tags", "a"), "device id 'pi/1': expected"),
        (("tag", "FOLDER", "pi-1", "--tags", "a b"), "tag 'a b': expected"),
        (
            ("tag", "FOLDER", "pi-1", "--tags", ",".join(f"t{i}" for i in range(99))),
            "at most 64 are allowed",
        ),
        (
            ("tag", "FOLDER", "pi-1", "--tags", " , "),
            "--tags must have at least one tag, got ' , '",
        ),
        (("unban", "FOLDER", "pi-1"), "Device pi-1 is not banned."),
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
