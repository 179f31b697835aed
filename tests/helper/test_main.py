"""The program `shoal-helper`: its commands, its errors of one line, and what it loads."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from aggregator.enrolment.authority import make_authority
from tests.helper.exchange import KEYS
from wire.errors import Malformed, Untrusted
from wire.identity.certificates import certificate_pem, key_digest
from wire.identity.keys import new_key, private_pem, public_pem
from wire.secret.named_keys import write_named_key
from wire.secret.roster import read_roster


def helper(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "helper.main", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_a_helper_is_made_once_and_shows_its_key(tmp_path: Path) -> None:
    folder = tmp_path / "north"
    done = helper("init", "--folder", folder, "--fleet", "watches", "--name", "north")
    assert (done.returncode, done.stderr) == (0, "")
    key = done.stdout.split("key ")[1][:64]
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
    done = helper("roster", *options, *files)
    assert (done.stdout, done.stderr) == (f"{tmp_path}/out: 2 devices of the fleet watches\n", "")
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
        done = helper(*options, *more)
        assert done.returncode == 2
        assert done.stderr.startswith(f"error: {text}")
        assert done.stderr.count("\n") == 1


def test_a_helper_loads_no_torch() -> None:
    code = (
        "import sys, helper.main; "
        "print([n for n in ('torch', 'onnxruntime', 'scipy') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
