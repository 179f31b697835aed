"""Tasks beside classes, through service, boards and a release: the fleet learns as the simulation
does."""

from collections.abc import Callable
from pathlib import Path

import pytest

from algorithms.composition import read_algorithm
from simulation.datasets.windows import FleetData
from simulation.settings import SimulationSettings
from simulation.simulate import simulate
from tests.end_to_end.field import ROUNDS
from tests.end_to_end.task_fleet import EPOCHS, learned, predicted
from tests.support.fleets import synthetic_fleet
from tests.support.known import known
from tests.support.labels import NAMES, QUANTITIES, STEPS, quantities, several_labels, steps

pytestmark = pytest.mark.full


def tells_labels(answer: dict[str, object]) -> bool:
    """Return True if this is the answer for a window with several labels."""
    probabilities, labels = answer["probabilities"], answer["labels"]
    assert isinstance(probabilities, dict)
    return answer.keys() == {"labels", "probabilities"} and labels == [
        name for name in NAMES if probabilities[name] >= 0.5
    ]


def tells_quantities(answer: dict[str, object]) -> bool:
    """Return True if this is the answer for a window of quantities, in their own units."""
    speed = answer["speed"]
    return tuple(answer) == QUANTITIES and isinstance(speed, float) and 100 < speed < 10000


def tells_steps(answer: dict[str, object]) -> bool:
    """Return True if this is the answer for a window of steps."""
    classes, probabilities = answer["classes"], answer["probabilities"]
    assert isinstance(classes, list)
    assert isinstance(probabilities, dict)
    best = [max(probabilities, key=lambda name: probabilities[name][step]) for step in range(STEPS)]
    return answer.keys() == {"classes", "probabilities"} and classes == best


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("task", "labels", "tells"),
    [
        ("multi-label", several_labels, tells_labels),
        pytest.param("sequence", steps, tells_steps, marks=pytest.mark.slow),
        pytest.param("regression", quantities, tells_quantities, marks=pytest.mark.slow),
    ],
)
def test_boards_learn_a_task_as_the_simulation_does(
    tmp_path: Path,
    task: str,
    labels: Callable[[FleetData], FleetData],
    tells: Callable[[dict[str, object]], bool],
) -> None:
    algorithm = f"fedavg+{task}"
    data = labels(synthetic_fleet(3, num_windows=60))
    summary, states = learned(tmp_path, data, data, algorithm)
    settings = SimulationSettings(read_algorithm(algorithm), ROUNDS, local_epochs=EPOCHS)
    for device_id, device in simulate(data, settings).summary.devices.items():
        told = summary["devices"][device_id]
        assert (told["num_train"], told["num_test"]) == (60, 12)
        assert told["loss"] == pytest.approx(known(device.loss), rel=0.02)
    answers = predicted(states[0], data.devices["d0"].test_x)
    assert len(answers) == 12
    assert all(tells(answer) for answer in answers)
