"""A share of `make chaos`: some of each fault, and messages that are nearly right through a runner
in this process."""

import gc
import logging
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from aggregator.fleet.desired import is_at_work
from aggregator.fleet.reconcile import LONGEST_REST_S
from algorithms.composition import read_algorithm
from simulation.datasets.windows import FleetData
from tests.aggregator.bench import Bench
from tests.chaos import faults
from tests.chaos.deployment import Deployment
from tests.chaos.faults import FAULTS, Fault
from tests.chaos.mutation import Mutation
from tests.chaos.power import PowerLine
from tests.chaos.preload import build
from tests.chaos.run import try_faults
from tests.support.bundles import write_bundle
from tests.support.fleets import synthetic_fleet
from tests.support.shared import shared_folder
from wire.codec import digest
from wire.links.port import Delivery

pytestmark = pytest.mark.full

QUICK = (
    *(faults.kill_aggregator, faults.kill_device, faults.kill_broker),
    *(faults.lose_folder, faults.restore_backup, faults.second_aggregator, faults.shift_clock),
)


def fails(
    chosen: Sequence[Fault], seconds: float, factory: pytest.TempPathFactory, folder: Path
) -> list[str]:
    """Return the violations after so many seconds of these faults."""
    data = synthetic_fleet(num_devices=3, num_windows=120)
    said: list[str] = []
    bundle = shared_folder(
        factory, "fedavg-chaos", lambda to: write_bundle(to, data, read_algorithm("fedavg"))
    )
    with Deployment(data, bundle, folder) as deployment:
        rows = try_faults(deployment, chosen, seconds, random.Random(1), said.append)
    assert all(row.tried or row.skipped for row in rows.values()), said
    assert sum(row.rounds for row in rows.values()) > 0, "no round was computed again"
    return [f"{name}: {text}" for name, row in rows.items() for text in row.failures]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_some_faults(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    chosen = [fault for fault in FAULTS if fault.bring_about in QUICK]
    assert fails(chosen, 0.0, tmp_path_factory, tmp_path) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_fault(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    assert fails(FAULTS, 600, tmp_path_factory, tmp_path) == []


@pytest.mark.parametrize(
    "number", [6_000, pytest.param(200_000, marks=(pytest.mark.slow, pytest.mark.timeout(1800)))]
)
def test_messages_that_are_nearly_right_end_nothing(
    fleet: FleetData, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The runner takes, refuses or ignores each; nothing is a defect, its memory does not grow, and
    the run goes on. The rarest of the reasons that are looked for comes twice in a thousand
    messages."""
    caplog.set_level(
        logging.CRITICAL, "shoal"
    )  # a line of the log for each, which pytest would keep
    settings = {"rounds": 10**6, "deadline_s": 20.0}
    bench, rng = Bench(fleet, settings=settings), random.Random(6)
    ids = (*("a", "b") * 25, *(f"stranger-{i}" for i in range(50)))
    updates: dict[int, bytes] = {}

    def working() -> list[str]:
        return [device_id for device_id in ("a", "b") if is_at_work(bench.known(device_id))]

    def seeds() -> dict[str, bytes]:
        """An update of an assignment, as it should be; of an earlier one where nobody has one."""
        if devices := working():
            serial = bench.work(devices[0]).serial
            if serial not in updates:
                updates.clear()
                updates[serial] = bench.payload(devices[0])
        return {"update": next(iter(updates.values()))}

    mutation = Mutation(seeds, "f", ids, rng)
    process, resident = psutil.Process(), []
    for at in range(number):
        bench.runner.handle(Delivery(*mutation.message()))
        bench.clock.now_s += rng.choice((0.0, 0.1, 2.0))
        bench.runner.tick()
        bench.answers()
        if at % (number // 4) == 0:
            gc.collect()
            resident.append(process.memory_info().rss)
    assert bench.runner.refused.get("defect", 0) == 0
    assert {
        "malformed",
        "wrong-device",
        "unknown-topic",
        "wrong-layout",
        "not-finite",
    } <= bench.runner.refused.keys()
    assert resident[-1] - resident[1] < 32 * 2**20
    goal = bench.campaign.round + 1
    for _ in range(200):  # a device that has failed often rests for a day
        bench.clock.now_s += LONGEST_REST_S / 100
        bench.tick()
        for device_id in working():
            bench.send(device_id, "update", bench.payload(device_id))
    assert bench.campaign.round >= goal or bench.campaign.phase == "finished"


def test_a_power_loss_leaves_what_was_synchronised(tmp_path: Path) -> None:
    """The library sees a process's own fsync, of files and of folders, and nothing else."""

    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "old").write_text("old")
    try:
        line = PowerLine(folder, build("fsynced", tmp_path))
    except OSError:
        pytest.skip("there is no C compiler: apt-get install gcc would run this")
    script = f"""
import os, pathlib
from aggregator.storage.blob_folder import BlobFolder
from host.files import make_folder, sync_folder, write_atomically
folder = pathlib.Path({str(folder)!r})
write_atomically(folder / "safe", b"safe")
BlobFolder(folder / "blobs" / "run").put(b"blob")
make_folder(folder / "wanted")
write_atomically(folder / "wanted" / "charter", b"charter")
(folder / "wanted").rename(folder / "campaign")
sync_folder(folder)
(folder / "old").write_text("new")
(folder / "unsafe").write_text("unsafe")
with (folder / "safe").open("ab") as file:
    file.write(b"!")
    file.flush()
    os.fsync(file.fileno())
    file.write(b"?")
"""
    subprocess.run(
        [sys.executable, "-c", script], check=True, env={**os.environ, **line.environment}
    )
    assert sorted(path.name for path in folder.iterdir()) == [
        *("blobs", "campaign", "old", "safe", "unsafe"),
    ]
    line.lose()
    left = {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }
    blob = f"blobs/run/{digest(b'blob')}"
    kept = {"old": "old", "safe": "safe!", blob: "blob", "campaign/charter": "charter"}
    assert left == kept
