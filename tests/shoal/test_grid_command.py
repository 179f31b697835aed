"""`shoal compare --scenarios`: what it writes, what it says, that it goes on where it stopped, and
its picture."""

import csv
import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest

from shoal.cli import application
from shoal.reports.comparison_pictures import draw_grid
from simulation.comparison.grid import make_cells
from tests.support.fleets import synthetic_fleet


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with named.npz, with two recordings of every device, and plain.npz, which names
    none."""
    data = synthetic_fleet(4, num_windows=24)
    x = np.concatenate([np.concatenate([w.train_x, w.test_x]) for w in data.devices.values()])
    y = np.concatenate([np.concatenate([w.train_y, w.test_y]) for w in data.devices.values()])
    subject, place = np.repeat(np.arange(4), 36), np.tile(np.arange(36), 4)
    np.savez(
        tmp_path / "named.npz",
        X=x,
        y=y,
        subject=subject,
        session=place // 18,
        start=place % 18 * 32,
    )
    np.savez(tmp_path / "plain.npz", X=x, y=y, subject=subject)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def compare(*words: str) -> None:
    common = ("--algorithms", "fedavg,local", "--rounds", "1", "--workers", "1", "--out", "out")
    application("compare")(["compare", *common, *words], standalone_mode=False)


@pytest.mark.full
def test_a_grid_is_written_resumed_and_told(
    written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (
        "--scenarios",
        "--data",
        "named.npz,plain.npz",
        "--labels",
        "all,2",
        "--split",
        "own,session",
        "--reference",
        "local",
    )
    compare(*words)
    told = capsys.readouterr().out
    found = json.loads((written / "out" / "compare.json").read_text())
    assert [(c["data"], c["split"], c["labels"]) for c in found["cells"]] == [
        ("named.npz", "own", "all"),
        ("named.npz", "own", 2),
        ("named.npz", "session", "all"),
        ("named.npz", "session", 2),
        ("plain.npz", "own", "all"),
        ("plain.npz", "own", 2),
    ]
    assert [(c["data"], c["split"], c["labels"]) for c in found["left_out"]] == [
        ("plain.npz", "session", "all"),
        ("plain.npz", "session", 2),
    ]
    assert all("needs the session of each window" in c["why"] for c in found["left_out"])
    assert all(
        [row["algorithm"] for row in c["algorithms"]] == ["fedavg", "local"] for c in found["cells"]
    )
    assert all(row["seeds"] == 3 for c in found["cells"] for row in c["algorithms"])
    assert [row["cells"] for row in found["overall"]] == [6, 6]
    assert [(row["against"] or {}).get("pairs") for row in found["overall"]] == [2 * 4, None]
    with (written / "out" / "compare.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12
    assert {
        "data",
        "split",
        "labels",
        "algorithm",
        "accuracy.mean",
        "accuracy.ci95",
        "macro_f1.mean",
        "below_best",
        "against.p",
    } <= rows[0].keys()
    assert "named.npz, session, 2 labels" in told
    assert "plain.npz, session, all labels left out: split session" in told.replace("\n", " ")
    assert "Means over 6 of 6 cells: those in which every run ended with a model" in told
    assert "; reference local" in told
    kept = {path: path.stat().st_mtime_ns for path in (written / "out" / "runs").iterdir()}
    assert len(kept) == 6 * 2 * 3
    compare(*words)
    assert {path: path.stat().st_mtime_ns for path in (written / "out" / "runs").iterdir()} == kept
    assert json.loads((written / "out" / "compare.json").read_text()) == found


def test_one_scenario_is_a_comparison_as_before(written: Path) -> None:
    compare("--data", "named.npz", "--labels", "2", "--split", "session", "--seeds", "2")
    rows: list[dict[str, Any]] = json.loads((written / "out" / "compare.json").read_text())
    assert [row["algorithm"] for row in rows] == ["fedavg", "local"]
    assert rows[1]["against"]["reference"] == "fedavg"
    assert rows[1]["against"]["pairs"] == 4
    (one, *_) = [
        json.loads(path.read_text())["job"]["settings"]
        for path in (written / "out" / "runs").iterdir()
    ]
    assert (one["labels"], one["split"]) == ("2", "session")


def test_a_simulation_tells_its_scenario(written: Path) -> None:
    words = (
        "--algorithm",
        "fedavg",
        "--rounds",
        "1",
        "--data",
        "named.npz",
        "--labels",
        "2",
        "--split",
        "session",
        "--out",
        "out",
    )
    application("simulate")(["simulate", *words], standalone_mode=False)
    summary = json.loads((written / "out" / "summary.json").read_text())
    assert (summary["labels"], summary["split"]) == ("2", "session")
    assert [(d["num_train"], d["num_test"]) for d in summary["devices"].values()] == [(6, 18)] * 4
    page = (written / "out" / "report.html").read_text()
    assert (
        "Scenario: at most 2 labelled windows of each class on a device; training and test "
        "parts by session."
    ) in page.replace("\n", " ")
    assert ">Macro F1</th>" in page


def test_the_picture_has_a_square_for_each_algorithm_and_cell(tmp_path: Path) -> None:
    cells = make_cells(["first", "second"], ["all", "1"], ["time", "session"])

    def rows(*means: float | None) -> list[dict[str, Any]]:
        return [{"algorithm": f"a{i}", "accuracy": {"mean": mean}} for i, mean in enumerate(means)]

    found = {
        cell: rows(0.9, 0.9 - 0.02 * i, None if i == 3 else 0.5) for i, cell in enumerate(cells)
    }
    seen: list[Any] = []
    close = plt.close
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plt, "close", seen.append)
        path = draw_grid(tmp_path / "grid.png", found, rows(0.9, 0.83, None))
    axes = seen[0].axes[0]
    texts = [t.get_text() for t in axes.texts]
    squares = [p for p in axes.patches if p.get_fill()]
    close(seen[0])
    assert len(squares) == 3 * (8 + 1)
    assert texts.count("90.0") == 8 + 2
    assert texts.count("-") == 2
    assert [texts.count(word) for word in ("first", "second", "time", "session", "all cells")] == [
        1,
        1,
        2,
        2,
        1,
    ]
    best = [p.get_facecolor() for p in squares[0::3]]
    assert len(set(best)) == 1
    assert squares[-2].get_facecolor() != best[0]
    assert plt.imread(path).shape[1] > 700
