"""The fleet on one machine: same seed, same bits; the groups of the real watches; data sets and
what is wrong with them."""

import os
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from aggregator.view.summary import Groups
from algorithms.composition import read_algorithm
from edge_client.data.labels import last_share_of_each_class
from simulation.datasets.catalog import load_data
from simulation.datasets.npz import load_npz
from simulation.datasets.uci_har import SIGNALS
from simulation.datasets.watch import LENGTH
from simulation.datasets.windows import FleetData, cut_windows, select_devices
from simulation.engine.options import EngineOptions
from simulation.partition import partition, read_partition
from simulation.settings import SimulationSettings
from simulation.simulate import SimulationResult, simulate
from tests.support.fleets import synthetic_fleet
from tests.support.known import known
from wire.errors import ConfigError, DataError

SEEDS = [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3, 4))]


def run(
    data: FleetData, algorithm: str = "distfl", rounds: int = 2, seed: int = 0, **others: Any
) -> SimulationResult:
    return simulate(
        data, SimulationSettings(read_algorithm(algorithm), rounds, seed=seed, **others)
    )


def agreement(outcome: SimulationResult, data: FleetData) -> float:
    ids = sorted(data.devices)
    groups = [outcome.summary.devices[d].group for d in ids]
    return float(adjusted_rand_score([data.truth[d] for d in ids], groups))


@pytest.mark.parametrize("algorithm", ["fedavg", "distfl"])
def test_same_seed_same_bits(fleet: FleetData, algorithm: str) -> None:
    one, two = run(fleet, algorithm), run(fleet, algorithm)
    assert one.campaign.models == two.campaign.models
    assert one.summary.accuracy == two.summary.accuracy
    assert run(fleet, algorithm, seed=1).campaign.models != one.campaign.models


def test_summary_has_every_field(fleet: FleetData) -> None:
    summary = run(fleet).summary
    written = msgspec.to_builtins(summary)
    expected = {
        "algorithm",
        "data",
        "rounds",
        "seed",
        "devices",
        "accuracy",
        "groups",
        "bytes",
        "wall_s",
        "updates_per_s",
        "versions",
    }
    assert expected <= written.keys()
    assert written["devices"]["d0"].keys() == {
        "group",
        "num_train",
        "placed",
        "num_test",
        "accuracy",
        "loss",
        "macro_f1",
        "auc",
        "mae",
        "personal_model",
    }
    assert (
        written["accuracy"].keys()
        == written["macro_f1"].keys()
        == {"mean", "std", "worst", "worst_tenth"}
    )
    assert (written["labels"], written["split"]) == ("all", "own")
    assert written["groups"] == {"count": 1, "by_round": [1, 1]}
    assert summary.bytes.up > 0 < summary.bytes.down
    accuracies = [known(d.accuracy) for d in summary.devices.values()]
    assert summary.accuracy.mean == pytest.approx(np.mean(accuracies), abs=1e-5)
    assert summary.accuracy.worst == pytest.approx(min(accuracies), abs=1e-5)
    assert len(summary.accuracy_by_round) == summary.rounds


def test_training_learns() -> None:
    summary = simulate(
        synthetic_fleet(), SimulationSettings(read_algorithm("fedavg"), 12, hyper={"lr": 0.02})
    ).summary
    assert known(summary.accuracy.mean) > 0.9
    assert known(summary.accuracy_by_round[0].mean) < known(summary.accuracy.mean)


@pytest.mark.parametrize("backend", ["eager", "messages"])
def test_training_ends_when_it_gets_no_better(fleet: FleetData, backend: str) -> None:
    settings = SimulationSettings(read_algorithm("fedavg"), 50, patience=2, min_delta=1.0)
    outcome = simulate(fleet, settings, engine=EngineOptions(backend=backend))  # type: ignore[arg-type]  # one of the names
    assert (outcome.campaign.trained, len(outcome.summary.accuracy_by_round)) == (3, 3)
    assert "has not improved by more than 1 for 2 rounds" in outcome.summary.ended


def test_a_fleet_with_two_sensors_falls_into_two_groups() -> None:
    data = synthetic_fleet(num_devices=12, shift=1.0)
    outcome = run(data)
    assert agreement(outcome, data) == 1.0


@pytest.mark.representatives("0")
@pytest.mark.parametrize("seed", SEEDS)
def test_watches_fall_into_the_two_arms(watch: FleetData, seed: int) -> None:
    outcome = run(watch, seed=seed)
    assert outcome.summary.groups.by_round == [2, 2]
    assert agreement(outcome, watch) == 1.0


@pytest.mark.full
@pytest.mark.parametrize("seed", SEEDS)
def test_watch_windows_dealt_at_random_stay_one_group(watch: FleetData, seed: int) -> None:
    assert run(partition(watch, read_partition("iid"), seed), seed=seed).summary.groups == Groups(
        count=1, by_round=[1, 1]
    )


@pytest.mark.representatives("statistics")
@pytest.mark.parametrize("signature", ["responses", "noise", "statistics", "labels"])
def test_every_signature_alone_runs(watch: FleetData, signature: str) -> None:
    outcome = run(watch, f"distfl:signature={signature}", rounds=1)
    assert signature in {
        test["view"] for record in outcome.records for test in record.notes.get("tests", ())
    }
    assert signature != "statistics" or agreement(outcome, watch) == 1.0


@pytest.mark.full
def test_distfl_is_well_above_fedavg_on_the_watches(watch: FleetData) -> None:
    accuracies = {
        name: known(run(watch, name, rounds=20).summary.accuracy.mean)
        for name in ("distfl", "fedavg")
    }
    assert accuracies["distfl"] > accuracies["fedavg"] + 0.05, accuracies


@pytest.mark.slow
def test_distfl_is_eight_points_above_fedavg_over_five_seeds(watch: FleetData) -> None:
    gains = []
    for seed in range(5):
        distfl, fedavg = (
            known(run(watch, name, rounds=20, seed=seed).summary.accuracy.mean)
            for name in ("distfl", "fedavg")
        )
        gains.append(distfl - fedavg)
    assert np.mean(gains) >= 0.08, gains


HAS_UCI_HAR = (
    Path(os.environ.get("SHOAL_DATA", "/nonexistent")) / "uci_har" / "uci_har.npz"
).exists()
needs_uci_har = pytest.mark.skipif(
    not HAS_UCI_HAR,
    reason="SHOAL_DATA names no folder with uci_har/uci_har.npz; that would run this",
)


@pytest.mark.full
@needs_uci_har
def test_uci_har_runs_and_distfl_is_not_below_fedavg() -> None:
    data = select_devices(load_data("uci-har"), 20)
    accuracies = {
        name: known(run(data, name, rounds=3).summary.accuracy.mean)
        for name in ("distfl", "fedavg")
    }
    assert accuracies["distfl"] >= accuracies["fedavg"] - 0.005, accuracies


class TestWatch:
    def test_devices_and_shapes(self, watch: FleetData) -> None:
        assert sorted(watch.devices)[:3] == ["p01-left", "p01-right", "p02-left"]
        assert len(watch.devices) == 20
        assert all(w.train_x.shape[1:] == (6, LENGTH) for w in watch.devices.values())
        assert all(set(w.train_y.tolist()) == set(range(7)) for w in watch.devices.values())

    def test_no_window_is_shared_between_train_and_test(self, watch: FleetData) -> None:
        for windows in watch.devices.values():
            train = {
                x.tobytes()
                for x in np.lib.stride_tricks.sliding_window_view(windows.train_x, 16, axis=2)[
                    :, :, ::16
                ].reshape(-1, 6 * 16)
            }
            test = {
                x.tobytes()
                for x in np.lib.stride_tricks.sliding_window_view(windows.test_x, 16, axis=2)[
                    :, :, ::16
                ].reshape(-1, 6 * 16)
            }
            assert not train & test


class TestNpz:
    def arrays(self, **changes: np.ndarray | None) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(0)
        arrays = {
            "X": rng.normal(size=(24, 2, 16)).astype(np.float32),
            "y": np.tile([0, 1], 12),
            "subject": np.repeat([3, 7], 12),
        }
        return {k: v for k, v in {**arrays, **changes}.items() if v is not None}

    def load(self, tmp_path: Path, **changes: np.ndarray | None) -> FleetData:
        np.savez(tmp_path / "data.npz", allow_pickle=False, **self.arrays(**changes))
        data = load_npz(tmp_path / "data.npz")
        assert isinstance(data, FleetData)
        return data

    def test_one_device_per_subject_and_the_last_quarter_of_each_class(
        self, tmp_path: Path
    ) -> None:
        data = self.load(tmp_path)
        assert sorted(data.devices) == ["s03", "s07"]
        windows = data.devices["s03"]
        assert (windows.num_train, windows.num_test) == (8, 4)
        np.testing.assert_array_equal(windows.test_x, self.arrays()["X"][8:12])

    def test_split_is_used_where_a_subject_has_both_parts(self, tmp_path: Path) -> None:
        split = np.array(["train"] * 6 + ["test"] * 6 + ["train"] * 12)
        data = self.load(tmp_path, split=split)
        assert data.devices["s03"].num_test == 6
        assert data.devices["s07"].num_test == 4

    @pytest.mark.parametrize(
        ("changes", "error"),
        [
            ({"X": None}, "array 'X' is missing"),
            ({"X": np.zeros((24, 32), np.float32)}, r"X is float32\[24, 32\]"),
            ({"y": np.zeros(5, int)}, r"y is int64\[5\], expected int\[24\]"),
            ({"y": np.full(24, -1)}, "must hold class numbers from 0"),
            ({"X": np.full((24, 2, 16), np.nan, np.float32)}, "must hold finite values"),
            ({"split": np.array(["dev"] * 24)}, "split"),
        ],
    )
    def test_wrong_file_is_one_clear_error(
        self, tmp_path: Path, changes: dict[str, np.ndarray | None], error: str
    ) -> None:
        with pytest.raises(DataError, match=error):
            self.load(tmp_path, **changes)

    def test_file_that_is_no_npz(self, tmp_path: Path) -> None:
        (tmp_path / "x.npz").write_bytes(b"not a zip")
        with pytest.raises(
            DataError,
            match=r"x\.npz is not a \.npz file, which is an archive of arrays as numpy\.savez "
            r"writes it$",
        ):
            load_npz(tmp_path / "x.npz")

    def test_file_with_python_objects(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "x.npz", X=np.zeros((2, 2, 16)), y=np.array([None] * 2))
        with pytest.raises(
            DataError, match=r"an array holds Python objects or is cut off. A file has X "
        ) as error:
            load_npz(tmp_path / "x.npz")
        assert "pickle" not in str(error.value)

    def test_unknown_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(
            DataError,
            match=r"No data set 'imagenet'\. Known data sets: watch, watch-session, uci-har, ",
        ):
            load_data("imagenet")
        monkeypatch.delenv("SHOAL_DATA", raising=False)
        with pytest.raises(DataError, match="is in the folder of SHOAL_DATA, which is not set"):
            load_data("uci-har")


class TestUciHarForms:
    def write(self, root: Path) -> None:
        rng = np.random.default_rng(0)
        for split, subjects in (("train", [1] * 12), ("test", [2] * 12)):
            folder = root / "UCI HAR Dataset" / split
            (folder / "Inertial Signals").mkdir(parents=True)
            for name in SIGNALS:
                np.savetxt(
                    folder / "Inertial Signals" / f"{name}_{split}.txt", rng.normal(size=(12, 128))
                )
            np.savetxt(folder / f"y_{split}.txt", np.repeat([1, 6], 6), fmt="%d")
            np.savetxt(folder / f"subject_{split}.txt", subjects, fmt="%d")

    def test_folder_and_zip_read_the_same(self, tmp_path: Path) -> None:
        self.write(tmp_path)
        with zipfile.ZipFile(tmp_path / "uci.zip", "w") as archive:
            for path in (tmp_path / "UCI HAR Dataset").rglob("*.txt"):
                archive.write(path, path.relative_to(tmp_path))
        from_folder, from_zip = (
            load_data(str(tmp_path / "UCI HAR Dataset")),
            load_data(str(tmp_path / "uci.zip")),
        )
        assert sorted(from_folder.devices) == sorted(from_zip.devices) == ["s01", "s02"]
        windows = from_folder.devices["s01"]
        np.testing.assert_array_equal(windows.train_x, from_zip.devices["s01"].train_x)
        assert (windows.num_train, windows.num_test) == (6, 4)

    def test_missing_file_is_named(self, tmp_path: Path) -> None:
        self.write(tmp_path)
        (tmp_path / "UCI HAR Dataset" / "test" / "y_test.txt").unlink()
        with pytest.raises(DataError, match="y_test"):
            load_data(str(tmp_path / "UCI HAR Dataset"))


def test_cut_windows() -> None:
    windows = cut_windows(np.arange(20).reshape(10, 2), 4, 3)
    assert windows.shape == (3, 2, 4)
    assert windows[1, 0].tolist() == [6, 8, 10, 12]
    assert cut_windows(np.zeros((3, 2)), 4, 1).shape == (0, 2, 4)


def test_last_share_of_each_class() -> None:
    assert last_share_of_each_class(np.array([0, 0, 0, 0, 1, 1, 2])).tolist() == [
        False,
        False,
        False,
        True,
        False,
        True,
        False,
    ]
    for count, share, expected in ((10, 0.04, 1), (10, 0.99, 9), (2, 0.9, 1), (1, 0.5, 0)):
        assert last_share_of_each_class(np.zeros(count), share).sum() == expected


def test_select_devices_refuses_more_than_there_are(fleet: FleetData) -> None:
    assert sorted(select_devices(fleet, 2).devices) == ["d0", "d1"]
    with pytest.raises(
        DataError, match="devices must be between 1 and 4, the devices of data synthetic, got 99"
    ):
        select_devices(fleet, 99)


def test_unknown_partition(fleet: FleetData) -> None:
    with pytest.raises(ConfigError, match=r"No partition 'x'. Known partitions: user, iid"):
        partition(fleet, read_partition("x"), 0)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("subjects", "subject"), ("channel_name", "channel_names"), ("sessions", "session")],
)
def test_a_mistyped_array_is_refused_and_others_may_be_there(
    tmp_path: Path, name: str, meant: str
) -> None:
    x, y, path = np.zeros((8, 3, 16), np.float32), np.arange(8) % 2, tmp_path / "mine.npz"
    np.savez(path, X=x, y=y, sampling_hz=50)
    load_npz(path)
    arrays: dict[str, Any] = {"X": x, "y": y, name: np.arange(8)}
    np.savez(path, **arrays)
    with pytest.raises(DataError, match=f"unknown array '{name}'. Did you mean '{meant}'"):
        load_npz(path)
