"""`edge_client.models.application.Model` and `shoal-edge predict`: an application beside the
client."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edge_client
from edge_client.core.ports import Current
from edge_client.graphs.onnx import OnnxGraphs, load_model
from edge_client.main import main
from edge_client.models.application import Model
from edge_client.storage.state import DeviceState
from simulation.datasets.windows import FleetData
from tests.edge_client.device import Device, other_model, take_up
from tests.edge_client.hostile import with_graph
from tests.support.bundles import Exported
from tests.support.pages import blocks
from wire import messages as m
from wire.bundle import Bundle
from wire.codec import digest
from wire.errors import ConfigError, DataError

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def device(fleet: FleetData, exported: Exported, tmp_path: Path) -> Device:
    return Device(fleet, exported, tmp_path / "state")


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


class TestModel:
    def test_it_answers_as_the_client_does_and_changes_nothing(self, device: Device) -> None:
        take_up(device)
        before = files(device.folder)
        model = Model(device.folder)
        np.testing.assert_allclose(
            model.predict(device.windows.test_x),
            device.agent.predict(device.windows.test_x),
            atol=1e-5,
        )
        assert (model.classes, model.window) == (
            device.bundle.manifest.classes,
            device.bundle.manifest.window,
        )
        assert model.current.model == digest(device.model)
        assert model.predict(device.windows.test_x[:0]).shape == (0, 3)
        assert files(device.folder) == before

    def test_the_programs_of_the_page_answer_alike(
        self, device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """docs/predict.md: with Shoal, and without it. Only windows as `x`, and the state folder,
        are filled in."""
        take_up(device)
        monkeypatch.chdir(tmp_path)
        (tmp_path / "STATE").symlink_to(device.folder)
        x = device.windows.test_x[:5]
        without, with_shoal = ({"x": x} for _ in range(2))
        for block, made in zip(
            blocks("docs/predict.md", "python"), (with_shoal, without), strict=True
        ):
            exec(block.text, made)
        answers, classes = np.asarray(without["probabilities"]), list(without["classes"])
        np.testing.assert_allclose(answers, with_shoal["probabilities"], atol=1e-5)
        assert [classes[i] for i in answers.argmax(1)] == list(with_shoal["names"])

    def test_another_model_is_taken_up_when_the_client_has_taken_it_up(
        self, device: Device
    ) -> None:
        take_up(device)
        told: list[Current] = []
        model, x = Model(device.folder, on_replaced=told.append), device.windows.test_x
        before = model.predict(x)
        assert not model.refresh()
        take_up(device, other_model(device), run_id="next")
        after = model.predict(x)
        assert not np.array_equal(before, after)
        np.testing.assert_allclose(after, device.agent.predict(x), atol=1e-5)
        assert (model.current.run_id, model.refresh()) == ("next", False)
        assert told == [model.current]

    def test_a_model_that_is_damaged_leaves_the_one_before_until_it_is_mended(
        self, device: Device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr("edge_client.models.application.AGAIN_S", 0.0)
        take_up(device)
        model, x = Model(device.folder), device.windows.test_x
        before = model.predict(x)
        take_up(device, payload := other_model(device), run_id="next")
        path = device.folder / "blobs" / digest(payload)
        path.write_bytes(b"damaged")
        (device.folder / "current" / "model.onnx").write_bytes(b"damaged")
        np.testing.assert_array_equal(model.predict(x), before)
        assert "New model not loaded, the previous one answers" in caplog.text
        assert path.exists(), "the client sets it aside, not the application"
        path.write_bytes(payload)
        assert not np.array_equal(model.predict(x), before)

    def test_the_client_may_replace_the_model_while_it_is_read(
        self, device: Device, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        take_up(device)
        state, payload = DeviceState(device.folder), other_model(device)
        read = Model._read

        def late(model: Model) -> None:
            """The folder as it was, but its blobs are those of the next model."""
            monkeypatch.setattr(Model, "_read", read)
            stored = model._state
            old = stored.current()
            take_up(device, payload, run_id="next")
            now = state.current()
            assert now is not None
            state.keep_blobs({now.bundle, now.model, now.private})
            answers = iter([old])
            monkeypatch.setattr(
                stored, "current", lambda: next(answers, None) or type(stored).current(stored)
            )
            stamps = iter([(0, 0)])
            monkeypatch.setattr(
                model, "_stamp", lambda: next(stamps, None) or type(model)._stamp(model)
            )
            read(model)

        monkeypatch.setattr(Model, "_read", late)
        assert Model(device.folder).current.run_id == "next"

    def test_without_a_model_it_says_so(self, device: Device, tmp_path: Path) -> None:
        for folder in (device.folder, tmp_path / "none"):
            with pytest.raises(ConfigError, match=f"state folder {folder} has no model in use"):
                Model(folder)
        assert not (tmp_path / "none").exists()
        take_up(device)
        (device.folder / "current" / "model.json").write_bytes(b"{")
        with pytest.raises(ConfigError, match=r"model\.json is damaged: "):
            Model(device.folder)

    @pytest.mark.parametrize(
        "x",
        [
            np.zeros((2, 3, 32)),
            np.zeros((2, 32)),
            np.full((1, 2, 32), np.nan),
            np.full((1, 2, 32), "a"),
        ],
    )
    def test_what_is_no_window_is_refused(self, device: Device, x: Any) -> None:
        take_up(device)
        with pytest.raises(DataError, match="x "):
            Model(device.folder).predict(x)


WITHOUT_SHOAL = """
import json, sys
from pathlib import Path
import numpy as np, onnxruntime
folder = Path(sys.argv[1], "current").resolve()
about = json.loads((folder / "model.json").read_text())
session = onnxruntime.InferenceSession(folder / "model.onnx")
classes = json.loads(session.get_modelmeta().custom_metadata_map["classes"])
assert classes == about["classes"] == ["slow", "middle", "fast"]
assert (about["release"], about["group"], about["window"]["channels"]) == (3, "left", ["a", "b"])
x = np.load(sys.argv[2])
print(json.dumps([session.run(None, {"x": x[:n]})[0].tolist() for n in (1, 5, 12)]))
needless = ("edge_client", "wire", "torch", "onnx")
assert not [name for name in sys.modules if name.partition(".")[0] in needless]
"""


class TestOneFile:
    def test_any_onnxruntime_reads_it_without_shoal(self, device: Device, tmp_path: Path) -> None:
        device.release(3)
        np.save(tmp_path / "x.npy", device.windows.test_x)
        (tmp_path / "app").mkdir()
        words = [sys.executable, "-c", WITHOUT_SHOAL, str(device.folder), str(tmp_path / "x.npy")]
        done = subprocess.run(
            words, capture_output=True, text=True, cwd=tmp_path / "app", env={}, timeout=100
        )
        assert done.returncode == 0, done.stderr
        for answer in json.loads(done.stdout):
            np.testing.assert_allclose(
                answer, device.agent.predict(device.windows.test_x)[: len(answer)], atol=1e-5
            )

    def test_private_tensors_are_in_it(self, device: Device) -> None:
        device.offer()
        device.send_plan(verbs=(m.Train(16, 8, hyper={"lr": 0.05}, report=False), m.Evaluate()))
        device.turn()
        ((update, _),) = device.updates()
        device.release(1)
        answer = edge_client.Model(device.folder).predict(device.windows.test_x)
        np.testing.assert_allclose(answer, device.agent.predict(device.windows.test_x), atol=1e-5)
        assert (answer.argmax(1) == device.windows.test_y).sum() == update.evaluated.num_correct

    def test_the_one_before_is_kept_until_the_next(self, device: Device) -> None:
        for number in (1, 2, 3):
            device.release(number, other_model(device, number))
        releases = [
            json.loads((device.folder / name / "model.json").read_text())["release"]
            for name in ("current", "before")
        ]
        assert releases == [3, 2]
        assert len(list((device.folder / "models").iterdir())) == 2

    def test_a_damaged_one_is_written_again_and_meanwhile_the_bundle_answers(
        self, device: Device
    ) -> None:
        device.release(1)
        path = device.folder / "current" / "model.onnx"
        good = path.read_bytes()
        path.write_bytes(good[:-1])
        expected = device.agent.predict(device.windows.test_x)
        np.testing.assert_allclose(
            Model(device.folder).predict(device.windows.test_x), expected, atol=1e-5
        )
        device.start()
        assert path.read_bytes() == good

    def test_a_runtime_that_cannot_read_it_writes_it_too(self, device: Device) -> None:
        class Other:
            """Graphs of a runtime that does not read ONNX files of models."""

            max_batch = None

            def __init__(self, bundle: Bundle) -> None:
                self.run = OnnxGraphs(bundle).run

        device.load_graphs = Other
        device.start()
        device.release(1)
        x = device.windows.test_x
        answer = load_model((device.folder / "current" / "model.onnx").read_bytes())(x)
        np.testing.assert_allclose(answer, device.agent.predict(x), atol=1e-5)

    def test_a_bundle_without_a_template_works_as_before(self, device: Device) -> None:
        bundle = with_graph(device.bundle, "predict", template="")
        device.release(1, bundle=bundle)
        assert device.in_use().number == 1
        assert [path.name for path in (device.folder / "current").iterdir()] == ["model.json"]
        x = device.windows.test_x
        np.testing.assert_array_equal(Model(device.folder).predict(x), device.agent.predict(x))


class TestCommand:
    def run(
        self, monkeypatch: pytest.MonkeyPatch, capsys: Captured, *words: str, text: str = ""
    ) -> tuple[int, list[dict[str, Any]], str]:
        monkeypatch.setattr(sys, "argv", ["shoal-edge", "predict", *words])
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return (
            int(ended.value.code or 0),
            [json.loads(line) for line in said.out.splitlines()],
            said.err,
        )

    @pytest.mark.parametrize("kind", ["npy", "npz", "csv", "folder", "-"])
    def test_every_kind_of_input_has_the_same_answers(
        self,
        device: Device,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: Captured,
        kind: str,
    ) -> None:
        take_up(device)
        x = np.round(device.windows.test_x, 4).astype(np.float32)
        path, text = tmp_path / f"in.{kind}", ""
        match kind:
            case "npy":
                np.save(path, x)
            case "npz":
                np.savez(path, X=x)
            case "csv" | "folder":
                rows = x.transpose(0, 2, 1).reshape(-1, 2)
                path.mkdir() if kind == "folder" else None
                halves = np.split(rows, 2) if kind == "folder" else [rows]
                for number, half in enumerate(halves):
                    file = path / f"{number}.csv" if kind == "folder" else path
                    file.write_text("\n".join(["t,b,a", *(f"0,{b},{a}" for a, b in half)]))
            case _:
                text = "\n\n".join(json.dumps(window.tolist()) for window in x)
        words = ("--state", str(device.folder), *(() if kind == "-" else (str(path),)))
        code, answers, _ = self.run(monkeypatch, capsys, *words, text=text)
        expected = device.agent.predict(x)
        assert code == 0
        assert [answer["class"] for answer in answers] == [
            ("slow", "middle", "fast")[i] for i in expected.argmax(1)
        ]
        np.testing.assert_allclose(
            [[*answer["probabilities"].values()] for answer in answers], expected, atol=1e-5
        )

    def test_a_line_that_is_no_window_is_answered_and_the_next_one_too(
        self, device: Device, monkeypatch: pytest.MonkeyPatch, capsys: Captured
    ) -> None:
        take_up(device)
        good = json.dumps(device.windows.test_x[0].tolist())
        bad = ["{", "[[1,2],[3]]", "[[1],[2]]", '"x"', "[" * 5000, "1e400", "null"]
        code, answers, _ = self.run(
            monkeypatch, capsys, "--state", str(device.folder), text="\n".join([*bad, good])
        )
        assert (code, len(answers)) == (1, len(bad) + 1)
        assert all("error" in answer for answer in answers[:-1])
        assert answers[-1]["class"] in device.bundle.manifest.classes

    @pytest.mark.parametrize(
        ("words", "text"),
        [
            (("none.npy",), "none.npy is not readable"),
            (("none.csv",), "none.csv: No such file"),
            (("two.csv",), "two.csv: no column for channel 'b', got a, c"),
            (("--runtime", "executorch", "--library", "none.so"), "none.so"),
        ],
    )
    def test_what_cannot_be_read_is_one_line(
        self,
        device: Device,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: Captured,
        words: tuple[str, ...],
        text: str,
    ) -> None:
        take_up(device)
        monkeypatch.chdir(tmp_path)
        Path("two.csv").write_text("a,c\n1,2\n")
        code, _, error = self.run(monkeypatch, capsys, "--state", str(device.folder), *words)
        assert (code, error.count("\n"), text in error) == (2, 1, True), error
