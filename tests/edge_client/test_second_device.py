"""Two devices of one identity, on a device: starts are counted, and the second device ends."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_client.core.session import Start
from edge_client.main import main
from edge_client.storage.state import START, DeviceState
from simulation.datasets.windows import FleetData
from tests.edge_client.device import Device, finished
from tests.support.bundles import Exported
from wire import messages as m
from wire.codec import decode
from wire.errors import SecondDevice

Make = Callable[..., Device]


@pytest.fixture
def make(fleet: FleetData, exported: Exported, tmp_path: Path) -> Make:
    return lambda **options: Device(fleet, exported, tmp_path / "state", **options)


def check_in(device: Device) -> m.CheckIn:
    """The last check-in of a device, which does now what it can do."""
    device.turn()
    said: m.CheckIn = decode(device.sent("check-in")[-1], m.CheckIn)
    return said


def refusal(instance: int) -> m.Refuse:
    return m.Refuse("d0", "second-device", "", "check-in", instance=instance)


def test_a_check_in_has_the_start_which_is_on_disk_before_and_a_new_start_is_another_one(
    make: Make,
) -> None:
    device = make()
    first = check_in(device)
    stored = json.loads((device.folder / START).read_text())
    assert stored == {"number": 1, "instance": first.instance, "is_refused": False}
    device.say("another boot", epoch=2)
    assert check_in(device) == first, "a reconnection is the same start"
    device.start()
    second = check_in(device)
    assert second.start == 2
    assert second.instance not in (0, first.instance)


def test_the_second_device_ends_says_nothing_more_and_does_not_start_again(make: Make) -> None:
    device = make()
    own = check_in(device)
    device.reply(refusal(own.instance))
    with pytest.raises(SecondDevice, match="another device uses this identity"):
        device.agent.run(lambda: False)
    assert device.sent("status") == [], "the status is that of the other device"
    with pytest.raises(SecondDevice, match=r"delete .*/state/start\.json"):
        device.start()
    (device.folder / START).unlink()
    device.start()
    assert check_in(device).start == 1


def test_the_device_that_the_service_knows_goes_on_when_it_hears_of_the_second_one(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    device = make()
    own = check_in(device)
    device.reply(refusal(own.instance + 1))
    assert finished(device)
    assert "reason=second-device" in caplog.text
    device.start()
    assert check_in(device).start == 2


def test_the_second_device_begins_no_work_once_it_is_refused(make: Make) -> None:
    device = make()
    own = check_in(device)
    device.offer()
    device.reply(refusal(own.instance))
    device.send_plan()
    with pytest.raises(SecondDevice):
        device.agent.run(lambda: False)
    assert device.updates() == []


def test_a_refused_device_does_not_connect_and_ends_with_the_status_that_no_unit_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    DeviceState(tmp_path / "state").refuse(Start(4, 9))
    options = ["--id", "d0", "--fleet", "f", "--broker", "mqtt://127.0.0.1:1", "--insecure"]
    folders = ["--state", str(tmp_path / "state"), "--data", str(tmp_path / "data")]
    monkeypatch.setattr("sys.argv", ["shoal-edge", "run", *options, *folders])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 3
    assert "another device uses this identity" in capsys.readouterr().err
