"""Data that say which windows are anomalous: what is learned from them, and the AUC of the
errors."""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

import shoal
from edge_client.core.ports import Windows
from simulation.datasets.windows import FleetData, for_task, task_of_labels
from tests.support.fleets import synthetic_fleet
from wire.arrays.tensors import Array
from wire.errors import ConfigError, DataError

LEARNS = "fedavg+adam:lr=0.003+reconstruction"


def arrays(devices: int = 2, usual: int = 60, odd: int = 12) -> dict[str, Array]:
    """Slow waves of two channels; of each device, in the middle of the others, some windows that
    jolt."""
    rng, parts = np.random.default_rng(0), []
    for device in range(devices):
        phase = rng.uniform(0, 6.28, (usual + odd, 1, 1))
        x = np.sin(np.arange(32) / 5 + phase) * np.ones((1, 2, 1)) + 0.05 * rng.standard_normal(
            (usual + odd, 2, 32)
        )
        flag = np.zeros(usual + odd, np.int64)
        flag[10 : 10 + odd] = 1
        x[flag == 1] *= np.sign(np.sin(np.arange(32) * 2.5))
        parts.append((x.astype(np.float32), flag, np.full(usual + odd, device)))
    x, flag, owner = (np.concatenate(part) for part in zip(*parts, strict=True))
    return {"X": x, "anomaly": flag, "subject": owner}


def area(scores: Array, odd: Array) -> float:
    """The area under the ROC curve, pair by pair."""
    above = scores[odd][:, None] - scores[~odd]
    return float(((above > 0) + 0.5 * (above == 0)).mean())


def test_the_area_is_that_of_the_devices_own_errors_of_anomalous_and_other_windows() -> None:
    given = arrays()
    fleet = shoal.load(given["X"], None, given["subject"], anomaly=given["anomaly"])
    run = shoal.simulate(fleet, algorithm=LEARNS, rounds=3, local_epochs=10)
    for device_id, device in run.summary.devices.items():
        held = run.data.devices[device_id]
        assert (held.num_train, held.num_test, int(held.test_y.sum())) == (45, 27, 12), (
            "all anomalies test, none trains"
        )
        expected = area(run.predict(held.test_x, device=device_id)[:, 0], held.test_y == 1)
        assert device.auc == pytest.approx(expected, abs=1e-5)
    assert run.auc.mean is not None
    assert run.auc.mean > 0.9
    assert run.summary.macro_f1 is None


def test_a_file_without_a_task_is_one_of_windows_that_are_given_back(tmp_path: Path) -> None:
    np.savez(tmp_path / "faults.npz", allow_pickle=False, **arrays())
    run = shoal.simulate(tmp_path / "faults.npz", rounds=1)
    assert run.summary.algorithm == "personal+reconstruction"
    assert run.auc.mean is not None
    comparison = shoal.compare([LEARNS], tmp_path / "faults.npz", rounds=1, seeds=1)
    assert comparison.rows[0]["auc"]["mean"] is not None


def test_classes_of_these_names_say_the_same_and_anomalies_of_the_training_part_are_left_out() -> (
    None
):
    given = arrays()
    names = np.array(["usual", "anomalous"])[given["anomaly"]]
    fleet = shoal.load(given["X"], names, given["subject"])
    assert fleet.classes == ("anomalous", "usual")
    assert task_of_labels(fleet) == "classification"
    made = for_task(fleet, "reconstruction")
    for device_id, windows in made.devices.items():
        before = fleet.devices[device_id]
        assert windows.num_train == int((before.train_y == 1).sum()) < before.num_train
        assert windows.test_y.tolist() == (before.test_y == 0).astype(int).tolist()


def test_windows_without_labels_are_trained_on_and_leave_what_the_test_part_says() -> None:
    def bare(w: Windows) -> Windows:
        return Windows(w.train_x[:0], w.train_y[:0], w.test_x, w.test_y, w.train_x)

    given = arrays()
    fleet = shoal.load(given["X"], None, given["subject"], anomaly=given["anomaly"])
    made = for_task(
        replace(fleet, devices={d: bare(w) for d, w in fleet.devices.items()}), "reconstruction"
    )
    assert [(w.num_train, int(w.test_y.sum())) for w in made.devices.values()] == [(45, 12)] * 2


@pytest.mark.parametrize("labels", [5, "none"])
def test_labels_that_say_anomalies_cannot_be_taken_away(labels: int | str) -> None:
    given = arrays()
    fleet = shoal.load(given["X"], None, given["subject"], anomaly=given["anomaly"])
    with pytest.raises(
        ConfigError, match=f"labels must be all, .* anomalous windows of data .*, got {labels}"
    ):
        shoal.simulate(fleet, algorithm=LEARNS, rounds=1, labels=labels)


def test_examples_of_a_pool_keep_their_anomalies(tmp_path: Path) -> None:
    given = arrays()
    np.savez(tmp_path / "pool.npz", X=given["X"], anomaly=given["anomaly"])
    made = for_task(shoal.load(tmp_path / "pool.npz"), "reconstruction")
    assert sum(int(w.test_y.sum()) for w in made.devices.values()) == 24
    assert sum(w.num_train for w in made.devices.values()) == 90


def test_without_anomalies_there_is_no_area() -> None:
    fleet: FleetData = synthetic_fleet(2, num_windows=40)
    run = shoal.simulate(fleet, algorithm=LEARNS, rounds=1)
    assert run.summary.auc is None
    assert "auc" not in msgspec.to_builtins(run.summary)
    with pytest.raises(ConfigError, match="do not say which test windows are anomalous"):
        _ = run.auc


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"anomaly": np.full(144, 2)}, "anomaly must be 1 .*, else 0, for each of 144 windows"),
        (
            {"anomaly": np.zeros(3, np.int64)},
            "anomaly must be 1 .*, else 0, for each of 144 windows",
        ),
        ({"y": np.zeros(144, np.int64)}, "has both anomaly and y"),
    ],
)
def test_what_says_no_anomalies_is_refused(
    tmp_path: Path, changed: dict[str, Array], said: str
) -> None:
    np.savez(tmp_path / "faults.npz", allow_pickle=False, **(arrays() | changed))
    with pytest.raises(DataError, match=said):
        shoal.load(tmp_path / "faults.npz")
