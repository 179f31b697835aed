"""The systemd units: systemd finds nothing wrong with them, they give little away, and a service
says what they wait for."""

import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from helper.main import parser
from simulation.datasets.windows import FleetData
from simulation.local.broker import EmbeddedBroker, free_port
from simulation.local.fleet import start_process, stop_processes, write_device_folder
from tests.support.bundles import Exported
from tests.support.wheel import ROOT

UNITS = sorted(
    path for folder in ("systemd", "board") for path in (ROOT / "deploy" / folder).glob("*.service")
)
EXPOSURE = 25
"""Maximum exposure, of 100; `systemd-analyze security` calls less than 40 'OK'."""


@pytest.fixture(params=UNITS, ids=lambda path: path.name)
def unit(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A unit whose program is there, and whose user is known."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: apt-get install systemd would run this")
    path: Path = tmp_path / request.param.name
    text = re.sub(r"/(opt/shoal/bin|usr/local/sbin)/[\w-]+", "/bin/true", request.param.read_text())
    path.write_text(text)
    return path


@pytest.mark.parametrize("options", ["", "--min-sum 8 --metrics 127.0.0.1:9110"])
def test_a_helpers_unit_gives_its_program_the_options_of_the_environment(options: str) -> None:
    text = (ROOT / "deploy" / "systemd" / "shoal-helper.service").read_text()
    (command,) = re.findall(r"^ExecStart=\S+ (.+)$", text, re.MULTILINE)
    arguments = parser().parse_args(command.replace("$OPTIONS", options).split())
    assert (arguments.min_sum, arguments.metrics) == (
        (8, "127.0.0.1:9110") if options else (5, None)
    )


def analyze(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["systemd-analyze", *arguments], capture_output=True, text=True, timeout=60
    )


def test_systemd_finds_nothing_wrong_with_a_unit(unit: Path) -> None:
    done = analyze("verify", "--man=no", "--recursive-errors=no", str(unit))
    assert (done.returncode, [line for line in done.stderr.splitlines() if unit.name in line]) == (
        0,
        [],
    )


def test_a_unit_gives_little_away(unit: Path) -> None:
    done = analyze("security", "--offline=yes", f"--threshold={EXPOSURE}", "--no-pager", str(unit))
    assert done.returncode == 0, done.stdout[-300:] + done.stderr


@pytest.mark.full
def test_a_service_says_that_it_is_ready_and_goes_on_saying_so(
    exported: Exported, embedded_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    address = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(address))
        supervisor.settimeout(100)
        options = [
            "--folder",
            str(tmp_path / "f"),
            "--bundle",
            str(exported.folder),
            "--broker",
            embedded_broker.url,
        ]
        serving = start_process(
            ["-m", "shoal", "serve", *options, "--port", str(free_port())],
            tmp_path / "log",
            {"NOTIFY_SOCKET": str(address)},
        )
        try:
            assert supervisor.recv(100) == b"READY=1\nWATCHDOG=1"
            assert "Campaign opened: campaign=run-1 phase=waiting" in (tmp_path / "log").read_text()
            for _ in range(4):
                supervisor.recv(100)
        finally:
            stop_processes([serving])


def test_a_board_says_that_it_is_ready_where_the_broker_is_not_there_yet(
    tmp_path: Path, exported: Exported, fleet: FleetData
) -> None:
    address = tmp_path / "notify"
    write_device_folder(fleet, "d0", tmp_path / "data")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind("\0" + str(address))
        supervisor.settimeout(60)
        options = {
            "--id": "d",
            "--data": tmp_path / "data",
            "--state": tmp_path / "state",
            "--trust": exported.folder / "trust.pem",
        }
        options |= {"--broker": f"mqtt://127.0.0.1:{free_port()}"}
        arguments = [str(part) for option in options.items() for part in option]
        board = start_process(
            ["-m", "edge_client.main", "run", *arguments],
            tmp_path / "log",
            {"NOTIFY_SOCKET": f"@{address}"},
        )
        try:
            assert supervisor.recv(100) == b"READY=1\nWATCHDOG=1"
        finally:
            stop_processes([board])
