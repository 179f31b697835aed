"""Tasks beside classes, through service, boards and a release: the fleet learns as the simulation does."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from algorithms.registry import read_algorithm
from export.publish import DEVICE_FILE
from simulation.datasets.windows import FleetData
from simulation.local.broker import EmbeddedBroker
from simulation.simulate import SimulationSettings, simulate
from tests.bundles import write_bundle
from tests.conftest import Exported, synthetic_fleet
from tests.end_to_end.test_recovery import ROUNDS, Field
from tests.known import known
from tests.labels import NAMES, QUANTITIES, quantities, several_labels
from wire.bundle import unpack


def tells_labels(answer: dict[str, object]) -> bool:
    """Whether this is what is said of a window with several labels."""
    probabilities, labels = answer["probabilities"], answer["labels"]
    assert isinstance(probabilities, dict)
    return answer.keys() == {"labels", "probabilities"} and labels == [name for name in NAMES if probabilities[name] >= 0.5]


def tells_quantities(answer: dict[str, object]) -> bool:
    """Whether this is what is said of a window of quantities, in their own units."""
    speed = answer["speed"]
    return tuple(answer) == QUANTITIES and isinstance(speed, float) and 100 < speed < 10000


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("task", "labels", "tells"),
    [("multi-label", several_labels, tells_labels), pytest.param("regression", quantities, tells_quantities, marks=pytest.mark.slow)],
)
def test_boards_learn_a_task_as_the_simulation_does(
    tmp_path: Path, task: str, labels: Callable[[FleetData], FleetData], tells: Callable[[dict[str, object]], bool]
) -> None:
    algorithm = f"fedavg+{task}"
    data, spec = labels(synthetic_fleet(3, num_windows=60)), read_algorithm(algorithm)
    (tmp_path / "bundle").mkdir()
    write_bundle(tmp_path / "bundle", data, spec)
    exported = Exported(tmp_path / "bundle", unpack((tmp_path / "bundle" / DEVICE_FILE).read_bytes()))
    with EmbeddedBroker() as broker:
        field = Field(data, exported, tmp_path, broker.url, epochs=2)
        try:
            with field.edges():
                field.serve("--algorithm", algorithm, "--release", "auto", "--rollout-steps", "1")
                field.finish()
                summary = field.get("/summary")
                states = [tmp_path / "devices" / d / "state" for d in data.devices]
                end_s = time.monotonic() + 60
                while not all((state / "model.json").exists() for state in states) and time.monotonic() < end_s:
                    time.sleep(0.2)
        finally:
            field.stop()
    for device_id, device in simulate(data, SimulationSettings(spec, ROUNDS, local_epochs=2)).summary.devices.items():
        told = summary["devices"][device_id]
        assert (told["num_train"], told["num_test"]) == (60, 12)
        assert told["loss"] == pytest.approx(known(device.loss), rel=0.02)
    np.save(tmp_path / "windows.npy", data.devices["d0"].test_x)
    command = [sys.executable, "-m", "edge_client.main", "predict", "--state", str(states[0]), str(tmp_path / "windows.npy")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == 12
    assert all(tells(answer) for answer in answers)
