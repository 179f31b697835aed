"""A fleet in which nobody has labels learns to give windows back: service, boards, a release, and
what a board then says of a window."""

from pathlib import Path

import numpy as np
import pytest

from algorithms.composition import read_algorithm
from simulation.datasets.windows import for_task
from simulation.settings import SimulationSettings
from simulation.simulate import simulate
from tests.end_to_end.field import ROUNDS
from tests.end_to_end.task_fleet import EPOCHS, learned, predicted
from tests.support.fleets import synthetic_fleet
from tests.support.known import known
from tests.support.labels import nobody_labelled

ALGORITHM = "fedavg+adam:lr=0.003+reconstruction"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_boards_without_labels_train_are_released_to_and_say_how_unusual_a_window_is(
    tmp_path: Path,
) -> None:
    data = nobody_labelled(synthetic_fleet(3, num_windows=120))
    summary, states = learned(tmp_path, data, for_task(data, "reconstruction"), ALGORITHM)
    assert {
        d: (said["num_train"], said["num_test"]) for d, said in summary["devices"].items()
    } == dict.fromkeys(data.devices, (99, 33))
    alike = simulate(
        data, SimulationSettings(read_algorithm(ALGORITHM), ROUNDS, local_epochs=EPOCHS)
    ).summary
    for device_id, device in alike.devices.items():
        assert summary["devices"][device_id]["loss"] == pytest.approx(known(device.loss), rel=0.02)

    x = data.devices["d0"].unlabelled_x
    answers = predicted(states[0], np.concatenate([x[:4], 9 * x[:4]]))
    assert all(answer.keys() == {"reconstruction_error"} for answer in answers)
    errors = [answer["reconstruction_error"] for answer in answers]
    assert min(errors[4:]) > max(errors[:4])
