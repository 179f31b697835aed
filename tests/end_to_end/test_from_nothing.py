"""From nothing to a release in use on two enrolled devices, with TLS, by the commands of docs/operate.md, and how long it takes."""

import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulation.datasets.catalog import load_data
from simulation.local.fleet import start_process, start_program, stop_processes, write_device_folder
from tests.conftest import wait_for_port
from tests.end_to_end.fleet import MODULES, find_mosquitto
from tests.shoal.test_docs import ROOT

PAGE = (ROOT / "docs" / "operate.md").read_text()
TEN_MINUTES_S = 600.0


def commands(heading: str) -> list[list[str]]:
    """The commands of a part of the page, up to the next heading."""
    part = re.split(r"^#+ ", PAGE.partition(heading)[2], flags=re.MULTILINE)[0]
    return [line.split() for line in re.findall(r"^    ((?:shoal|shoal-edge|mosquitto) .*)$", part, re.MULTILINE)]


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list["subprocess.Popen[bytes]"]]:
    monkeypatch.chdir(tmp_path)
    for port in (8883, 8443, 8080):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                pytest.skip(f"port {port}, which the page's commands use, is taken on this machine")
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    stop_processes(processes)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_from_nothing_to_a_release_in_use_in_ten_minutes(started: list["subprocess.Popen[bytes]"], tmp_path: Path) -> None:
    binary, watches = find_mosquitto(), load_data("watch")
    boards = dict(zip(("pi-1", "pi-2"), watches.devices, strict=False))
    for board, watch in boards.items():
        write_device_folder(watches, watch, tmp_path / f"data-{board}")
    began_s = time.monotonic()

    def run(words: list[str]) -> str:
        done = subprocess.run([sys.executable, "-m", MODULES[words[0]], *words[1:]], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{' '.join(words)}\n{done.stderr}"
        return done.stdout

    export, *_ = commands("# Run an aggregator")
    init, broker, serve, token, enrol, work = commands("### TLS and enrolled devices, in ten minutes")[:6]
    run(export)
    run(init)
    started.append(start_program([binary, *broker[1:]], tmp_path / "broker.log"))
    wait_for_port(8883)
    started.append(start_process(["-m", "shoal", *serve[1:]], tmp_path / "serve.log"))
    wait_for_port(8443, 120)
    for board in boards:
        given = {"TOKEN": run(token).strip(), "STATE": f"state-{board}", "DATA": f"data-{board}", "pi-1": board}
        run([given.get(word, word) for word in enrol])
        words = [given.get(word, word) for word in work]
        started.append(start_process(["-m", MODULES[words[0]], *words[1:]], tmp_path / f"{board}.log"))
    while not all((tmp_path / f"state-{board}" / "current" / "model.json").exists() for board in boards):
        assert time.monotonic() < began_s + TEN_MINUTES_S, (tmp_path / "serve.log").read_text()[-3000:]
        time.sleep(0.2)
    for board in boards:
        assert json.loads((tmp_path / f"state-{board}" / "current" / "model.json").read_text())["release"] >= 1
        answers = run(["shoal-edge", "predict", "--state", f"state-{board}", f"data-{board}/test.npz"]).splitlines()
        assert {json.loads(line)["class"] for line in answers} <= set(watches.classes)
    took_s = time.monotonic() - began_s
    print(f"from nothing to a release in use on {len(boards)} devices: {took_s:.0f} s")
    assert took_s < TEN_MINUTES_S
