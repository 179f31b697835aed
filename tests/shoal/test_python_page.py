"""docs/python.md, what README says of it, and the examples: every program runs as it is written."""

import json
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import shoal
from simulation.datasets.watch import load_watch
from tests.support.fleets import synthetic_fleet
from tests.support.pages import PROGRAMS, ROOT, page

EXAMPLES = ROOT / "examples"


def example(name: str) -> dict[str, Any]:
    """Return the definitions of an example."""
    return runpy.run_path(str(EXAMPLES / name), run_name="example")


def needs_pandas() -> None:
    pytest.importorskip(
        "pandas", reason="pandas is not installed: pip install 'shoal[pandas]' would run this"
    )


def run_programs(text: str) -> dict[str, Any]:
    """Run the programs of a page one after the other, as a reader types them; what they define."""
    made: dict[str, Any] = {"__name__": "page"}
    for program in PROGRAMS.findall(text):
        exec(program, made)
    return made


@pytest.mark.full
def test_the_programs_of_the_page_run_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_pandas()
    monkeypatch.chdir(tmp_path)
    made = run_programs(page("python"))
    assert len(PROGRAMS.findall(page("python"))) >= 8
    assert made["own"].accuracy.mean > 0.9
    assert made["probabilities"].shape == (5, 2)
    assert made["logits"].shape == (5, 2)
    assert made["by_round"].loc["anna"].dropna().shape == (4,)
    assert (len(made["last"]), len(made["losses"])) == (3, 3)
    assert {path.name for path in (tmp_path / "runs" / "models").iterdir()} >= {
        "models.json",
        "group-0.onnx",
        "device-anna.pt",
    }
    assert (tmp_path / "runs" / "bundle" / "device.shoal").exists()
    assert [row["algorithm"] for row in made["comparison"].rows] == ["fedavg", "distfl"]


@pytest.mark.full
@pytest.mark.parametrize("name", ["callbacks", "lengths"])
def test_the_programs_of_a_guide_run_by_themselves(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = run_programs(page(name))
    if name == "lengths":
        assert made["gestures"].window.shape == (4, 64)
        assert made["masked"].accuracy.mean > 0.4
        return
    lines = (tmp_path / "runs" / "rounds.csv").read_text().splitlines()
    assert len(lines) == 1 + len(made["run"].rounds)


def test_the_program_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_pandas()
    monkeypatch.chdir(tmp_path)
    readme = (ROOT / "README.md").read_text()
    assert run_programs(readme)["result"].accuracy.mean > 0.5
    assert (tmp_path / "runs" / "models" / "group-0.onnx").exists()
    assert "(docs/python.md)" in readme


def test_the_pages_name_every_example() -> None:
    found = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")}
    assert found == {
        name
        for of in ("python", "tutorial")
        for name in re.findall(r"\(\.\./examples/([\w.]+)\)", page(of))
    }


ROUNDING = 1e-5
"""Tolerance of float32 sums in another order, over three rounds: processors differ in it, and
training changes a hundred times as much."""


class TestFedAvg:
    @pytest.mark.parametrize(("batch_size", "epochs"), [(32, 1), (16, 2), (4096, 1)])
    def test_it_gives_the_model_of_the_registered_one(self, batch_size: int, epochs: int) -> None:
        program, data = example("fedavg.py"), shoal.load("watch", devices=4)
        torch.manual_seed(1)
        layers = (
            nn.Conv1d(6, 16, 5),
            nn.BatchNorm1d(16),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(8),
            nn.Flatten(),
        )
        start = nn.Sequential(*layers, nn.Linear(128, len(data.classes)))
        own = program["fedavg"](start, data, 3, epochs, batch_size, seed=5)
        registered = shoal.simulate(
            data,
            algorithm="fedavg",
            model=start,
            rounds=3,
            local_epochs=epochs,
            batch_size=batch_size,
            seed=5,
        ).model()
        moved = 0.0
        for one, other, before in zip(
            own.parameters(), registered.parameters(), start.parameters(), strict=True
        ):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=ROUNDING)
            moved = max(moved, float((one - before).detach().abs().max()))
        assert moved > 1e-3
        kinds = (torch.nn.BatchNorm1d,)
        norms = [
            [m for m in network.modules() if isinstance(m, kinds)] for network in (own, registered)
        ]
        for one, other in zip(*norms, strict=True):
            torch.testing.assert_close(one.running_var, other.running_var, rtol=1e-4, atol=ROUNDING)

    def test_it_is_short_and_runs(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert example("fedavg.py")["main"](rounds=1) < 1e-5
        assert "the parameters differ by at most" in capsys.readouterr().out
        assert len((EXAMPLES / "fedavg.py").read_text()) <= 3_100, "short however lines are broken"


@pytest.mark.full
def test_adapters_are_trained_on_a_frozen_body_of_another_data_set(
    capsys: pytest.CaptureFixture[str],
) -> None:
    program = example("adapters.py")
    bodies: list[dict[str, torch.Tensor]] = []
    trained = program["trained_body"]

    def noted(data: shoal.FleetData, epochs: int) -> torch.nn.Module:
        body: torch.nn.Module = trained(data, epochs)
        bodies.append({name: value.clone() for name, value in body.state_dict().items()})
        return body

    program["main"].__globals__["trained_body"] = noted
    result = program["main"]("watch", synthetic_fleet(3, num_windows=60), rounds=3, epochs=1)
    state = result.model().state_dict()
    for name, value in bodies[0].items():
        torch.testing.assert_close(
            next(v for key, v in state.items() if key.endswith(f"body.{name}")),
            value,
            rtol=0,
            atol=0,
        )
    sent = result.summary.bytes.up / 3 / 3
    told = capsys.readouterr().out
    found = re.search(r"sends ([\d,]+) bytes a round, the whole model would be ([\d,]+)", told)
    assert found
    asked, whole = (int(number.replace(",", "")) for number in found.groups())
    assert asked < whole / 4
    assert sent < whole, "the body does not travel"


@pytest.mark.full
def test_the_sweep_finds_settings_without_the_test_part_and_resumes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip(
        "optuna", reason="Optuna is not installed: pip install 'shoal[sweep]' would run this"
    )
    met: list[shoal.FleetData] = []
    real = shoal.simulate

    def watched(data: shoal.FleetData, **options: Any) -> shoal.Result:
        met.append(data)
        return real(data, **options)

    monkeypatch.setattr(shoal, "simulate", watched)
    main, options = example("sweep.py")["main"], {"devices": 3, "rounds": 1, "folder": tmp_path}
    main(trials=1, **options)
    met.clear()
    accuracy = main(trials=3, **options)
    assert 0 < accuracy <= 1
    assert "best on the windows set aside:" in capsys.readouterr().out
    assert len(met) == 3, "two trials are left, and the test of the best"
    whole = {d: {bytes(x) for x in windows.test_x} for d, windows in load_watch().devices.items()}
    for data in met[:-1]:
        for device_id, windows in data.devices.items():
            assert whole[device_id].isdisjoint(
                bytes(x) for part in (windows.train_x, windows.test_x) for x in part
            )


@pytest.mark.full
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs by nbclient if that and a kernel are installed, else its cells run one after the
    other."""
    path = EXAMPLES / "first_run.ipynb"
    cells = [
        "".join(cell["source"])
        for cell in json.loads(path.read_text())["cells"]
        if cell["cell_type"] == "code"
    ]
    try:
        import ipykernel  # type: ignore[import-not-found, import-untyped, unused-ignore]  # noqa: F401
        import nbclient
        import nbformat
    except ModuleNotFoundError:
        monkeypatch.chdir(tmp_path)
        made: dict[str, Any] = {"__name__": "notebook"}
        for cell in cells:
            exec(cell, made)
        assert (
            np.mean([e.accuracy for e in made["personal"].evaluations if e.final])
            > made["plain"].accuracy.mean
        )
        return
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{':'.join(sys.path)}")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=200, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    outputs = [
        output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs
    ]
    assert len(outputs) == len(cells)


def test_the_notebook_is_kept_without_outputs() -> None:
    cells = json.loads((EXAMPLES / "first_run.ipynb").read_text())["cells"]
    assert [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []
