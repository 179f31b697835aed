"""A grid of scenarios: its cells, those that data do not allow, and the tables over it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulation.comparison.grid import Cell, Grid, all_jobs, make_cells, make_grid, sort_out
from simulation.comparison.grid_table import cell_rows, overall_rows
from simulation.comparison.processes import check_jobs, run_all
from simulation.comparison.runs import read_algorithms
from simulation.settings import SimulationSettings
from tests.support.fleets import synthetic_fleet
from wire.errors import ConfigError, DataError


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """Two data sets: one that names two recordings of each device, one that names none."""
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
    return str(tmp_path / "named.npz"), str(tmp_path / "plain.npz")


def read_cells(*values: str) -> tuple[Cell, ...]:
    """The cells of data, labels and splits with commas between them."""
    return make_cells(*([part for part in text.split(",") if part] for text in values))


def grid(data: str, labels: str = "all,2", splits: str = "random,session", seeds: int = 2) -> Grid:
    settings = SimulationSettings(rounds=1)
    return make_grid(
        read_cells(data, labels, splits), read_algorithms("fedavg,local"), seeds, settings
    )


def test_cells_are_every_combination_and_the_usual_ones_where_nothing_is_asked() -> None:
    assert [str(cell) for cell in read_cells("a,b", "all,1", "time,session:test=0.5")][:4] == [
        "a, time, all labels",
        "a, time, 1 label",
        "a, session:test=0.5, all labels",
        "a, session:test=0.5, 1 label",
    ]
    usual = read_cells("watch", "", "")
    assert {cell.labels for cell in usual} == {"all", 20, 5, 1, "none"}
    assert {cell.split for cell in usual} == {"time", "session"}
    assert len(usual) == 10


@pytest.mark.parametrize(
    ("values", "error"),
    [
        (("a,a", "", ""), "data must be different values, got a, a"),
        ((",", "", ""), "data must be different values, got none"),
        (("a", "all,some", ""), "labels must be .*, got 'some'"),
        (("a", "5,5", ""), "labels must be different values, got 5, 5"),
        (("a", "5,05", ""), "labels must be different values, got 5, 05"),
        (
            ("a", "", "time,time:test=0.25"),
            "split must be different values, got time, time:test=0.25",
        ),
        (("a", "", "time,now"), "No split 'now'"),
    ],
)
def test_values_that_cannot_be_are_one_error(values: tuple[str, str, str], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        read_cells(*values)


def test_what_data_do_not_allow_is_left_out_by_name(files: tuple[str, str]) -> None:
    asked = grid(",".join(files))
    allowed, left_out = sort_out(asked)
    assert [str(cell) for cell in left_out] == [
        f"{files[1]}, session, all labels",
        f"{files[1]}, session, 2 labels",
    ]
    assert all(
        "needs the session of each window, which data plain do not have" in why
        for why in left_out.values()
    )
    assert sorted(map(str, [*allowed, *left_out])) == sorted(map(str, asked))


def test_what_cannot_be_read_or_split_at_all_is_an_error(files: tuple[str, str]) -> None:
    with pytest.raises(DataError, match=r"missing\.npz"):
        sort_out(grid("missing.npz"))
    settings, cells = SimulationSettings(partition="iid"), read_cells(files[0], "all", "time")
    with pytest.raises(ConfigError, match="with partition iid"):
        sort_out(make_grid(cells, read_algorithms("fedavg"), 1, settings))


def test_runs_are_resumed_and_seeds_come_first(files: tuple[str, str], tmp_path: Path) -> None:
    asked = grid(files[0], splits="random")
    jobs = all_jobs(sort_out(asked)[0])
    assert [job.settings.seed for job in jobs] == [0] * 4 + [1] * 4
    assert len({job.key for job in jobs}) == 8
    assert len(check_jobs(jobs, tmp_path / "runs")) == 2
    first = run_all(jobs[:3], tmp_path / "runs", workers=1)
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir()}
    every = run_all(jobs, tmp_path / "runs", workers=1)
    assert every[:3] == first
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert [(r["labels"], r["seed"]) for r in every] == [
        ("all", 0),
        ("all", 0),
        ("2", 0),
        ("2", 0),
        ("all", 1),
        ("all", 1),
        ("2", 1),
        ("2", 1),
    ]
    rows = cell_rows([r for r in every if r["labels"] == "2"], "local")
    assert [row["algorithm"] for row in rows] == ["fedavg", "local"]
    assert rows[0]["against"]["pairs"] == 4
    assert rows[0]["devices"] == 4


def run(
    algorithm: str, seed: int, accuracies: list[float], f1: float = 0.5, **others: Any
) -> dict[str, Any]:
    return {
        "algorithm": algorithm,
        "seed": seed,
        "labels": "all",
        "devices": {f"d{i:02}": a for i, a in enumerate(accuracies)},
        "macro_f1": {"mean": f1, "std": 0.0, "worst": f1, "worst_tenth": f1},
        "attack": None,
        "newcomers": None,
        **others,
    }


def test_a_cell_says_who_is_best_and_by_how_much() -> None:
    rows = cell_rows(
        [
            run("a", 0, [0.5, 0.7]),
            run("b", 0, [0.9, 0.7]),
            run("a", 1, [0.5, 0.9], f1=0.7),
            run("b", 1, [0.8, 0.8]),
        ],
        "a",
    )
    assert [row["below_best"] for row in rows] == pytest.approx([0.15, 0.0])
    assert rows[0]["accuracy"]["mean"] == pytest.approx(0.65)
    assert rows[0]["accuracy"]["ci95"] == pytest.approx(12.7062 * 0.0707107 / 2**0.5, abs=1e-4)
    assert rows[0]["accuracy"]["std"] == pytest.approx(0.0707107, abs=1e-6)
    assert rows[0]["accuracy"]["worst_tenth"] == pytest.approx(0.5)
    assert rows[0]["macro_f1"]["mean"] == pytest.approx(0.6)
    assert rows[0]["against"] is None
    assert rows[1]["against"]["difference"] == pytest.approx(0.15)


def test_without_labels_a_cell_is_about_newcomers() -> None:
    newcomers = {
        "mean": 0.3,
        "std": 0.1,
        "worst": 0.2,
        "worst_tenth": 0.2,
        "devices": {"n1": 0.2, "n2": 0.4},
    }
    (row,) = cell_rows([run("a", 0, [0.9, 0.9], labels="none", newcomers=newcomers)], "a")
    assert (row["accuracy"]["mean"], row["accuracy"]["worst"], row["devices"]) == (0.3, 0.2, 2)
    assert row["macro_f1"]["mean"] is None, "labels that are no classes have none"
    assert row["accuracy"]["std"] is None, "of one seed"
    scored = newcomers | {
        "macro_f1": {"mean": 0.25, "std": 0.1, "worst": 0.15, "worst_tenth": 0.15}
    }
    (row,) = cell_rows([run("a", 0, [0.9, 0.9], labels="none", newcomers=scored)], "a")
    assert row["macro_f1"]["mean"] == 0.25


def test_over_all_cells_each_counts_the_same_and_those_without_a_model_are_left_out() -> None:
    results = {
        "one": [run("a", 0, [0.5, 0.5]), run("b", 0, [0.6, 0.6]), run("c", 0, [0.598, 0.598])],
        "two": [run("a", 0, [0.9]), run("b", 0, [0.7]), run("c", 0, [0.8])],
        "broken": [
            run("a", 0, [1.0]),
            run("b", 0, [], failed="why", macro_f1=None),
            run("c", 0, [1.0]),
        ],
    }
    tables = {name: cell_rows(runs, "a") for name, runs in results.items()}
    rows = overall_rows(tables, results, "a")
    assert [row["cells"] for row in rows] == [2, 2, 2]
    assert [row["accuracy"]["mean"] for row in rows] == pytest.approx([0.7, 0.65, 0.699])
    assert [row["below_best"] for row in rows] == pytest.approx([0.05, 0.1, 0.051])
    assert [row["most_below_best"] for row in rows] == pytest.approx([0.1, 0.2, 0.1])
    assert [row["near_best"] for row in rows] == [1, 1, 1]
    assert rows[1]["against"]["pairs"] == 2
    assert rows[1]["against"]["difference"] == pytest.approx(((0.1 - 0.2) / 2 + 0.1) / 2, abs=1e-6)


def test_a_cell_has_one_name() -> None:
    assert str(Cell("uci-har", "time", "none")) == "uci-har, time, no labels"
