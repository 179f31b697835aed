"""`shoal.simulate` and its `Result`: numbers, models as modules and as files, predictions. Files
are read without Shoal."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors import safe_open
from sklearn.metrics import confusion_matrix, f1_score
from torch import nn

import shoal
from algorithms.composition import read_algorithm
from algorithms.models.classifier import Classifier
from algorithms.objectives.fedavg import FedAvg
from simulation.scenario import Labels
from simulation.settings import SimulationSettings
from simulation.simulate import simulate as by_settings
from tests.shoal.small import small
from tests.support.fleets import synthetic_fleet
from wire.errors import ConfigError

ALGORITHMS = [
    "fedavg",
    "distfl",
    "personal",
    "dbe",
    "fedper",
    "fedbn",
    "ditto",
    "apfl",
    "fedrod",
    "scaffold",
    "ifca:k=2",
    "cgau",
]
SMALL: dict[str, Any] = {"rounds": 2, "lr": 0.05}


class Results(dict[str, shoal.Result]):
    """A run of each algorithm, made when it is first asked for."""

    def __missing__(self, name: str) -> shoal.Result:
        model = "" if name == "cgau" else small
        fleet = synthetic_fleet(4, shift=0.5)
        self[name] = shoal.simulate(fleet, algorithm=name, model=model, **SMALL)
        return self[name]


@pytest.fixture(scope="module")
def results() -> Results:
    return Results()


def test_it_is_what_the_simulation_is(results: Results) -> None:
    fleet = synthetic_fleet(4, shift=0.5)
    ours = shoal.simulate(fleet, algorithm="distfl", labels=5, seed=3, rounds=2)
    theirs = by_settings(fleet, SimulationSettings(read_algorithm("distfl"), 2, labels="5", seed=3))
    assert ours.outcome.campaign.models == theirs.campaign.models
    assert (ours.accuracy, ours.macro_f1) == (theirs.summary.accuracy, theirs.summary.macro_f1)
    assert ours.data.devices["d0"].num_train == 15


def test_a_name_is_loaded_and_partitioned_as_the_command_does() -> None:
    result = shoal.simulate("watch", algorithm="fedavg", partition="dirichlet", devices=3, rounds=1)
    assert sorted(result.data.devices) == ["d01", "d02", "d03"]
    assert [len(devices) for devices in result.groups.values()] == [3]


class TestNumbers:
    def test_evaluations_are_those_of_every_round(self, results: Results) -> None:
        result = results["distfl"]
        assert [(e.device, e.round) for e in result.evaluations] == [
            (f"d{i}", number) for number in range(3) for i in range(4)
        ]
        for number, spread in enumerate(result.summary.accuracy_by_round, start=1):
            values = [e.accuracy for e in result.evaluations if e.round == number]
            assert np.mean(values) == pytest.approx(spread.mean, abs=1e-6)
        assert [e.final for e in result.evaluations].count(True) == 4
        assert {e.group for e in result.evaluations if e.round == 0} == {None}
        last = {e.device: e for e in result.evaluations if e.final}
        assert {d: e.group for d, e in last.items()} == {
            d: s.group for d, s in result.summary.devices.items()
        }
        assert {d: round(e.accuracy, 6) for d, e in last.items()} == {
            d: round(s.accuracy or 0, 6) for d, s in result.summary.devices.items()
        }

    def test_rounds_have_what_was_measured(self, results: Results) -> None:
        rounds = results["personal"].rounds
        assert [(r.round, r.phase, r.evaluated) for r in rounds] == [
            (1, "training", 0),
            (2, "training", 1),
            (2, "evaluating", 2),
        ]
        assert rounds[-1].accuracy_mean == results["personal"].accuracy.mean
        assert rounds[0].loss is not None
        assert rounds[1].loss is not None
        assert rounds[0].loss > rounds[1].loss > 0
        assert sum(r.bytes_up for r in rounds) == results["personal"].summary.bytes.up

    def test_a_table_has_a_row_for_each_record(self, results: Results) -> None:
        pytest.importorskip(
            "pandas", reason="pandas is not installed: pip install 'shoal[pandas]' would run this"
        )
        result = results["distfl"]
        table = result.accuracies
        assert list(table.columns) == [
            "device",
            "round",
            "group",
            "accuracy",
            "loss",
            "num_test",
            "final",
        ]
        assert table["accuracy"].tolist() == [e.accuracy for e in result.evaluations]
        assert table["group"].dropna().unique().tolist() == [
            int(g) for g in table["group"].dropna().unique()
        ]

    def test_without_pandas_an_error_says_what_installs_it(
        self, results: Results, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(__import__("sys").modules, "pandas", None)
        with pytest.raises(
            shoal.ConfigError,
            match=r"a DataFrame needs the package pandas: pip install 'shoal\[pandas\]'",
        ):
            _ = results["distfl"].accuracies

    def test_predictions_confusions_and_f1_agree_with_scikit_learn(self, results: Results) -> None:
        result = results["personal"]
        scores = []
        for device_id, windows in result.data.devices.items():
            predicted = result.predictions(device_id)
            np.testing.assert_array_equal(
                result.confusion(device_id),
                confusion_matrix(windows.test_y, predicted, labels=[0, 1, 2]),
            )
            scores.append(f1_score(windows.test_y, predicted, average="macro"))
        assert result.macro_f1.mean == pytest.approx(np.mean(scores), abs=1e-6)
        assert result.confusion().trace() == round((result.accuracy.mean or 0) * 48)
        assert result.confusion().sum() == 48


@pytest.mark.representatives("distfl", "personal", "scaffold")
@pytest.mark.parametrize("name", ALGORITHMS)
class TestModels:
    def test_a_devices_model_answers_as_the_device_does(self, name: str, results: Results) -> None:
        """The engine answers through the device's executor; the module is torch alone."""
        result = results[name]
        for device_id, windows in result.data.devices.items():
            expected = result.outcome.predict(device_id, windows.test_x)
            module = result.model(device=device_id)
            with torch.no_grad():
                answers = torch.softmax(module(torch.from_numpy(windows.test_x)), 1).numpy()
            np.testing.assert_allclose(answers, expected, atol=2e-6)
            np.testing.assert_allclose(
                result.predict(windows.test_x, device=device_id), expected, atol=2e-6
            )

    def test_files_answer_as_the_device_does(
        self, name: str, results: Results, tmp_path: Path
    ) -> None:
        result = results[name]
        written = result.save(tmp_path, devices=["d1"])
        listed = json.loads((tmp_path / "models.json").read_text())
        assert [entry["name"] for entry in listed] == [one.name for one in written]
        (own,) = [one for one in written if one.device]
        assert own.files == ("device-d1.safetensors", "device-d1.pt", "device-d1.onnx"), (
            own.left_out
        )
        assert {file for one in written for file in one.files} | {"models.json"} == {
            path.name for path in tmp_path.iterdir()
        }
        x = result.data.devices["d1"].test_x
        session = onnxruntime.InferenceSession(tmp_path / "device-d1.onnx")
        np.testing.assert_allclose(
            session.run(None, {"x": x})[0], result.outcome.predict("d1", x), atol=2e-5
        )
        about = session.get_modelmeta().custom_metadata_map
        assert (about["name"], about["classes"]) == ("device d1", "slow\nmiddle\nfast")
        module, fresh = result.model(device="d1"), result.model(device="d0")
        if isinstance(fresh, type(module)):
            fresh.load_state_dict(
                torch.load(tmp_path / "device-d1.pt", weights_only=True)["state_dict"]
            )
            with torch.no_grad():
                assert torch.equal(fresh(torch.from_numpy(x)), module(torch.from_numpy(x)))
        held = result.outcome.models.of_device("d1")
        with safe_open(tmp_path / "device-d1.safetensors", "numpy") as file:
            keys = set(file.keys())
            assert keys == {key for key in held if not key.startswith("slot/")}
            for key in keys:
                np.testing.assert_array_equal(file.get_tensor(key), held[key])

    def test_a_groups_model_is_what_its_devices_receive(
        self, name: str, results: Results, tmp_path: Path
    ) -> None:
        result = results[name]
        written = result.save(tmp_path, devices=[])
        assert [one.group for one in written] == list(result.groups)
        for group in result.groups:
            received = result.outcome.models.of_group(str(group))
            own = [
                key for key in result.outcome.models.of_device("d0") if key.startswith("private/")
            ]
            missing = [
                key
                for key in own
                if key.removeprefix("private/")
                in dict(result.outcome.models.objective.model.named_parameters())
            ]
            if missing and f"shared/{missing[0].removeprefix('private/')}" not in received:
                with pytest.raises(
                    shoal.ConfigError,
                    match=f"group {group}: .* on each device, so this model is not whole",
                ):
                    result.model(group=group)
                assert written[0].files == (f"group-{group}.safetensors",)
                assert "so this model is not whole" in written[0].left_out
                continue
            module = result.model(group=group)
            assert isinstance(module, Classifier)
            for key, value in module.named_parameters():
                np.testing.assert_array_equal(value.detach().numpy(), received[f"shared/{key}"])
            x = result.data.devices["d0"].test_x
            session = onnxruntime.InferenceSession(tmp_path / f"group-{group}.onnx")
            np.testing.assert_allclose(
                session.run(None, {"x": x})[0], result.predict(x, group=group), atol=2e-5
            )


class TestOwnModels:
    def test_what_remembers_windows_is_no_bare_network(self, results: Results) -> None:
        result = results["personal"]
        modules = {d: result.model(device=d) for d in result.data.devices}
        shares = {d: float(result.outcome.models.of_device(d)["memory/share"]) for d in modules}
        assert any(shares.values())
        for device_id, module in modules.items():
            assert isinstance(module, shoal.OwnModel) == (shares[device_id] > 0)
            if isinstance(module, shoal.OwnModel):
                assert {"memory/keys", "memory/units", "memory/labels", "memory/share"} <= set(
                    module.kept
                )
                x = torch.from_numpy(result.data.devices[device_id].test_x)
                with torch.no_grad():
                    assert not torch.allclose(
                        torch.softmax(module(x), 1), torch.softmax(module.network(x), 1), atol=1e-3
                    )

    def test_a_copy_may_be_changed(self, results: Results) -> None:
        result = results["fedavg"]
        x = result.data.devices["d0"].test_x
        before = result.predict(x)
        model = result.model()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        np.testing.assert_array_equal(result.predict(x), before)

    def test_a_module_starts_with_its_own_weights_and_is_left_alone(self) -> None:
        torch.manual_seed(7)
        module, fleet = small((2, 32), 3), synthetic_fleet(3)
        before = {key: value.clone() for key, value in module.state_dict().items()}
        still = shoal.simulate(fleet, algorithm="fedavg", model=module, rounds=1, lr=0.0)
        for value, other in zip(module.parameters(), still.model().parameters(), strict=True):
            torch.testing.assert_close(
                value, other, rtol=0, atol=1e-7
            )  # a mean of equal values rounds
        moved = shoal.simulate(fleet, algorithm="fedavg", model=module, rounds=1)
        assert any(
            not torch.equal(v, o)
            for v, o in zip(module.parameters(), moved.model().parameters(), strict=True)
        )
        assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())

    @pytest.mark.full
    @pytest.mark.parametrize("name", ["fedavg", "personal+adamw"])
    def test_a_model_with_frozen_layers_has_all_its_files_and_they_hold_what_is_frozen(
        self, name: str, tmp_path: Path
    ) -> None:
        module = small((2, 32), 3)
        assert isinstance(module, nn.Sequential)
        module[:2].requires_grad_(False)
        before = module.state_dict()["0.weight"].numpy()
        result = shoal.simulate(synthetic_fleet(2), algorithm=name, model=module, rounds=2)
        assert all(not one.left_out for one in result.save(tmp_path))
        with safe_open(tmp_path / "device-d1.safetensors", "numpy") as file:
            np.testing.assert_array_equal(file.get_tensor("slot/frozen.extractor.0.weight"), before)
        x = result.data.devices["d1"].test_x
        answers = onnxruntime.InferenceSession(tmp_path / "device-d1.onnx").run(None, {"x": x})[0]
        np.testing.assert_allclose(answers, result.outcome.predict("d1", x), atol=2e-5)
        with torch.no_grad():
            own = torch.softmax(result.model(device="d1")(torch.from_numpy(x)), 1).numpy()
        np.testing.assert_allclose(own, answers, atol=2e-5)

    @pytest.mark.parametrize("backend", ["eager", "messages"])
    def test_backends_have_the_same_models(self, backend: str) -> None:
        fleet = synthetic_fleet(3)
        result = shoal.simulate(fleet, algorithm="personal", model=small, rounds=1, backend=backend)
        x = fleet.devices["d2"].test_x
        np.testing.assert_allclose(
            result.predict(x, device="d2"), result.outcome.predict("d2", x), atol=2e-6
        )
        assert result.predict(x[:0], device="d2").shape == (0, 3)

    def test_file_names_of_devices_are_safe(self, tmp_path: Path) -> None:
        fleet = synthetic_fleet(2)
        named = shoal.load(
            {
                "a/../b": (fleet.devices["d0"].train_x, fleet.devices["d0"].train_y),
                "ü 1": fleet_pair(fleet),
            }
        )
        shoal.simulate(named, algorithm="fedavg", model=small, rounds=1).save(tmp_path / "models")
        assert {p.name for p in tmp_path.iterdir()} == {"models"}
        assert (tmp_path / "models" / "device-a%2F..%2Fb.onnx").exists()

    def test_what_cannot_be_exported_is_listed_with_its_reason(self, tmp_path: Path) -> None:
        layers = (nn.Conv1d(2, 6, 3), nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(24, 3))
        result = shoal.simulate(
            synthetic_fleet(2), algorithm="fedavg", model=nn.Sequential(*layers), rounds=1
        )
        for written in result.save(tmp_path):
            assert written.files == (f"{written.name}.safetensors", f"{written.name}.pt")
            assert written.left_out.startswith("AdaptiveAvgPool from [1, 30] to [1, 4] values")


def fleet_pair(fleet: shoal.FleetData) -> Any:
    """Examples of the second device."""
    return fleet.devices["d1"].train_x, fleet.devices["d1"].train_y


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"device": "d9"}, r"No device 'd9'\. Known devices: d0, d1, d2, d3\."),
        ({"group": 9}, r"No group 9\. Known groups: 0\."),
        ({"group": 0, "device": "d0"}, r"Name a group \(0\) or a device \('d0'\), not both"),
    ],
)
def test_models_that_are_not_there_are_one_clear_error(
    asked: dict[str, Any], said: str, results: Results
) -> None:
    with pytest.raises(shoal.ConfigError, match=said):
        results["fedavg"].model(**asked)


def test_windows_of_another_shape_are_one_clear_error(results: Results) -> None:
    with pytest.raises(
        shoal.DataError, match=r"x must be numbers of shape \(n, 2, 32\), got float64\[1, 5\]"
    ):
        results["fedavg"].predict(np.zeros((1, 5)))
    with pytest.raises(shoal.ConfigError, match="No device 'd9'"):
        results["fedavg"].confusion("d9")


@pytest.mark.parametrize("algorithm", [nn.Linear, 3])
def test_what_is_no_algorithm_is_one_clear_error(algorithm: Any) -> None:
    with pytest.raises(
        shoal.ConfigError, match=r"must be a class derived from|must be a name, a class"
    ):
        shoal.simulate(synthetic_fleet(2), algorithm=algorithm, rounds=1)
    with pytest.raises(
        shoal.ConfigError, match=r"must be a class derived from|must be a name, a class"
    ):
        shoal.compare([algorithm], synthetic_fleet(2), rounds=1)


def test_a_warning_says_that_there_is_nothing_to_learn() -> None:
    x = np.zeros((9, 2, 16), np.float32)
    with pytest.warns(
        UserWarning, match="all training examples are of class 1, so there is nothing to learn"
    ):
        shoal.simulate(
            shoal.load({"a": (x, np.ones(9, int))}), algorithm="fedavg", model=small, rounds=1
        )


def test_a_class_of_ones_own_is_an_algorithm() -> None:
    class Heavier(FedAvg):
        """FedAvg by another name."""

        name = "heavier"

    assert (
        shoal.simulate(synthetic_fleet(2), algorithm=Heavier, rounds=1).summary.algorithm
        == "python:Heavier"
    )


@pytest.mark.full
@pytest.mark.parametrize("labels", ["all", "none"])
def test_newcomers_have_models_and_files_that_answer_as_they_did(
    labels: Labels, tmp_path: Path
) -> None:
    result = shoal.simulate(
        synthetic_fleet(5), algorithm="personal", rounds=2, newcomers=2, labels=labels
    )
    told = result.outcome.summary.newcomers
    assert told is not None
    written = {one.device: one for one in result.save(tmp_path) if one.device}
    assert written.keys() == result.data.devices.keys() | result.outcome.newcomers.keys()
    for device_id, windows in result.outcome.newcomers.items():
        own = written[device_id]
        assert own.keeps == (kept.candidate if (kept := told.personal_models[device_id]) else "")
        session = onnxruntime.InferenceSession(tmp_path / f"device-{device_id}.onnx")
        answers = session.run(None, {"x": windows.test_x})[0]
        np.testing.assert_allclose(
            result.predict(windows.test_x, device=device_id), answers, atol=2e-5
        )
        assert (answers.argmax(1) == windows.test_y).mean() == pytest.approx(
            told.devices[device_id], abs=1e-6
        )
    with pytest.raises(ConfigError, match="No device 's9'"):
        result.predictions("s9")
