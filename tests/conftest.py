"""Fixtures shared by the tests: a small synthetic fleet, a real bundle exported for it, and real
brokers."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings

from algorithms.core.contract import Objective
from algorithms.registry import read_algorithm
from edge_client.core.ports import Windows
from export.bundle import RUNTIMES, capture_graphs
from export.publish import DEVICE_FILE
from simulation.datasets.windows import FleetData
from simulation.local.broker import EmbeddedBroker, free_port
from simulation.local.fleet import stop_processes
from simulation.objective import objective_for_fleet
from tests.bundles import pack_graphs, write_bundle
from tests.shared import shared_folder
from wire.bundle import Bundle, Window, unpack
from wire.links.in_process import InProcessBroker

if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # of a shell's background job: what tests start and interrupt would ignore it too
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # for the processes that tests start: many run at a time
settings.register_profile("shoal", deadline=None)  # a busy machine is no failure
settings.load_profile("shoal")
torch.set_num_threads(
    1
    # the models are tiny: threads would wait for each other, and results would depend on their
    # number
)


def synthetic_fleet(
    num_devices: int = 4, shift: float = 0.0, num_windows: int = 40, seed: int = 0
) -> FleetData:
    """Devices whose three classes differ in frequency; odd devices measure with an offset of
    `shift`."""
    rng = np.random.default_rng(seed)
    time_axis = np.arange(32)

    def windows(device: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        y = np.arange(count) % 3
        phase = rng.uniform(0, 6.28, (count, 2, 1))
        x = (
            np.sin((y[:, None, None] + 1) * 0.4 * time_axis + phase)
            + rng.normal(0, 0.3, (count, 2, 32))
            + shift * (device % 2)
        )
        return x.astype(np.float32), y.astype(np.int64)

    devices = {
        f"d{i}": Windows(*windows(i, num_windows), *windows(i, 12)) for i in range(num_devices)
    }
    truth = {f"d{i}": str(i % 2) for i in range(num_devices)}
    return FleetData(
        "synthetic", Window(("a", "b"), 32, 32), ("slow", "middle", "fast"), devices, truth
    )


@pytest.fixture(scope="session")
def fleet() -> FleetData:
    return synthetic_fleet()


@dataclass(frozen=True)
class Exported:
    """What `shoal export` wrote for the synthetic fleet."""

    folder: Path
    bundle: Bundle


@pytest.fixture(scope="session")
def exported(fleet: FleetData, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    folder = shared_folder(
        tmp_path_factory,
        "distfl",
        lambda folder: write_bundle(folder, fleet, read_algorithm("distfl")),
    )
    return Exported(folder, unpack((folder / DEVICE_FILE).read_bytes()))


@dataclass(frozen=True)
class ExportedPrograms:
    """FedAvg's step and evaluation for the synthetic fleet, for ONNX and ExecuTorch, with batches
    of 32 at most."""

    bundle: Bundle
    objective: Objective


@pytest.fixture(scope="session")
def exported_programs(
    fleet: FleetData, tmp_path_factory: pytest.TempPathFactory
) -> ExportedPrograms:
    pytest.importorskip(
        "executorch",
        reason="ExecuTorch is not installed: pip install 'shoal[executorch]' would run this",
    )
    objective = some_graphs(
        objective_for_fleet(fleet, read_algorithm("fedavg"), 0), "step", "evaluate"
    )

    def fill(folder: Path) -> None:
        (folder / DEVICE_FILE).write_bytes(export_programs(fleet, objective, 32).payload)

    folder = shared_folder(tmp_path_factory, "fedavg-programs", fill)
    return ExportedPrograms(unpack((folder / DEVICE_FILE).read_bytes()), objective)


def some_graphs(objective: Objective, *names: str) -> Objective:
    """The objective with these of its graphs alone: exporting one for ExecuTorch takes seconds."""
    whole = type(objective)
    some = type(
        whole.__name__,
        (whole,),
        {"graphs": lambda self: {name: whole.graphs(self)[name] for name in names}},
    )
    objective.__class__ = some
    return objective


def export_programs(fleet: FleetData, objective: Objective, max_batch: int) -> Bundle:
    """A bundle for ONNX and ExecuTorch."""
    exported = capture_graphs(objective, fleet.window.shape, RUNTIMES, max_batch)
    return unpack(pack_graphs(exported, fleet, objective))


@pytest.fixture
def in_process_broker() -> InProcessBroker:
    return InProcessBroker()


@pytest.fixture
def embedded_broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as broker:
        yield broker


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[str]:
    """The URL of a Mosquitto that keeps sessions; skipped where Debian's package is not
    installed."""
    binary = shutil.which("mosquitto", path=os.environ.get("PATH", "") + ":/usr/sbin")
    if binary is None:
        pytest.skip("Mosquitto is not installed: apt-get install mosquitto would run this")
    port = free_port()
    config = tmp_path / "mosquitto.conf"
    config.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nmessage_size_limit 67108864\n"
        "max_queued_messages 0\n"
    )
    process = subprocess.Popen(
        [binary, "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    wait_for_port(port)
    yield f"mqtt://127.0.0.1:{port}"
    stop_processes([process])


def wait_for_port(port: int, patience_s: float = 10.0) -> None:
    """Return when something accepts connections on a loopback port."""
    import socket

    end_s = time.monotonic() + patience_s
    while time.monotonic() < end_s:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=0.5).close()
            return
        except OSError:
            time.sleep(0.05)
    raise TimeoutError(f"nothing listens on port {port}")
