"""Windows of ids: integers from the data to the graphs, on every backend and client; or refused by
name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import shoal
from algorithms.composition import read_algorithm
from algorithms.models.registry import MODELS, OF_IDS
from edge_client.core.ports import Windows
from edge_client.data.windows import load_folder
from edge_client.graphs.onnx import OnnxGraphs
from edge_client.work.executor import Executor
from export.bundle import RUNTIMES
from export.describe import describe_bundle
from export.parity import check_parity
from export.publish import publish
from simulation.contract.rounds import small
from simulation.datasets.catalog import load_data
from simulation.datasets.windows import FleetData
from simulation.engine.graphs.eager import EagerGraphs
from simulation.engine.options import EngineOptions
from simulation.heterogeneity import measure
from simulation.objective import objective_for_fleet, objective_on
from simulation.partition import OF_MEASUREMENTS, assign, read_partition
from simulation.settings import BackendName, SimulationSettings
from simulation.simulate import SimulationResult, simulate
from tests.support.bundles import some_graphs
from tests.support.fleets import synthetic_fleet
from tests.support.ids import LENGTH, VOCABULARY, fleet_of_ids
from tests.support.known import known
from tests.support.objectives import OBJECTIVES
from tests.wire import ids_vectors
from wire.errors import ConfigError, DataError
from wire.identity.keys import new_key


def ran(
    algorithm: str, backend: BackendName = "auto", model: str = "", rounds: int = 4
) -> SimulationResult:
    options = (
        EngineOptions(backend, device="cpu") if backend == "batched" else EngineOptions(backend)
    )
    return simulate(
        fleet_of_ids(),
        SimulationSettings(read_algorithm(algorithm), rounds, model=model),
        engine=options,
    )


def save(path: Path, fleet: FleetData, **more: Any) -> Path:
    """The fleet as a ``.npz`` with subjects."""
    windows = fleet.devices.values()
    arrays: dict[str, Any] = {
        "X": np.concatenate([x for w in windows for x in (w.train_x, w.test_x)]),
        "y": np.concatenate([y for w in windows for y in (w.train_y, w.test_y)]),
        "subject": np.repeat(
            np.arange(len(fleet.devices)), [w.num_train + w.num_test for w in windows]
        ),
    }
    np.savez(path, **(arrays | more))
    return path


class TestReading:
    def test_a_vocabulary_in_the_file_says_that_x_holds_ids(self, tmp_path: Path) -> None:
        data = load_data(str(save(tmp_path / "events.npz", fleet_of_ids(), vocabulary=VOCABULARY)))
        assert (data.window.vocabulary, data.window.dtype) == (VOCABULARY, "int64")
        assert {w.train_x.dtype for w in data.devices.values()} == {np.dtype(np.int64)}
        assert data.channel_size().tolist() == [1.0]

    def test_whole_numbers_without_a_vocabulary_are_measurements(self, tmp_path: Path) -> None:
        data = load_data(str(save(tmp_path / "counts.npz", fleet_of_ids())))
        assert data.window.dtype == "float32"
        assert {w.train_x.dtype for w in data.devices.values()} == {np.dtype(np.float32)}

    def test_an_id_out_of_the_vocabulary_is_told_with_its_device_and_window(
        self, tmp_path: Path
    ) -> None:
        fleet = fleet_of_ids()
        fleet.devices["d1"].train_x[5, 0, 7] = VOCABULARY
        with pytest.raises(
            DataError,
            match=r"device s01: X must hold ids from 0 to 23, got 24 at window \d+, channel 0, "
            r"sample 7",
        ):
            load_data(str(save(tmp_path / "events.npz", fleet, vocabulary=VOCABULARY)))

    @pytest.mark.parametrize("wrong", [0, -1, 2.5, [3, 4], "many"])
    def test_a_vocabulary_is_a_whole_number(self, wrong: object, tmp_path: Path) -> None:
        with pytest.raises(
            DataError, match=r"vocabulary must be one whole number from 1, .*, got "
        ):
            load_data(str(save(tmp_path / "events.npz", fleet_of_ids(), vocabulary=wrong)))

    def test_floats_are_no_ids(self) -> None:
        x, y = np.random.default_rng(0).random((20, 1, 12)), np.arange(20) % 2
        with pytest.raises(
            DataError, match=r"X must hold ids from 0 to 9, whole numbers, got float"
        ):
            shoal.load(x, y, np.arange(20) % 4, vocabulary=10)

    def test_folders_of_devices_have_a_vocabulary_too(self, tmp_path: Path) -> None:
        for device_id, w in fleet_of_ids(2).devices.items():
            (tmp_path / device_id).mkdir()
            np.savez(
                tmp_path / device_id / "train.npz",
                X=w.train_x.astype(np.int32),
                y=w.train_y,
                vocabulary=VOCABULARY,
            )
            np.savez(tmp_path / device_id / "test.npz", X=w.test_x.astype(np.int32), y=w.test_y)
        data = load_data(str(tmp_path))
        assert data.window.vocabulary == VOCABULARY
        assert data.devices["d0"].train_x.dtype == data.devices["d0"].test_x.dtype == np.int64
        np.savez(
            tmp_path / "d1" / "train.npz",
            X=data.devices["d1"].train_x,
            y=data.devices["d1"].train_y,
            vocabulary=99,
        )
        with pytest.raises(
            DataError, match=r"must have the same vocabulary, got .* and 99 for device d1"
        ):
            load_data(str(tmp_path))

    def test_the_committed_vectors_are_what_the_client_does(self) -> None:
        assert ids_vectors.FILE.read_text() == ids_vectors.text(), (
            "run python -m tests.wire.write_vectors"
        )

    def test_the_page_writes_such_a_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        page = (
            (Path(__file__).parents[2] / "docs" / "own-data.md")
            .read_text()
            .partition("## Words and events")[2]
        )
        exec(page.partition("```python\n")[2].partition("```")[0], {})
        made = simulate(
            load_data("events.npz"), SimulationSettings(read_algorithm("fedavg:lr=0.1"), 12)
        )
        assert known(made.summary.accuracy.mean) > 0.8


class TestModels:
    @pytest.mark.parametrize("name", sorted(MODELS))
    def test_a_model_takes_ids_or_measurements_and_says_which(self, name: str) -> None:
        fleet = synthetic_fleet(2) if name in OF_IDS else fleet_of_ids()
        with pytest.raises(
            ConfigError, match=f"model {name} takes (ids|measurements), and the windows hold"
        ):
            objective_for_fleet(fleet, read_algorithm("fedavg"), 0, name)

    def test_a_model_of_ones_own_is_told_what_does_not_fit(self) -> None:
        def embedding(rows: int, **options: Any) -> nn.Module:
            return nn.Sequential(
                nn.Embedding(rows, 4, **options), nn.Flatten(), nn.Linear(4 * LENGTH, 3)
            )

        spec = read_algorithm("fedavg")
        with pytest.raises(
            ConfigError, match="cannot take ids from 0 to 23, as the data's vocabulary has them"
        ):
            objective_on(embedding(VOCABULARY - 1), fleet_of_ids(), spec, 0)
        with pytest.raises(
            ConfigError,
            match=r"it has an nn\.Embedding, and these are measurements; data of ids need a "
            r"`vocabulary`",
        ):
            objective_on(embedding(VOCABULARY), synthetic_fleet(2), spec, 0)
        for option in ({"sparse": True}, {"scale_grad_by_freq": True}, {"max_norm": 1.0}):
            with pytest.raises(
                ConfigError,
                match="is an Embedding with max_norm, scale_grad_by_freq or sparse, which are not",
            ):
                objective_on(embedding(VOCABULARY, **option), fleet_of_ids(), spec, 0)

    def test_a_model_of_ones_own_may_drop_values_of_its_embeddings(self) -> None:
        own = nn.Sequential(
            nn.Embedding(VOCABULARY, 4), nn.Flatten(), nn.Dropout(0.2), nn.Linear(4 * LENGTH, 3)
        )
        fleet, spec = fleet_of_ids(), read_algorithm("fedavg")
        made = simulate(
            fleet, SimulationSettings(spec, 2), objective=objective_on(own, fleet, spec, 0)
        )
        assert known(made.summary.accuracy.mean) >= 0


class TestTraining:
    @pytest.mark.parametrize("model", OF_IDS)
    def test_it_learns_the_classes(self, model: str) -> None:
        assert known(ran("fedavg:lr=0.05", model=model, rounds=6).summary.accuracy.mean) > 0.6

    @pytest.mark.parametrize("backend", ["batched", "messages"])
    def test_every_backend_makes_the_same_steps(self, backend: BackendName) -> None:
        eager, other = (ran("fedavg:lr=0.05", name) for name in ("eager", backend))
        assert eager.summary.accuracy.mean == pytest.approx(
            known(other.summary.accuracy.mean), abs=0.03
        )

    def test_auto_takes_another_backend_than_native_and_native_is_refused(self) -> None:
        assert ran("fedavg", rounds=1).summary.backend == "eager"
        with pytest.raises(
            ConfigError, match=r"backend native: extractor\.0\.embedding is Embedding"
        ):
            ran("fedavg", "native", rounds=1)

    @pytest.mark.representatives("fedavg", "distfl", "ditto")
    @pytest.mark.parametrize(
        "name", sorted({*OBJECTIVES, "personal:memory=16", "distfl", "ifca", "dp-sgd"})
    )
    def test_every_objective_trains_on_ids_or_is_refused_with_a_reason(self, name: str) -> None:
        if "feddisk" in name or name == "dp-sgd":
            with pytest.raises(
                ConfigError,
                match=r"estimates the density of measurements|a Embedding has no gradients per "
                r"example",
            ):
                ran(small(name) if name in OBJECTIVES else name, rounds=1)
            return
        assert (
            known(ran(small(name) if name in OBJECTIVES else name, rounds=1).summary.accuracy.mean)
            >= 0
        )

    def test_a_server_cannot_make_up_ids_to_ask_models_about(self) -> None:
        with pytest.raises(ConfigError, match=r"needs .* windows of measurements rather than ids"):
            ran("distfl:signature=responses", rounds=1)

    @pytest.mark.parametrize("name", OF_MEASUREMENTS)
    def test_partitions_of_measurements_are_refused(self, name: str) -> None:
        with pytest.raises(
            ConfigError,
            match=f"partition {name} needs measurements, and data events holds ids",
        ):
            assign(fleet_of_ids(), read_partition(name), 2, 0)


@pytest.mark.parametrize("vocabulary", [8, 1000])
def test_heterogeneity_tells_devices_with_other_ids_apart(vocabulary: int) -> None:
    rng = np.random.default_rng(0)

    def measured(apart: int) -> float:
        drawn = [rng.integers(0, 4, (200, 1, 12)) + apart * number for number in range(2)]
        x, owner = np.concatenate(drawn), np.repeat([0, 1], 200)
        return measure(shoal.load(x, np.arange(400) % 2, owner, vocabulary=vocabulary))["gamma"]

    assert measured(4) > 3 * measured(0)


class TestDevices:
    @pytest.mark.slow
    @pytest.mark.parametrize("model", OF_IDS)
    def test_graphs_of_boards_and_phones_are_those_of_torch(self, model: str) -> None:
        fleet = fleet_of_ids()
        objective = some_graphs(
            objective_for_fleet(fleet, read_algorithm("fedavg"), 0, model),
            "step",
            "evaluate",
            "predict",
        )
        published = publish(
            objective,
            fleet.window,
            fleet.classes,
            fleet.sample(),
            new_key(),
            name="ids",
            runtimes=RUNTIMES,
        )
        assert published.parity.step_error < 1e-5

    @pytest.mark.full
    def test_a_board_trains_on_the_whole_numbers_of_its_folder(self, tmp_path: Path) -> None:
        fleet = fleet_of_ids()
        w = fleet.devices["d0"]
        np.savez(tmp_path / "train.npz", X=w.train_x.astype(np.int16), y=w.train_y)
        np.savez(tmp_path / "test.npz", X=w.test_x.astype(np.int32), y=w.test_y)
        objective = some_graphs(
            objective_for_fleet(fleet, read_algorithm("fedavg"), 0, "text-mlp"),
            "step",
            "evaluate",
            "predict",
        )
        published = publish(
            objective, fleet.window, fleet.classes, fleet.sample(), new_key(), name="ids"
        )
        assert (
            check_parity(published.bundle, objective, *fleet.sample(), steps=20).step_error < 1e-5
        )
        read, bundle = load_folder(tmp_path), published.bundle
        clients = (
            Executor(bundle, graphs, read)
            for graphs in (OnnxGraphs(bundle), EagerGraphs(objective))
        )
        board, eager = (client.predict(bundle.initial, {}, read.test_x) for client in clients)
        np.testing.assert_allclose(board, eager, atol=1e-6)

    def test_windows_that_do_not_fit_the_bundle_are_refused(self) -> None:
        fleet = fleet_of_ids()
        objective = objective_for_fleet(fleet, read_algorithm("fedavg"), 0)
        bundle, w = (
            describe_bundle(objective, name="ids", classes=fleet.classes, window=fleet.window),
            fleet.devices["d0"],
        )
        wrong = w.train_x.copy()
        wrong[3, 0, 2] = -1
        with pytest.raises(
            DataError,
            match="training windows: X must hold ids from 0 to 23, got -1 at window 3, channel 0, "
            "sample 2",
        ):
            Executor(bundle, EagerGraphs(objective), Windows(wrong, w.train_y, w.test_x, w.test_y))
        with pytest.raises(
            DataError, match=r"test windows: X must hold ids .*, got float32\[12, 1, 12\]"
        ):
            Executor(
                bundle,
                EagerGraphs(objective),
                Windows(w.train_x, w.train_y, w.test_x.astype(np.float32), w.test_y),
            )

    def test_integer_counts_of_a_sensor_train_as_the_same_numbers_in_floats(self) -> None:
        fleet = synthetic_fleet(1)
        objective, w = objective_for_fleet(fleet, read_algorithm("fedavg"), 0), fleet.devices["d0"]
        bundle = describe_bundle(
            objective, name="counts", classes=fleet.classes, window=fleet.window
        )
        counts = np.round(100 * w.test_x).astype(np.int16)
        of_counts, of_floats = (
            Executor(bundle, EagerGraphs(objective), Windows(x, w.test_y, x, w.test_y)).predict(
                bundle.initial, {}, x
            )
            for x in (counts, counts.astype(np.float32))
        )
        np.testing.assert_array_equal(of_counts, of_floats)


def test_an_embedding_moves_the_rows_of_the_ids_that_it_saw() -> None:
    objective = objective_for_fleet(fleet_of_ids(), read_algorithm("fedavg"), 0, "text-mlp")
    tensors = objective.initial()
    x = torch.full((4, 1, LENGTH), 7)
    hyper = {name: torch.tensor(value) for name, value in objective.hyper.items()}
    made = objective.graphs()["step"](
        tensors, {"x": x, "y": torch.zeros(4, dtype=torch.int64)}, hyper
    )
    (key,) = [key for key in tensors if key.endswith("embedding.weight") and "momentum" not in key]
    moved = (made[f"next/{key}"] != tensors[key]).any(1)
    assert moved.nonzero().flatten().tolist() == [7]
