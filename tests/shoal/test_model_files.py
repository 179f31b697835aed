"""`shoal models export`, `inspect` and `diff`, on the folder of a run of which three rounds are
over; the files are read without Shoal."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors import safe_open

from aggregator.core.steps import Gate, Step
from aggregator.fleet import events as e
from aggregator.fleet.records import Campaign, ModelRelease, Version
from aggregator.storage.blob_folder import BlobFolder, blob_names
from aggregator.storage.engine import sqlite_url
from export.publish import SERVER_FILE
from export.runtimes import load_graph
from shoal.cli import application
from simulation.datasets.windows import FleetData
from tests.aggregator.stored import store_events
from tests.fleet.world import settings_of
from tests.support.bundles import Exported
from wire.arrays import names
from wire.arrays.tensors import Array, Tensors, encode_tensors
from wire.errors import ConfigError

Say = Callable[..., str]


@pytest.fixture
def shoal(capsys: pytest.CaptureFixture[str]) -> Say:
    def run(*arguments: object) -> str:
        application("models")(["models", *map(str, arguments)], standalone_mode=False)
        return capsys.readouterr().out

    return run


@pytest.fixture
def served(exported: Exported, tmp_path: Path) -> Path:
    """A folder as a service leaves it: a run with two models of the exported bundle."""
    model = {s.key: exported.bundle.initial[s.key] for s in exported.bundle.manifest.received()}
    other = {key: (value * 1.5).astype(value.dtype) for key, value in model.items()}
    bundle, one, two, memory = BlobFolder(tmp_path / "blobs" / "run-1").put(
        exported.bundle.payload, encode_tensors(model), encode_tensors(other), b"memory"
    )
    settings = settings_of(name="run-1", algorithm="distfl", bundle=bundle, min_devices=2)
    version = Version(
        round=0, models={"0": one, "1": two}, memory=memory, programs={}, newcomers="0"
    )
    record = Campaign(settings=settings, next_settings=settings, version=version)
    started = e.Started(at_s=0.0, campaign="run-1", record=record)
    store_events(sqlite_url(tmp_path / "shoal.db"), started)
    return tmp_path


def expected(exported: Exported, x: Array, scale: float = 1.0) -> Array:
    """Return the answers of the bundle's graph for a model whose weights are this multiple."""
    bundle = exported.bundle
    received = {s.key for s in bundle.manifest.received()}
    held: Tensors = {
        k: (v * scale).astype(v.dtype) if k in received else v for k, v in bundle.initial.items()
    }
    return load_graph(bundle, "predict")({**held, names.X: x})[names.PROBABILITIES]


class TestExport:
    def test_onnx(self, shoal: Say, served: Path, exported: Exported, fleet: FleetData) -> None:
        said = shoal("export", served, "--group", "1", "--to", served / "m.onnx")
        assert "model run-1 1@0" in said
        x = fleet.devices["d0"].test_x
        session = onnxruntime.InferenceSession(served / "m.onnx")
        np.testing.assert_allclose(
            session.run(None, {"x": x})[0], expected(exported, x, 1.5), atol=1e-5
        )
        about = session.get_modelmeta().custom_metadata_map
        assert (about["name"], about["classes"].split("\n")) == ("run-1 1@0", list(fleet.classes))

    def test_a_release_is_named_by_its_number(
        self, shoal: Say, served: Path, exported: Exported, fleet: FleetData
    ) -> None:
        source = BlobFolder(served / "blobs" / "run-1")
        model = max(
            blob_names(served / "blobs" / "run-1") - {exported.bundle.digest},
            key=lambda name: len(source.get(name)),
        )
        bundle = exported.bundle.digest
        BlobFolder(served / "releases").put(source.get(bundle), source.get(model))
        release = ModelRelease(
            number=1,
            group="0",
            bundle=bundle,
            model=model,
            run_id="r",
            campaign="run-1",
            round=1,
            algorithm="distfl",
            devices=2,
        )
        store_events(
            sqlite_url(served / "shoal.db"),
            e.Released(
                at_s=1.0,
                campaign="run-1",
                releases=(release,),
                newcomers="0",
                steps=(Step(1.0),),
                gate=Gate(),
                salt="",
                roll_out=False,
            ),
        )
        said = shoal("export", served, "--release", "1", "--to", served / "m.onnx")
        assert f"model release 1, run-1/0 ({model[:12]})" in said
        assert "release 1, run-1/0" in shoal("inspect", served, "--release", "1")
        answer = onnxruntime.InferenceSession(served / "m.onnx").run(
            None, {"x": fleet.devices["d0"].test_x}
        )[0]
        assert np.allclose(answer.sum(axis=1), 1, atol=1e-5)
        for wrong, told in (
            (["--release", "9"], r"No release 9 \(--release\)\. `shoal models list` names all"),
            (["--release", "1", "--group", "0"], "by itself"),
        ):
            with pytest.raises(ConfigError, match=told):
                shoal("export", served, *wrong, "--to", served / "n.onnx")

    def test_pt_is_a_state_dict_for_the_users_own_model(
        self, shoal: Say, served: Path, exported: Exported
    ) -> None:
        shoal("export", served, "--group", "0", "--to", served / "m.pt")
        read = torch.load(served / "m.pt", weights_only=True)
        assert read["about"]["name"] == "run-1 0@0"
        own = {
            k: v
            for role in ("shared", "statistic")
            for k, v in names.part(exported.bundle.initial, role).items()
        }
        assert read["state_dict"].keys() == own.keys()
        for key, value in own.items():
            np.testing.assert_array_equal(read["state_dict"][key].numpy(), value)

    def test_safetensors(self, shoal: Say, served: Path, exported: Exported) -> None:
        shoal("export", served, "--group", "0", "--to", served / "m.safetensors")
        with safe_open(served / "m.safetensors", "numpy") as file:
            assert file.metadata()["bundle"].endswith(exported.bundle.digest)
            for key in file.keys():  # noqa: SIM118
                np.testing.assert_array_equal(file.get_tensor(key), exported.bundle.initial[key])

    @pytest.mark.full
    def test_pte(self, shoal: Say, served: Path, exported: Exported, fleet: FleetData) -> None:
        pytest.importorskip(
            "executorch",
            reason="ExecuTorch is not installed: pip install 'shoal[executorch]' would run this",
        )
        shoal(
            "export",
            served,
            "--group",
            "1",
            "--to",
            served / "m.pte",
            "--probe",
            exported.folder / SERVER_FILE,
        )
        from executorch.runtime import Runtime

        method = Runtime.get().load_program(served / "m.pte").load_method("forward")
        assert method is not None
        x = fleet.devices["d0"].test_x
        for count in (1, 5, 12):
            (answer,) = method.execute([torch.from_numpy(x[:count].copy())])
            np.testing.assert_allclose(
                answer.numpy(), expected(exported, x, 1.5)[:count], atol=1e-5
            )

    def test_a_folder_gets_every_group_in_three_forms(
        self, shoal: Say, served: Path, exported: Exported, fleet: FleetData
    ) -> None:
        forms = ("safetensors", "pt", "onnx")
        shoal("export", served, "--to", served / "out" / "models")
        written = served / "out" / "models"
        assert {path.name for path in written.iterdir()} == {
            f"group-{group}.{form}" for group in (0, 1) for form in forms
        }
        shoal("export", served, "--group", "1", "--to", served / "m.pt")
        one, two = (
            torch.load(path, weights_only=True)
            for path in (written / "group-1.pt", served / "m.pt")
        )
        assert all(
            torch.equal(value, two["state_dict"][key]) for key, value in one["state_dict"].items()
        )
        with safe_open(written / "group-1.safetensors", "numpy") as file:
            for key in file.keys():  # noqa: SIM118
                np.testing.assert_array_equal(
                    file.get_tensor(key), exported.bundle.initial[key] * np.float32(1.5)
                )
        x = fleet.devices["d0"].test_x
        session = onnxruntime.InferenceSession(written / "group-1.onnx")
        np.testing.assert_allclose(
            session.run(None, {"x": x})[0], expected(exported, x, 1.5), atol=1e-5
        )

    def test_a_folder_gets_one_group_where_it_is_named(self, shoal: Say, served: Path) -> None:
        shoal("export", served, "--group", "0", "--to", served / "models")
        assert {path.stem for path in (served / "models").iterdir()} == {"group-0"}
        (served / "file").write_text("")
        with pytest.raises(ConfigError, match=r"--to .*file: File exists"):
            shoal("export", served, "--group", "0", "--to", served / "file")

    @pytest.mark.parametrize(
        ("arguments", "error"),
        [
            (
                ["--to", "m.onnx"],
                r"has several models\. Choose one with --group\. Known groups: 0, 1\.",
            ),
            (
                ["--to", "m.onnx", "--group", 7],
                r"No group '7' \(--group\) in run run-1\. Known groups: 0, 1\.",
            ),
            (
                ["--to", "m.onnx", "--group", 0, "--round", 4],
                r"No models of round 4 \(--round\) in run run-1\. .* stored: 0",
            ),
            (["--to", "m.onnx", "--run", "other"], r"No run 'other'"),
            (
                ["--to", "m.txt", "--group", 0],
                r"--to must end with one of \.onnx, \.pte, \.pt, \.safetensors, got m\.txt",
            ),
            (["--to", "m.pte", "--group", 0], r"--probe must be the path of server\.pt2"),
            (
                ["--to", "m.pte", "--group", 0, "--probe", "none.pt2"],
                r"--probe none\.pt2: No such file",
            ),
            (["--to", "none/m.pt", "--group", 0], r"--to none/m\.pt: No such file"),
        ],
    )
    def test_wrong_input_is_one_clear_error(
        self,
        shoal: Say,
        served: Path,
        monkeypatch: pytest.MonkeyPatch,
        arguments: list[object],
        error: str,
    ) -> None:
        monkeypatch.chdir(served)
        with pytest.raises(ConfigError, match=error):
            shoal("export", served, *arguments)
        assert not [*served.glob("m.*")]


class TestLooking:
    def test_inspect_names_the_bundle_and_every_tensor(
        self, shoal: Say, served: Path, exported: Exported
    ) -> None:
        said = shoal("inspect", served, "--group", "0")
        assert f"{exported.bundle.manifest.name} 1 {exported.bundle.digest}" in said
        rows = {
            line.split()[0]: line.split()[-1]
            for line in said.splitlines()
            if line.startswith(("shared/", "statistic/"))
        }
        assert rows.keys() == {s.key for s in exported.bundle.manifest.received()}
        for key, norm in rows.items():
            assert float(norm) == pytest.approx(
                float(np.linalg.norm(exported.bundle.initial[key])), rel=1e-3
            )
        told = json.loads(shoal("inspect", served, "--group", "0", "--json"))
        assert {row["name"]: f"{row['norm']:.4g}" for row in told["tensors"]} == rows

    def test_diff_says_how_far_each_tensor_is_and_how_often_both_agree(
        self, shoal: Say, served: Path, exported: Exported, fleet: FleetData
    ) -> None:
        x = fleet.devices["d0"].test_x
        np.save(served / "x.npy", x)
        said = shoal("diff", served, "0", "1@0", "--data", served / "x.npy")
        rows = [
            line.split() for line in said.splitlines() if line.startswith(("shared/", "statistic/"))
        ]
        assert {row[2] for row in rows} <= {"50.00%", "0.00%"}
        same = (expected(exported, x).argmax(1) == expected(exported, x, 1.5).argmax(1)).mean()
        assert f"both models give the same answer on {same:.2%} of 12 windows" in said
        assert "100.00% of 12 windows" in shoal(
            "diff", served, "0", "0", "--data", served / "x.npy"
        )
        told = json.loads(shoal("diff", served, "0", "1@0", "--data", served / "x.npy", "--json"))
        assert told["agreement"] == same
        assert {row["name"]: f"{row['relative']:.2%}" for row in told["tensors"]} == {
            row[0]: row[2] for row in rows
        }

    @pytest.mark.parametrize("text", ["0@", "0@x"])
    def test_what_is_no_model_is_refused(self, shoal: Say, served: Path, text: str) -> None:
        with pytest.raises(
            ConfigError,
            match=f"model must be GROUP or GROUP@ROUND, with a number for ROUND, got '{text}'",
        ):
            shoal("diff", served, text, "0")
