"""The program `shoal-helper`: its commands, its errors of one line, and what it loads."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from aggregator.enrolment.authority import make_authority
from helper.storage import make_helper
from host.logs import ALIVE_FILE
from simulation.local.broker import free_port
from simulation.local.fleet import stop_processes
from tests.helper.exchange import KEYS, ROSTER
from tests.support.waiting import wait_until
from wire.errors import Malformed, Untrusted
from wire.identity.certificates import certificate_pem, key_digest
from wire.identity.keys import new_key, private_pem, public_pem
from wire.secret.named_keys import write_named_key
from wire.secret.roster import read_roster, sign_roster


def helper(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "helper.main", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_a_helper_is_made_once_and_shows_its_key(tmp_path: Path) -> None:
    folder = tmp_path / "north"
    result = helper("init", "--folder", folder, "--fleet", "watches", "--name", "north")
    assert (result.returncode, result.stderr) == (0, "")
    key = result.stdout.split("key ")[1][:64]
    status = helper("status", "--folder", folder)
    assert status.stdout.splitlines() == [
        "helper north of the fleet watches",
        f"key {key}",
        "running: no",
        "sums opened: 0, of 0 devices",
    ]
    again = helper("init", "--folder", folder, "--fleet", "watches", "--name", "north")
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr.startswith(f"error: --folder {folder}: it has a helper.key already")


def test_the_owner_of_the_root_key_signs_the_roster(tmp_path: Path) -> None:
    authority = make_authority(tmp_path, "watches", ["localhost"], time.time())
    root, files = new_key(), []
    (tmp_path / "signing.key").write_bytes(private_pem(root))
    for device in ("d1", "d2"):
        files.append(tmp_path / f"{device}.pem")
        if device == "d1":
            certificate = authority.issue(KEYS[device].public_key(), device, time.time())
            files[-1].write_text(certificate_pem(certificate))
        else:
            files[-1].write_bytes(write_named_key("device", device, KEYS[device].public_key()))
    options = ("--fleet", "watches", "--key", tmp_path / "signing.key", "--out", tmp_path / "out")
    result = helper("roster", *options, *files)
    assert (result.stdout, result.stderr) == (
        f"{tmp_path}/out: 2 devices of the fleet watches\n",
        "",
    )
    payload, trusted = (tmp_path / "out").read_bytes(), (root.public_key(),)
    devices = read_roster(payload, "watches", trusted)
    assert {name: key_digest(key) for name, key in devices.items()} == {
        name: key_digest(KEYS[name].public_key()) for name in ("d1", "d2")
    }
    with pytest.raises(Untrusted, match="not made with a trusted key"):
        read_roster(payload, "watches", (new_key().public_key(),))
    with pytest.raises(Untrusted, match="for the fleet watches, not barn"):
        read_roster(payload, "barn", trusted)
    with pytest.raises(Untrusted, match="not made with a trusted key"):
        read_roster(payload.replace(b'"d1"', b'"d3"'), "watches", trusted)
    with pytest.raises(Malformed, match="roster of 4 bytes: not readable"):
        read_roster(b"none", "watches", trusted)
    twice = helper("roster", *options, files[0], files[0])
    assert twice.stderr == (f"error: device {files[0]}: there is another key of the device d1\n")
    files[1].write_bytes(write_named_key("helper", "d2", KEYS["d2"].public_key()))
    wrong = helper("roster", *options, files[1])
    assert wrong.stderr.startswith(f"error: device {files[1]}: ")


def test_errors_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "trust.pem").write_bytes(public_pem(new_key()))
    options = ("run", "--folder", tmp_path, "--trust", tmp_path / "trust.pem", "--roster", "none")
    for more, text in (
        (("--broker", "mqtt://example.org"), "broker mqtt://example.org:1883: without TLS"),
        (("--broker", "mqtt://localhost", "--min-sum", 1), "--min-sum must be at least 2, got 1"),
        (("--broker", "mqtt://localhost"), f"--folder {tmp_path}: there is no helper.key; `shoal"),
    ):
        result = helper(*options, *more)
        assert result.returncode == 2
        assert result.stderr.startswith(f"error: {text}")
        assert result.stderr.count("\n") == 1


def test_a_helper_loads_no_torch() -> None:
    code = (
        "import sys, helper.main; "
        "print([n for n in ('torch', 'onnxruntime', 'scipy') if n in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout == "[]\n"


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """The command that runs a helper whose broker is not there."""
    root = new_key()
    (tmp_path / "trust.pem").write_bytes(public_pem(root))
    (tmp_path / "roster").write_bytes(sign_roster(root, "watches", ROSTER))
    make_helper(tmp_path / "north", "watches", "north")
    files = {"--folder": "north", "--trust": "trust.pem", "--roster": "roster"}
    words = [str(word) for flag, name in files.items() for word in (flag, tmp_path / name)]
    return ["run", *words, "--broker", f"mqtt://127.0.0.1:{free_port()}"]


def test_metrics_and_signs_of_life_are_there_before_there_is_a_broker(
    command: list[str], tmp_path: Path
) -> None:
    port, sign = free_port(), tmp_path / "alive"
    words = [sys.executable, "-m", "helper.main", *command, "--metrics", f"127.0.0.1:{port}"]
    process = subprocess.Popen(words, env=os.environ | {ALIVE_FILE: str(sign)})

    def scraped(path: str) -> str:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return str(answer.read().decode())

    try:
        assert "\nshoal_helper_connected 0\n" in wait_until(lambda: scraped("/metrics"))
        wait_until(sign.exists)
        with pytest.raises(HTTPError, match="404"):
            scraped("/")
    finally:
        stop_processes([process])


@pytest.mark.parametrize(
    "address", ["", "9110", "127.0.0.1", "127.0.0.1:", ":9110", "h:0", "h:65536", "h:1/x", "a..b:1"]
)
def test_an_address_of_metrics_is_a_host_and_a_port(command: list[str], address: str) -> None:
    result = helper(*command, "--metrics", address)
    assert (result.returncode, result.stderr) == (
        2,
        "error: --metrics must be HOST:PORT with a port of 1 to 65535, for example "
        f"127.0.0.1:9110, got {address!r}\n",
    )


def test_an_address_of_metrics_that_is_in_use_is_named(command: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        result = helper(*command, "--metrics", address)
    assert (result.returncode, result.stderr) == (
        2,
        f"error: --metrics {address}: Address already in use; choose an address of this machine "
        "and a port that is free\n",
    )
