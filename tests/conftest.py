"""Fixtures shared by the tests: a small synthetic fleet, a real bundle exported for it, and real
brokers."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from algorithms.composition import read_algorithm
from export.publish import DEVICE_FILE
from simulation.datasets.windows import FleetData
from simulation.local.broker import EmbeddedBroker, free_port
from simulation.local.fleet import stop_processes
from simulation.objective import objective_for_fleet
from tests.support.brokers import wait_for_port
from tests.support.bundles import (
    Exported,
    ExportedPrograms,
    export_programs,
    some_graphs,
    write_bundle,
)
from tests.support.fleets import synthetic_fleet
from tests.support.shared import shared_folder
from wire.bundle import unpack
from wire.links.in_process import InProcessBroker

pytest_plugins = (
    "tests.support.operator",
    "tests.support.postgres",
    "tests.support.s3",
    "tests.support.wheel",
)

if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # of a shell's background job: what tests start and interrupt would ignore it too
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # for the processes that tests start: many run at a time
# A busy machine is no failure. `make test` draws 30 examples of a property, `make slow` 300.
settings.register_profile("change", deadline=None, max_examples=30)
settings.register_profile("night", deadline=None, max_examples=300)
settings.load_profile("change")
torch.set_num_threads(
    1
    # the models are tiny: threads would wait for each other, and results would depend on their
    # number
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the members of a product with `full`, all but its representatives.

    Raises:
        pytest.UsageError: no member has the name of a representative.
    """
    unmatched: dict[tuple[int, str], str] = {}
    matched = set()
    for item in items:
        if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
            continue
        for mark in item.iter_markers("representatives"):
            names = {(id(mark), name) for name in mark.args}
            matches = {key for key in names if fnmatchcase(item.callspec.id, key[1])}
            if not matches:
                item.add_marker(pytest.mark.full)
            unmatched |= dict.fromkeys(names, item.nodeid)
            matched |= matches
    missing = [f"{name} ({unmatched[mark, name]})" for mark, name in unmatched.keys() - matched]
    if missing and not any("::" in argument for argument in config.args):
        raise pytest.UsageError(f"no member is named like a representative: {sorted(missing)}")


@pytest.fixture(scope="session")
def fleet() -> FleetData:
    return synthetic_fleet()


@pytest.fixture(scope="session")
def exported(fleet: FleetData, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    folder = shared_folder(
        tmp_path_factory,
        "distfl",
        lambda folder: write_bundle(folder, fleet, read_algorithm("distfl")),
    )
    return Exported(folder, unpack((folder / DEVICE_FILE).read_bytes()))


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
