"""A large model over a link that is cut again and again: it arrives once and whole, in both
directions, and little is sent twice.

A real service, a real device and a real Mosquitto; the device is behind a proxy that cuts its
connection.
"""

import json
import math
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from aggregator.storage.engine import sqlite_url
from aggregator.storage.fleet_store import load_fleet
from algorithms.composition import read_algorithm
from algorithms.core.probe import make_probe, whole_model
from export.bundle import capture_graphs, make_bundle, save_probe
from export.publish import DEVICE_FILE, KEY_FILE, SERVER_FILE, TRUST_FILE
from simulation.local.broker import free_port
from simulation.local.fleet import start_process, stop_processes, write_device_folder
from simulation.objective import objective_for_fleet
from tests.support.cutting_proxy import CuttingProxy, cutting_proxy
from tests.support.fleets import synthetic_fleet
from tests.support.known import known
from wire.codec import digest
from wire.identity.keys import new_key, private_pem, public_pem
from wire.pieces import cut, place

pytestmark = pytest.mark.full

MODEL = """from torch import nn
def make(shape, classes):
    size = shape[0] * shape[1]
    wide = nn.Linear({hidden}, {hidden})
    first, last = nn.Linear(size, {hidden}), nn.Linear({hidden}, classes)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), wide, nn.ReLU(), last)
"""


class Transfer:
    """One device takes part in one round with a model of so many bytes."""

    def __init__(self, folder: Path, num_bytes: int) -> None:
        self.folder, self.data, self.http = (
            folder,
            synthetic_fleet(num_devices=1, num_windows=40),
            free_port(),
        )
        (folder / "model.py").write_text(MODEL.format(hidden=math.isqrt(num_bytes // 4)))
        objective = objective_for_fleet(
            self.data, read_algorithm("fedavg"), 0, f"{folder}/model.py:make"
        )
        window, classes, key = self.data.window, self.data.classes, new_key()
        graphs = capture_graphs(objective, window.shape, ("onnx",), 16)
        payload = make_bundle(
            graphs,
            name="large",
            bundle_version=1,
            objective=objective,
            classes=classes,
            window=window,
            key=key,
        )
        probe = save_probe(
            make_probe(objective.model, window.shape), whole_model(objective.model), digest(payload)
        )
        (folder / "bundle").mkdir()
        for name, content in (
            (DEVICE_FILE, payload),
            (SERVER_FILE, probe),
            (TRUST_FILE, public_pem(key)),
            (KEY_FILE, private_pem(key)),
        ):
            (folder / "bundle" / name).write_bytes(content)

    def run(
        self, broker: str, proxy: CuttingProxy, most_mib: int, patience_s: float, encoding: str
    ) -> dict[str, int]:
        """The round, with updates in this encoding; returns the largest memory in bytes that the
        device and the service had."""
        folder = self.folder
        write_device_folder(self.data, "d0", folder / "data")
        limit = ["--max-payload", str(most_mib)]
        serving = [
            "--folder",
            folder / "run",
            "--bundle",
            folder / "bundle",
            "--broker",
            broker,
            "--fleet",
            "t",
            "--port",
            self.http,
        ]
        rounds = [
            "--algorithm",
            "fedavg",
            "--rounds",
            1,
            "--min-devices",
            1,
            "--min-group",
            1,
            "--batch-size",
            16,
            "--update-encoding",
            encoding,
        ]
        service = start_process(
            ["-m", "shoal", "serve", *map(str, [*serving, *rounds]), *limit], folder / "service.log"
        )
        own = [
            "--id",
            "d0",
            "--fleet",
            "t",
            "--data",
            folder / "data",
            "--state",
            folder / "state",
            "--trust",
            folder / "bundle/trust.pem",
        ]
        reached = ["--broker", f"mqtt://127.0.0.1:{proxy.port}"]
        device = start_process(
            ["-m", "edge_client.main", "run", *map(str, own), *reached, *limit],
            folder / "device.log",
        )
        most, end_s = {"device": 0, "service": 0}, time.monotonic() + patience_s
        try:
            while not self._is_finished():
                logs = "".join(
                    (folder / name).read_text()[-3000:] for name in ("service.log", "device.log")
                )
                assert time.monotonic() < end_s, (
                    f"cuts={proxy.cuts} up={proxy.up} down={proxy.down}\n{logs}"
                )
                for name, process in (("device", device), ("service", service)):
                    assert process.poll() is None, logs
                    most[name] = max(most[name], psutil.Process(process.pid).memory_info().rss)
                time.sleep(0.05)
        finally:
            stop_processes([device, service])
        return most

    def _is_finished(self) -> bool:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.http}/run", timeout=10
            ) as response:
                return bool(json.load(response)["phase"] == "finished")
        except OSError:
            return False


def _arrives_both_ways(
    folder: Path,
    broker: str,
    num_bytes: int,
    cuts: int,
    patience_s: float,
    encoding: str = "float32",
) -> tuple[float, float]:
    """Bytes that went down and up, by those that were needed."""
    transfer, up_bytes = (
        Transfer(folder, num_bytes),
        num_bytes if encoding == "float32" else num_bytes // 4,
    )
    with cutting_proxy(urlsplit(broker).port or 0) as proxy:
        up, down = (
            [n * whole // (cuts + 1) for n in range(1, cuts + 1)] for whole in (up_bytes, num_bytes)
        )
        proxy.cut_at(up=up, down=down)
        most = transfer.run(broker, proxy, (num_bytes * 2 >> 20) + 16, patience_s, encoding)
        assert proxy.left == 0
    fleet = known(load_fleet(sqlite_url(folder / "run" / "shoal.db")))
    campaign = fleet.campaigns["run-1"]
    blobs = folder / "run" / "blobs" / "run-1"
    held = {path.name: path.read_bytes() for path in (folder / "state" / "blobs").iterdir()}
    assert all(digest(payload) == name for name, payload in held.items())
    assert not [*(folder / "run" / "pieces").iterdir()]
    log = (folder / "service.log").read_text()
    assert "refused" not in log, log
    models = {
        *campaign.models.values(),
        *(model for version in campaign.history for model in version.models.values()),
    }
    needed = {
        name: piece
        for blob in (campaign.settings.bundle, *models)
        for name, piece in pieces_of((blobs / blob).read_bytes())
    }
    print(f"memory { ({name: f'{size / 2**20:.0f} MiB' for name, size in most.items()}) }")
    return proxy.down / sum(needed.values()), proxy.up / up_bytes


def pieces_of(payload: bytes) -> Iterator[tuple[str, int]]:
    """The pieces that a blob is cut into, and how many bytes they have."""
    pieces = cut(len(payload), lambda offset, size: payload[offset : offset + size])
    yield from ((name, place(pieces, index)[1]) for index, name in enumerate(pieces.pieces))


@pytest.mark.parametrize("encoding", ["float32", pytest.param("int8", marks=pytest.mark.slow)])
def test_a_model_arrives_once_and_whole_over_a_link_that_is_cut(
    tmp_path: Path, mosquitto: str, encoding: str
) -> None:
    down, up = _arrives_both_ways(tmp_path, mosquitto, 12 * 2**20, 2, 120.0, encoding)
    print(f"down {down:.2f} up {up:.2f} of what was needed")
    assert down < 1.6
    assert up < 1.6


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_model_of_200_mb_arrives_once_and_whole_over_a_link_that_is_cut_ten_times_each_way(
    tmp_path: Path, mosquitto: str
) -> None:
    down, up = _arrives_both_ways(tmp_path, mosquitto, 200 * 10**6, 10, 600.0)
    print(f"down {down:.2f} up {up:.2f} of what was needed")
    assert down < 1.3
    assert up < 1.3
