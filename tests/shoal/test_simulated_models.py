"""`shoal simulate` writes the models of its run into `models/`."""

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import shoal
from shoal.api import run
from shoal.cli import application
from tests.support.pages import blocks
from wire.errors import ConfigError


def simulate(out: Path, *options: str) -> list[dict[str, object]]:
    """Run the command on three watches; the list of models."""
    words = [
        "simulate",
        "--devices",
        "3",
        "--rounds",
        "1",
        "--algorithm",
        "fedper",
        "--out",
        str(out),
        *options,
    ]
    application("simulate")(words, standalone_mode=False)
    listed: list[dict[str, object]] = json.loads((out / "models" / "models.json").read_text())
    return listed


@pytest.mark.full
def test_models_are_those_of_python(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = simulate(tmp_path)
    assert [entry["name"] for entry in listed] == [
        "group-0",
        "device-p01-left",
        "device-p01-right",
        "device-p02-left",
    ]
    said = capsys.readouterr()
    assert str(tmp_path / "models") in said.out.replace("\n", "")
    assert (
        "warning: 1 models without some of their files, the first group-0: group 0: fedper "
        "leaves head.weight"
    ) in said.err
    result = shoal.simulate("watch", devices=3, rounds=1, algorithm="fedper")
    x = result.data.devices["p02-left"].test_x
    session = onnxruntime.InferenceSession(tmp_path / "models" / "device-p02-left.onnx")
    np.testing.assert_allclose(
        session.run(None, {"x": x})[0], result.predict(x, device="p02-left"), atol=2e-5
    )


def test_the_program_of_the_page_predicts_a_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    simulate(tmp_path / "runs" / "try")
    capsys.readouterr()
    monkeypatch.chdir(tmp_path)
    (block,) = blocks("docs/report.md", "python")
    exec(block.text, {})
    assert capsys.readouterr().out.strip() in shoal.load("watch").classes


def test_what_is_written_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [entry["name"] for entry in simulate(tmp_path / "groups", "--models", "groups")] == [
        "group-0"
    ]
    monkeypatch.setattr(run, "FEW", 2)
    assert [entry["name"] for entry in simulate(tmp_path / "auto")] == ["group-0"]
    assert len(simulate(tmp_path / "all", "--models", "all")) == 4
    with pytest.raises(FileNotFoundError):
        simulate(tmp_path / "none", "--models", "none")
    with pytest.raises(
        ConfigError, match="models must be one of auto, all, groups, none, got 'some'"
    ):
        simulate(tmp_path / "some", "--models", "some")
