"""A fleet in which nobody has labels learns to give windows back: service, boards, a release, and what a board then says of a window."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from algorithms.registry import read_algorithm
from export.publish import DEVICE_FILE
from simulation.datasets.windows import for_task
from simulation.local.broker import EmbeddedBroker
from simulation.simulate import SimulationSettings, simulate
from tests.algorithms.test_reconstruction import nobody_labelled
from tests.bundles import write_bundle
from tests.conftest import Exported, synthetic_fleet
from tests.end_to_end.test_recovery import ROUNDS, Field
from tests.known import known
from wire.bundle import unpack

ALGORITHM = "fedavg+adam:lr=0.003+reconstruction"


@pytest.mark.timeout(300)
def test_boards_without_labels_train_are_released_to_and_say_how_unusual_a_window_is(tmp_path: Path) -> None:
    data, spec = nobody_labelled(synthetic_fleet(3, num_windows=120)), read_algorithm(ALGORITHM)
    (tmp_path / "bundle").mkdir()
    write_bundle(tmp_path / "bundle", for_task(data, "reconstruction"), spec)
    exported = Exported(tmp_path / "bundle", unpack((tmp_path / "bundle" / DEVICE_FILE).read_bytes()))
    with EmbeddedBroker() as broker:
        field = Field(data, exported, tmp_path, broker.url, epochs=2)
        try:
            with field.edges():
                field.serve("--algorithm", ALGORITHM, "--release", "auto", "--rollout-steps", "1")
                field.finish()
                summary = field.get("/summary")
                states = [tmp_path / "devices" / d / "state" for d in data.devices]
                end_s = time.monotonic() + 60
                while not all((state / "model.json").exists() for state in states) and time.monotonic() < end_s:
                    time.sleep(0.2)
        finally:
            field.stop()
    assert {d: (said["num_train"], said["num_test"]) for d, said in summary["devices"].items()} == dict.fromkeys(data.devices, (99, 33))
    alike = simulate(data, SimulationSettings(spec, ROUNDS, local_epochs=2)).summary
    for device_id, device in alike.devices.items():
        assert summary["devices"][device_id]["loss"] == pytest.approx(known(device.loss), rel=0.02)

    x = data.devices["d0"].unlabelled_x
    windows = tmp_path / "windows.npy"
    np.save(windows, np.concatenate([x[:4], 9 * x[:4]]))
    command = [sys.executable, "-m", "edge_client.main", "predict", "--state", str(states[0]), str(windows)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(answer.keys() == {"reconstruction_error"} for answer in answers)
    errors = [answer["reconstruction_error"] for answer in answers]
    assert min(errors[4:]) > max(errors[:4])
