"""Users and passwords at the broker, by the commands of a service and of a device: they reach the
broker, and nothing shows them."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from simulation.local.broker import free_port
from simulation.local.fleet import stop_processes
from tests.end_to_end.fleet import find_mosquitto
from tests.support.brokers import wait_for_port

PASSWORD = "p#ss/w@rd%"
HIDDEN = ("p#ss", "w@rd", "p%23ss")


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[str]:
    """The host and port of a Mosquitto that knows the user `me` with `PASSWORD` alone."""
    port, file = free_port(), tmp_path / "passwords"
    binary = find_mosquitto()
    subprocess.run(["mosquitto_passwd", "-b", "-c", str(file), "me", PASSWORD], check=True)
    (tmp_path / "m.conf").write_text(
        f"user root\nlistener {port} 127.0.0.1\npassword_file {file}\n"
    )
    log = (tmp_path / "m.log").open("w")
    process = subprocess.Popen([binary, "-c", str(tmp_path / "m.conf")], stdout=log, stderr=log)
    wait_for_port(port)
    yield f"127.0.0.1:{port}"
    stop_processes([process])
    log.close()


def run(folder: Path, *words: str, **variables: str) -> tuple[int, str]:
    """The status and the output of `shoal-edge`."""
    done = subprocess.run(
        [sys.executable, "-m", "edge_client.main", *words],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path.cwd()), **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )
    output = done.stdout + done.stderr
    assert not [text for text in HIDDEN if text in output]
    return done.returncode, output


def connect(folder: Path, *words: str, **variables: str) -> str:
    """The output of `check` with these options."""
    (folder / "data").mkdir(exist_ok=True)
    np.save(folder / "data" / "X.npy", np.zeros((8, 3, 16), np.float32))
    np.save(folder / "data" / "y.npy", np.arange(8) % 2)
    options = ["--id", "pi-1", "--data", "data", "--state", "state", "--insecure", *words]
    return run(folder, "check", *options, **variables)[1]


def test_a_login_reaches_the_broker_by_options_variables_and_the_address(
    guarded: str, tmp_path: Path
) -> None:
    (tmp_path / "word").write_text(PASSWORD + "\n")
    plain = ("--broker", f"mqtt://{guarded}")
    from_file = ("--broker-user", "me", "--broker-password-file", "word")
    variables = {"SHOAL_BROKER_USER": "me", "SHOAL_BROKER_PASSWORD": PASSWORD}
    written = ("--broker", f"mqtt://me:p%23ss%2Fw%40rd%25@{guarded}")
    right: list[tuple[tuple[str, ...], dict[str, str]]] = [
        ((*plain, *from_file), {}),
        (plain, variables),
        (written, {}),
    ]
    for words, env in right:
        assert "refused client" not in connect(tmp_path, *words, **env)
    wrong: list[tuple[tuple[str, ...], dict[str, str]]] = [
        (plain, {}),
        ((*plain, "--broker-user", "me"), {}),
        ((*plain, "--broker-user", "other", "--broker-password-file", "word"), {}),
        (plain, variables | {"SHOAL_BROKER_PASSWORD": "other"}),
    ]
    for words, env in wrong:
        assert "refused client 'default.pi-1': Not authorized" in connect(tmp_path, *words, **env)


@pytest.mark.parametrize("sign", ["#", "?", "/", "@", "%", "[", " "])
def test_a_sign_that_is_not_written_as_a_percent_sign_is_explained(
    sign: str, tmp_path: Path
) -> None:
    status, output = run(
        tmp_path,
        *("run", "--id", "pi-1", "--data", "data", "--state", "state", "--insecure"),
        *("--broker", f"mqtt://me:top{sign}secret@localhost:1"),
    )
    assert status == 2
    assert "broker address 'mqtt://***@localhost:1'" in output
    assert "write each of / ? # @ [ ] % as %NN (# is %23)" in output
    assert "secret" not in output
    assert "top" not in output


def test_the_help_does_not_show_the_address_of_the_environment(tmp_path: Path) -> None:
    for variable in ("SHOAL_BROKER", "SHOAL_EDGE_BROKER"):
        address = {variable: "mqtt://me:p%23ss@broker.example"}
        status, output = run(tmp_path, "run", "--help", **address)
        assert status == 0
        assert "(default: mqtt://localhost)" in output
