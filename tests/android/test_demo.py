"""`shoal demo --phones`: some of the devices are Kotlin phones; what is missing is said before
anything begins."""

import json
import os
import pickle
import re
import signal
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from aggregator.storage.blob_folder import BlobFolder
from aggregator.storage.engine import sqlite_url
from aggregator.storage.fleet_store import load_fleet
from shoal.cli import application
from simulation.engine.workers import processes
from simulation.local import fleet
from simulation.local.fleet import phone_command, start_process, stop_processes
from tests.android.bridge import run_build
from tests.end_to_end.field import groups
from tests.support.known import known
from tests.support.waiting import wait_until
from wire.arrays.tensors import Tensors, decode_tensors
from wire.errors import ConfigError


def run(out: Path, **options: str | int) -> None:
    """Run `shoal demo` in this process with these options and those of every run here."""
    options |= {"out": str(out), "data": "watch", "local-epochs": 1, "seed": 0}
    words = [f"--{name}={value}" for name, value in options.items()]
    application("demo")(["demo", *words], standalone_mode=False)


def test_more_phones_than_devices_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="--phones must be at most 2, the number of devices, got 3"
    ):
        run(tmp_path, algorithm="fedavg", devices=2, rounds=1, phones=3)


def test_the_simulations_beside_it_begin_before_the_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    class Pool:
        def submit(self, work: partial[object]) -> None:
            assert pickle.dumps(work)
            events.append(work.func.__name__)

    def publish(*_arguments: object) -> None:
        events.append("export")
        raise ConfigError("enough")

    monkeypatch.setattr(processes, "process_pool", lambda count: nullcontext(Pool()))
    monkeypatch.setattr("shoal.commands.demo._publish", publish)
    with pytest.raises(ConfigError, match="enough"):
        run(tmp_path, algorithm="fedavg", devices=2, rounds=1)
    assert events == ["run_simulations", "export"]


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(ConfigError, match="is not installed: apt-get install"):
        phone_command()


def test_phones_need_the_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fleet, "BUILD", tmp_path / "build")
    with pytest.raises(ConfigError, match="Phones need a checkout of the sources"):
        phone_command()


def models_of(out: Path) -> tuple[dict[str, str], dict[str, Tensors]]:
    """Return the group of every device at the end of a demonstration of DistFL, and each group's
    model."""
    fleet = known(load_fleet(sqlite_url(out / "aggregator" / "shoal.db")))
    campaign = fleet.campaigns["distfl"]
    blobs = BlobFolder(out / "aggregator" / "blobs" / "distfl")
    return groups(campaign), {
        group: decode_tensors(blobs.get(name))[0] for group, name in campaign.models.items()
    }


@pytest.mark.full
def test_a_phone_that_is_killed_starts_again_and_counts_in_every_round(tmp_path: Path) -> None:
    run_build("phone")
    words = ["--algorithm=fedavg", "--devices=2", "--rounds=4", "--local-epochs=20", "--phones=1"]
    log = tmp_path / "demo.log"
    demo = start_process(["-m", "shoal", "demo", *words, f"--out={tmp_path / 'out'}"], log)

    def seen(pattern: str) -> re.Match[str] | None:
        assert demo.poll() is None, log.read_text()
        return re.search(pattern, log.read_text())

    try:
        wait_until(lambda: seen("phones are processes"), 200, log.read_text)
        phone = known(seen(r"phones are processes (\d+) \(p01-left\)"))
        wait_until(lambda: seen("fedavg: round 1 of 4"), 60, log.read_text)
        os.kill(int(phone[1]), signal.SIGKILL)
        assert demo.wait(200) == 0, log.read_text()
    finally:
        stop_processes([demo])
    assert "p01-left was killed, and is started again" in log.read_text()
    assert "p01-left was killed once; its updates count in 4 of 4 rounds" in log.read_text()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_phones_and_ten_boards_find_what_twenty_boards_find(tmp_path: Path) -> None:
    run_build("phone")
    for name, num_phones in (("mixed", 10), ("boards", 0)):
        run(tmp_path / name, algorithm="distfl", devices=20, rounds=5, phones=num_phones)
    summary = json.loads((tmp_path / "mixed" / "summary.json").read_text())
    assert len(summary["phones"]["devices"]) == 10
    assert summary["phones"]["max_rss_bytes"] > 0
    assert not summary["edge"]["torch_loaded"]
    (starts, models), (expected_starts, expected) = (
        models_of(tmp_path / "mixed"),
        models_of(tmp_path / "boards"),
    )
    assert starts == expected_starts
    assert len(set(starts.values())) >= 2
    for group, model in expected.items():
        for name, value in model.items():
            scale = max(1e-2, float(np.abs(value).max()))
            assert float(np.abs(models[group][name] - value).max()) < 5e-3 * scale, (group, name)
