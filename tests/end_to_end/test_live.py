"""A board that records and trains in one process; its data move, and the service surveys it
again."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from aggregator.fleet.records import Device
from aggregator.storage.engine import sqlite_url
from aggregator.storage.fleet_store import load_fleet
from export.publish import DEVICE_FILE
from simulation.datasets.windows import FleetData
from simulation.local.broker import EmbeddedBroker, free_port
from simulation.local.fleet import start_process, stop_processes, write_device_folder
from tests.support.bundles import Exported
from tests.support.known import known
from tests.support.waiting import wait_until

pytestmark = pytest.mark.full

RATE_HZ = 32.0


def record(
    folder: Path, name: str, begin_s: float, seconds: int, shift: float, classes: tuple[str, ...]
) -> None:
    """A recording comes into a folder: each class for ten seconds, in turn."""
    rng = np.random.default_rng(int(begin_s) % 1000)
    lines = []
    for i in range(int(seconds * RATE_HZ)):
        y = int(i / RATE_HZ / 10) % len(classes)
        a, b = np.sin((y + 1) * 0.4 * i) + rng.normal(0, 0.3, 2) + shift
        lines.append(json.dumps({"t": begin_s + i / RATE_HZ, "a": a, "b": b, "label": classes[y]}))
    (folder / f"{name}.part").write_text("\n".join(lines))
    (folder / f"{name}.part").rename(folder / f"{name}.jsonl")


def wait_for(ready: Callable[[], bool], logs: list[Path], patience_s: float = 60.0) -> None:
    wait_until(
        ready,
        patience_s,
        lambda: "\n".join(f"{log}\n{log.read_text()[-2500:]}" for log in logs),
    )


def test_a_board_records_trains_says_that_its_data_have_moved_and_is_surveyed_again(
    fleet: FleetData, exported: Exported, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "live.toml").write_text(
        f"""
        [window]
        bundle = "{exported.folder / DEVICE_FILE}"
        rate_hz = {RATE_HZ}
        [source]
        kind = "folder"
        path = "{tmp_path / "in"}"
        [ring]
        block_s = 20
        look_s = 0.3
        """
    )
    now_s = time.time()
    record(tmp_path / "in", "first", now_s - 2000, 300, 0.0, fleet.classes)
    logs = [tmp_path / f"{name}.log" for name in ("serve", "live", "d1", "d2")]
    trust = str(exported.folder / "trust.pem")

    surveyed = tmp_path / "state-live" / "live" / "surveyed.npy"

    def moved() -> bool:
        return "The data have changed since the last survey" in logs[1].read_text()

    with EmbeddedBroker() as broker:
        common = ["--broker", broker.url, "--fleet", "t"]
        serve = [
            "-m",
            "shoal",
            "serve",
            "--folder",
            str(tmp_path / "run"),
            "--bundle",
            str(exported.folder),
            *common,
        ]
        processes = [
            start_process(
                [*serve, "--rounds", "100000", "--min-devices", "3", "--port", str(free_port())],
                logs[0],
            )
        ]
        edge = ["-m", "edge_client.main", "run", *common, "--trust", trust]
        live = [
            "--id",
            "live",
            "--state",
            str(tmp_path / "state-live"),
            "--source",
            str(tmp_path / "live.toml"),
        ]
        processes.append(start_process([*edge, *live], logs[1]))
        try:
            wait_for(
                lambda: (
                    "recorded" in logs[1].read_text()
                    or bool(list((tmp_path / "state-live" / "live").glob("*.samples")))
                ),
                logs,
            )
            for name in ("d1", "d2"):
                write_device_folder(fleet, name, tmp_path / name)
                words = [
                    "--id",
                    name,
                    "--data",
                    str(tmp_path / name),
                    "--state",
                    str(tmp_path / f"state-{name}"),
                ]
                processes.append(start_process([*edge, *words], tmp_path / f"{name}.log"))
            wait_for(surveyed.exists, logs)
            before = surveyed.read_bytes()
            rounds = logs[1].read_text().count("Plan carried out")
            wait_for(lambda: logs[1].read_text().count("Plan carried out") > rounds + 2, logs)
            assert not moved()
            record(tmp_path / "in", "second", now_s - 1000, 400, 0.5, fleet.classes)
            wait_for(moved, logs)
            wait_for(lambda: surveyed.read_bytes() != before, logs)
            wait_for(lambda: not _device(tmp_path).moved, logs)
            assert known(_device(tmp_path).facts).num_train > 100
        finally:
            stop_processes(processes)


def _device(folder: Path) -> Device:
    return known(load_fleet(sqlite_url(folder / "run" / "shoal.db"))).devices["live"]
