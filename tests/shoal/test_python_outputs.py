"""Outputs of a run: one model as a file, answers to tables, pictures, and a clean folder."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from matplotlib.figure import Figure
from safetensors import safe_open

import shoal
from shoal.reports.words import backend_text
from simulation.surveys import distances
from tests.shoal.small import small
from tests.support.fleets import synthetic_fleet
from wire.arrays.tensors import Array

ALGORITHMS = ["fedavg", "personal", "fedper", "ditto"]


class Results(dict[str, shoal.Result]):
    """A run of each algorithm, made when it is first asked for."""

    def __missing__(self, name: str) -> shoal.Result:
        fleet = synthetic_fleet(4, shift=0.5)
        self[name] = shoal.simulate(fleet, algorithm=name, model=small, rounds=2, lr=0.05)
        return self[name]


@pytest.fixture(scope="module")
def results() -> Results:
    return Results()


class TestOneFile:
    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_onnx_is_for_inference_and_says_its_windows(
        self, results: Results, algorithm: str, tmp_path: Path
    ) -> None:
        result = results[algorithm]
        (written,) = result.save(tmp_path / "model.onnx", device="d1")
        assert (written.files, written.device) == (("model.onnx",), "d1")
        assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
        onnx.checker.check_model(tmp_path / "model.onnx", full_check=True)
        session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
        x = result.data.devices["d1"].test_x
        for part in (x, x[:1]):
            (answers,) = session.run(None, {"x": part})
            np.testing.assert_allclose(answers, result.predict(part, device="d1"), atol=2e-5)
        about = session.get_modelmeta().custom_metadata_map
        assert about["classes"].split("\n") == list(result.data.classes)
        assert about["channels"].split("\n") == list(result.data.window.channels)
        assert int(about["length"]) == result.data.window.length

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_pte_answers_as_predict_does(
        self, results: Results, algorithm: str, tmp_path: Path
    ) -> None:
        pytest.importorskip(
            "executorch",
            reason="ExecuTorch is not installed: pip install 'shoal[executorch]' would run this",
        )
        from executorch.runtime import Runtime

        result = results[algorithm]
        result.save(tmp_path / "model.pte", device="d1")
        method = Runtime.get().load_program(tmp_path / "model.pte").load_method("forward")
        assert method is not None
        x = result.data.devices["d1"].test_x
        for count in (1, 5):
            (answers,) = method.execute([torch.from_numpy(x[:count].copy())])
            expected = result.predict(x[:count], device="d1")
            np.testing.assert_allclose(answers.numpy(), expected, atol=2e-5)

    @pytest.mark.parametrize("algorithm", ["fedavg", "personal"])
    def test_core_ml_has_the_model_for_one_window(
        self, results: Results, algorithm: str, tmp_path: Path
    ) -> None:
        coremltools = pytest.importorskip(
            "coremltools", reason="pip install coremltools would run this"
        )
        result = results[algorithm]
        result.save(tmp_path / "model.mlpackage", device="d1")
        read = coremltools.models.MLModel(str(tmp_path / "model.mlpackage"), skip_model_load=True)
        description = read.get_spec().description
        assert [i.name for i in description.input] == ["x"]
        assert list(description.input[0].type.multiArrayType.shape) == [1, 2, 32]
        assert [o.name for o in description.output] == ["probabilities"]
        assert read.user_defined_metadata["classes"].split("\n") == list(result.data.classes)

    def test_safetensors_and_pt_are_those_of_a_folder(
        self, results: Results, tmp_path: Path
    ) -> None:
        result = results["personal"]
        result.save(tmp_path / "all", ["d2"])
        result.save(tmp_path / "one.safetensors", device="d2")
        result.save(tmp_path / "one.pt", device="d2")
        with (
            safe_open(tmp_path / "one.safetensors", "numpy") as file,
            safe_open(tmp_path / "all" / "device-d2.safetensors", "numpy") as other_file,
        ):
            assert file.metadata() == other_file.metadata()
            assert file.metadata()["channels"].split("\n") == list(result.data.window.channels)
            assert set(file.keys()) == set(other_file.keys())
            for key in set(file.keys()):
                np.testing.assert_array_equal(file.get_tensor(key), other_file.get_tensor(key))
        one, other = (
            torch.load(path, weights_only=True)["state_dict"]
            for path in (tmp_path / "one.pt", tmp_path / "all" / "device-d2.pt")
        )
        assert all(torch.equal(one[key], other[key]) for key in other)

    def test_the_only_group_needs_no_name(self, results: Results, tmp_path: Path) -> None:
        result = results["fedavg"]
        for number in (None, 0):
            (written,) = result.save(tmp_path / "m.onnx", group=number)
            assert (written.group, written.device) == (0, "")
            x = result.data.devices["d0"].test_x
            session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
            np.testing.assert_allclose(
                session.run(None, {"x": x})[0], result.predict(x, group=0), atol=2e-5
            )

    @pytest.mark.parametrize(
        ("name", "words", "said"),
        [
            ("m.onnx", {"device": "d9"}, r"No device 'd9'"),
            ("m.pte", {"group": 7}, r"No group 7\. Known groups: 0"),
            ("m.onnx", {"devices": ["d0"]}, "has one model: name a device or a group"),
            ("m.onnx", {"device": "d0", "group": 0}, "not both"),
            ("m.tflite", {}, r"must end with one of \.safetensors, .* got .*m\.tflite"),
            ("models", {"device": "d0"}, "A file of one model must end with"),
            ("missing.file/m.onnx/x.pt/", {"group": 5}, "No group 5"),
        ],
    )
    def test_what_cannot_be_is_said(
        self, results: Results, tmp_path: Path, name: str, words: dict[str, Any], said: str
    ) -> None:
        with pytest.raises(shoal.ConfigError, match=said):
            results["fedavg"].save(tmp_path / name, **words)
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize("name", ["m.onnx", "m.pt", "m.pte", "m.mlpackage"])
    def test_a_group_of_which_devices_keep_a_part_is_refused(
        self, results: Results, tmp_path: Path, name: str
    ) -> None:
        with pytest.raises(shoal.ConfigError, match=r"group 0: fedper leaves .* is not whole"):
            results["fedper"].save(tmp_path / name, group=0)
        assert not list(tmp_path.iterdir())


def table_of(x: Array) -> Any:
    """Rows of samples, whose columns are not in the data's order, with one more."""
    pandas = pytest.importorskip("pandas", reason="pip install 'shoal[pandas]' would run this")
    return pandas.DataFrame({"c1": x[1], "time": np.arange(x.shape[1]) / 50, "c0": x[0]})


class TestPredict:
    """`predict` of a recording as a table."""

    def test_windows_are_cut_as_the_data_were(self) -> None:
        rng = np.random.default_rng(0)
        recordings = [rng.standard_normal((2, 600)) for _ in range(4)]
        data = shoal.load(recordings, [0, 1, 0, 1], list("aabb"), length=32, stride=16)
        result = shoal.simulate(data, algorithm="fedavg", model=small, rounds=1)
        x = recordings[0][:, :200].astype(np.float32)
        windows = np.stack([x[:, at : at + 32] for at in range(0, 169, 16)])
        expected = result.predict(windows, device="a")
        for table in (table_of(x), {"c0": x[0], "c1": x[1]}):
            np.testing.assert_array_equal(result.predict(table, device="a"), expected)
        for count in (31, 1):
            with pytest.raises(
                shoal.DataError, match=rf"needs 32 samples in a row .* most {count}\."
            ):
                result.predict(table_of(x[:, :count]))

    def test_a_channel_that_is_missing_is_named(self, results: Results) -> None:
        table = table_of(np.zeros((2, 64), np.float32)).rename(columns={"c0": "a"})
        with pytest.raises(shoal.DataError, match="x: no column for channel 'b', got c1, time, a"):
            results["fedavg"].predict(table)
        table["b"] = 0.0
        with pytest.raises(shoal.DataError, match="x, row 3, column b: 'high' is not a number"):
            results["fedavg"].predict(table.assign(b=np.where(table.index == 3, "high", "0")))
        with pytest.raises(shoal.DataError, match=r"x: column b, a channel .* has no number"):
            results["fedavg"].predict(table.assign(b=np.nan))

    def test_recordings_are_read_as_those_of_training(self, tmp_path: Path) -> None:
        """At the model's rate, across no gap, columns by name, with the words of the training."""

        def recording(hz: int, gap_s: float = 0.0) -> Any:
            t = np.arange(20 * hz) / hz
            table = table_of(np.stack([np.sin(7 * t), np.cos(5 * t)]))
            return table.drop(columns="time").assign(clock=t + gap_s * (t >= 10), who="a")

        both = [recording(50).assign(who=who, activity=who) for who in "ab"]
        data = shoal.load(
            type(both[0])({name: np.concatenate([t[name] for t in both]) for name in both[0]}),
            person="who",
            label="activity",
            time="clock",
            length=64,
            stride=32,
        )
        assert data.window.rate_hz == 50
        result = shoal.simulate(data, algorithm="fedavg", model=small, rounds=1)
        expected = result.predict(recording(50))
        assert len(expected) == (1000 - 64) // 32 + 1
        fast = result.predict(recording(100))
        np.testing.assert_allclose(fast, expected[: len(fast)], atol=0.02)
        assert len(expected) - len(fast) <= 1
        shuffled = recording(50)[["who", "c0", "clock", "c1"]]
        np.testing.assert_array_equal(result.predict(shuffled), expected)
        apart = [result.predict(recording(50)[part]) for part in (slice(500), slice(500, None))]
        with_gap = recording(50, gap_s=3.0)
        np.testing.assert_array_equal(result.predict(with_gap), np.concatenate(apart))
        with_gap.to_csv(tmp_path / "one.csv", index=False)
        for path in (tmp_path, str(tmp_path / "one.csv")):
            np.testing.assert_allclose(result.predict(path), np.concatenate(apart), atol=1e-5)

    def test_several_inputs(self) -> None:
        rng = np.random.default_rng(0)
        inputs = {
            "acc": rng.standard_normal((40, 3, 32)).astype(np.float32),
            "heart": rng.standard_normal((40, 1)).astype(np.float32),
        }
        data = shoal.load(inputs, np.arange(40) % 2, np.arange(40) // 20)
        result = shoal.simulate(data, algorithm="fedavg", model=small, rounds=1)
        whole = np.concatenate([inputs["acc"], np.repeat(inputs["heart"][:, None], 32, 2)], 1)
        np.testing.assert_array_equal(result.predict(inputs), result.predict(whole))


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Every figure that is drawn, which stays open."""
    drawn: list[Figure] = []
    monkeypatch.setattr(plt, "close", drawn.append)
    return drawn


class TestMap:
    """The map of devices by their surveys, whatever the algorithm."""

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_devices_with_similar_inputs_are_near_each_other(
        self, results: Results, algorithm: str
    ) -> None:
        """`shift` moves the inputs of every second device."""
        result = results[algorithm]
        matrices, ids = distances(result.data, result.outcome.models.objective)
        assert (list(matrices), ids) == (["inputs", "labels"], ("d0", "d1", "d2", "d3"))
        inputs = matrices["inputs"]
        assert inputs[0, 2] < inputs[0, 1]
        assert inputs[1, 3] < inputs[2, 3]

    @pytest.mark.parametrize(
        ("by", "legend"),
        [
            ("group", ["0"]),
            ("device", ["d0", "d1", "d2", "d3"]),
            ({"d0": "anna", "d1": "ben", "d2": "anna"}, ["anna", "ben"]),
            ({"d0": 10, "d1": 9, "d2": "none"}, ["9", "10", "none"]),
            (lambda d: int(d[1]) % 2, ["0", "1"]),
        ],
    )
    def test_a_user_says_what_the_colours_are(
        self, results: Results, tmp_path: Path, figures: list[Figure], by: Any, legend: list[str]
    ) -> None:
        path = results["fedavg"].draw_map(tmp_path / "map.png", by=by)
        assert path.read_bytes()[1:4] == b"PNG"
        (figure,) = figures
        assert [text.get_text() for text in figure.legends[0].get_texts()] == legend
        assert [axes.get_title("left") for axes in figure.axes] == ["by inputs", "by labels"]

    @pytest.mark.parametrize("by", ["accuracy", {"d0": 1.5, "d3": 2.5}])
    def test_numbers_have_a_scale(
        self, results: Results, tmp_path: Path, figures: list[Figure], by: Any
    ) -> None:
        results["fedavg"].draw_map(tmp_path / "map.png", by=by)
        assert len(figures[0].axes) == 3  # the third is the scale
        assert not figures[0].legends

    def test_what_is_no_colour_is_refused(self, results: Results, tmp_path: Path) -> None:
        with pytest.raises(shoal.ConfigError, match="by must be one of group, truth, device, acc"):
            results["fedavg"].draw_map(tmp_path / "map.png", by="persons")

    def test_a_model_without_batch_norm_has_a_map_by_labels(self, tmp_path: Path) -> None:
        layers = torch.nn.Conv1d(2, 6, 3), torch.nn.ReLU(), torch.nn.Flatten()
        model = torch.nn.Sequential(*layers, torch.nn.Linear(180, 3))
        result = shoal.simulate(synthetic_fleet(3), algorithm="fedavg", model=model, rounds=1)
        assert result.draw_map(tmp_path / "map.png").exists()


def test_confusion_matrices_of_groups_add_up(results: Results) -> None:
    result = results["personal"]
    parts = [result.confusion(group=number) for number in result.groups]
    np.testing.assert_array_equal(np.sum(parts, axis=0), result.confusion())
    with pytest.raises(shoal.ConfigError, match=r"No group 9\. Known groups"):
        result.confusion(group=9)
    with pytest.raises(shoal.ConfigError, match="not both"):
        result.confusion("d0", group=0)


class TestFolder:
    """Files of a run in its folder."""

    def test_a_second_run_leaves_nothing_of_the_first(self, tmp_path: Path) -> None:
        def run(devices: int, algorithm: str, models: str = "auto") -> set[str]:
            fleet = synthetic_fleet(devices, shift=3.0)
            shoal.simulate(
                *(fleet,), algorithm=algorithm, model=small, rounds=1, out=tmp_path, models=models
            )
            return {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}

        (tmp_path / "models").mkdir()
        (tmp_path / "models" / "mine.onnx").write_text("a user's own file")
        first = run(6, "distfl")
        assert {"similarity.png", "map.png", "confusion.png", "models/device-d5.onnx"} <= first
        second = run(2, "fedavg")
        assert {name for name in second if name.startswith("models/")} == {
            "models/mine.onnx",
            "models/models.json",
            *(
                f"models/{name}.{form}"
                for name in ("group-0", "device-d0", "device-d1")
                for form in ("pt", "onnx", "safetensors")
            ),
        }
        assert "similarity.png" not in second
        third = run(2, "fedavg", models="none")
        assert {name for name in third if name.startswith("models/")} == {"models/mine.onnx"}

    def test_a_list_that_names_other_folders_removes_nothing_there(self, tmp_path: Path) -> None:
        (tmp_path / "precious.txt").write_text("stays")
        (tmp_path / "models").mkdir()
        (tmp_path / "models" / "models.json").write_text(
            '[{"files": ["../precious.txt", "old.onnx"]}]'
        )
        (tmp_path / "models" / "old.onnx").write_text("goes")
        fleet = synthetic_fleet(2)
        shoal.simulate(fleet, algorithm="fedavg", model=small, rounds=1).save(tmp_path / "models")
        assert (tmp_path / "precious.txt").exists()
        assert not (tmp_path / "models" / "old.onnx").exists()

    @pytest.mark.parametrize("rounds", [1, 2, 5])
    def test_the_axis_of_rounds_has_whole_numbers(
        self, tmp_path: Path, figures: list[Figure], rounds: int
    ) -> None:
        fleet = synthetic_fleet(2)
        shoal.simulate(
            *(fleet,), algorithm="fedavg", model=small, rounds=rounds, out=tmp_path, models="none"
        )
        axes = next(f.axes[0] for f in figures if f.axes[0].get_xlabel() == "round")
        low, high = axes.get_xlim()
        shown = [tick for tick in axes.get_xticks() if low <= tick <= high]
        assert shown == [round(tick) for tick in shown]
        assert {1, rounds} & set(shown)

    def test_a_comparison_has_a_legend(self, tmp_path: Path, figures: list[Figure]) -> None:
        names = ["fedavg", "local"]
        shoal.compare(names, synthetic_fleet(2), model=small, rounds=1, seeds=1, out=tmp_path)
        legend = figures[0].axes[0].get_legend()
        assert legend is not None
        assert [text.get_text() for text in legend.get_texts()] == names

    def test_devices_stand_in_the_order_of_their_groups(
        self, tmp_path: Path, figures: list[Figure]
    ) -> None:
        fleet = replace(synthetic_fleet(6, shift=3.0), truth={})
        result = shoal.simulate(
            *(fleet,), algorithm="ifca:k=2", model=small, rounds=2, out=tmp_path, models="none"
        )
        assert len(result.groups) == 2
        holdings = figures[0].axes[0]
        shown = [label.get_text() for label in holdings.get_xticklabels()]
        expected = [d for number in sorted(result.groups) for d in sorted(result.groups[number])]
        assert shown == expected
        page = (tmp_path / "report.html").read_text()
        assert "Confusion matrix of group 0" in page
        assert "Confusion matrix of group 1" in page


def test_the_line_of_the_backend_is_no_fault(results: Results) -> None:
    summary = msgspec.structs.replace(
        results["fedavg"].summary, backend="eager", backend_reason="A reason", updates_per_s=12.0
    )
    assert backend_text(summary) == (
        "backend eager, 12 updates a second. A reason. Backends differ by rounding only."
    )
    plain = msgspec.structs.replace(summary, backend="native", backend_reason="")
    assert backend_text(plain) == "backend native, 12 updates a second"
