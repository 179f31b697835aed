"""Facts of a board, from folders like those of Linux."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edge_client.agent.health import linux_health
from edge_client.core.ports import Health
from wire import messages as m
from wire.codec import decode, encode
from wire.messages import PROTOCOL_VERSION, VERSION

ROOT = Path(__file__).parents[2]


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def health(tmp_path: Path) -> Health:
    return linux_health(tmp_path, tmp_path / "power", tmp_path / "thermal", tmp_path / "model")


def test_a_board_with_a_battery_says_all(tmp_path: Path) -> None:
    write(tmp_path / "power", AC__online="0\n", BAT0__capacity="87\n", BAT0__status="Discharging\n")
    write(
        tmp_path / "thermal",
        thermal_zone0__temp="41500\n",
        thermal_zone1__temp="48250\n",
        thermal_zone2__temp="-274000\n",
    )
    (tmp_path / "model").write_bytes(b"Raspberry Pi 4 Model B Rev 1.4\0")
    found = health(tmp_path)
    assert (found.battery_percent, found.charging, found.temperature_c) == (87.0, False, 48.25)
    assert found.hardware == "Raspberry Pi 4 Model B Rev 1.4"
    assert found.free_bytes is not None
    assert found.free_bytes > 0
    assert isinstance(found.idle, bool)


def test_a_machine_that_has_none_of_it_says_what_it_knows(tmp_path: Path) -> None:
    found = health(tmp_path)
    assert (found.battery_percent, found.charging, found.temperature_c, found.unmetered) == (
        None,
        None,
        None,
        None,
    )
    assert found.hardware


@pytest.mark.parametrize(
    ("online", "status", "charging"),
    [("1", "Discharging", True), ("0", "Charging", True), ("0", "Unknown", False)],
)
def test_it_charges_where_power_comes_from_outside(
    tmp_path: Path, online: str, status: str, charging: bool
) -> None:
    write(tmp_path / "power", AC__online=online, BAT0__status=status)
    assert health(tmp_path).charging is charging


@pytest.mark.parametrize("text", ["", "nan", "9" * 400, "\x00", "full"])
def test_what_makes_no_sense_is_left_out_and_the_check_in_can_be_read(
    tmp_path: Path, text: str
) -> None:
    write(tmp_path / "power", BAT0__capacity=text, BAT1__capacity="50")
    write(tmp_path / "thermal", thermal_zone0__temp=text)
    (tmp_path / "model").write_text("a\nb" + text)
    found = linux_health(
        tmp_path / "none", tmp_path / "power", tmp_path / "thermal", tmp_path / "model"
    )
    said = m.CheckIn(
        "d",
        1,
        1,
        battery_percent=found.battery_percent,
        temperature_c=found.temperature_c,
        hardware=found.hardware,
    )
    assert decode(encode(said), m.CheckIn) == said
    assert (found.temperature_c, found.free_bytes) == (None, None)


def test_the_version_is_that_of_the_package_and_of_the_phones() -> None:
    assert f'version = "{VERSION}"' in (ROOT / "pyproject.toml").read_text()
    assert f"shoal.version={VERSION}" in (ROOT / "android_bridge/gradle.properties").read_text()


def test_a_client_reports_the_version_of_the_installed_package(tmp_path: Path) -> None:
    metadata = tmp_path / "shoal-9.8.7.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: shoal\nVersion: 9.8.7\n")
    path = os.pathsep.join((str(tmp_path), str(ROOT)))
    answer = subprocess.run(
        [sys.executable, "-c", "from wire.messages import CLIENT; print(CLIENT)"],
        env=os.environ | {"PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout == "shoal 9.8.7\n"


def test_both_clients_speak_the_same_version_of_the_protocol() -> None:
    outbox = ROOT / "android_bridge/core/src/main/kotlin/io/shoal/core/Outbox.kt"
    assert f'PROTOCOL_VERSION = "{PROTOCOL_VERSION}"' in outbox.read_text()
