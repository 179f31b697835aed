"""`shoal.compare` and `shoal.export` are doors to what the commands do."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from safetensors.numpy import load_file

import shoal
from algorithms.composition import Given, algorithm_of, choice, read_algorithm
from algorithms.objectives.fedavg import FedAvg
from algorithms.server_optimizers.momentum import FedAvgM
from export.runtimes import load_graph
from shoal.cli import application
from simulation.comparison.runs import Job, run_job
from simulation.settings import SimulationSettings
from tests.shoal.small import small
from tests.support.fleets import synthetic_fleet
from tests.support.known import known
from tests.support.labels import quantities, several_labels
from wire.bundle import unpack
from wire.errors import ConfigError

ALGORITHMS = ["fedavg", "local"]


class TestCompare:
    def test_data_by_name_are_compared_as_the_command_does(self, tmp_path: Path) -> None:
        found = shoal.compare(ALGORITHMS, devices=3, rounds=1, out=tmp_path)
        assert [row["algorithm"] for row in found.rows] == ALGORITHMS
        assert json.loads((tmp_path / "compare.json").read_text()) == found.rows
        assert (tmp_path / "compare.png").read_bytes().startswith(b"\x89PNG")
        job = Job("watch", SimulationSettings(read_algorithm("local"), 1, devices=3))
        expected = run_job(job)
        assert found.runs[1]["devices"] == expected["devices"]
        kept = sorted((tmp_path / "runs").iterdir())
        stamps = [path.stat().st_mtime_ns for path in kept]
        assert len(kept) == 2
        again = shoal.compare(",".join(ALGORITHMS), devices=3, rounds=1, out=tmp_path)
        assert again.rows == found.rows
        assert [path.stat().st_mtime_ns for path in sorted((tmp_path / "runs").iterdir())] == stamps

    @pytest.mark.parametrize(
        "algorithms", [["fedavg+uniform", "apple"], ["apple", "fedavg+uniform"]]
    )
    def test_secret_mode_refuses_any_of_the_algorithms_that_it_cannot_run(
        self, algorithms: list[str]
    ) -> None:
        with pytest.raises(ConfigError, match="Secret mode cannot run 'apple'"):
            shoal.compare(algorithms, synthetic_fleet(6), rounds=1, secret=True)

    def test_own_data_and_models_are_compared_over_seeds(self, tmp_path: Path) -> None:
        fleet = synthetic_fleet(3)
        found = shoal.compare(ALGORITHMS, fleet, model=small, rounds=2, seeds=2, out=tmp_path)
        assert [(run["algorithm"], run["seed"]) for run in found.runs] == [
            (name, seed) for seed in (0, 1) for name in ALGORITHMS
        ]
        for run in found.runs:
            single = shoal.simulate(
                fleet, algorithm=run["algorithm"], model=small, rounds=2, seed=run["seed"]
            )
            assert run["devices"] == {d: s.accuracy for d, s in single.summary.devices.items()}
        assert found.rows[1]["against"]["reference"] == "fedavg"
        assert {path.name for path in tmp_path.iterdir()} == {
            "compare.json",
            "compare.csv",
            "compare.png",
            "models",
            "report.html",
        }

    @pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
    def test_the_models_of_every_run_are_kept(self, tmp_path: Path, workers: int) -> None:
        algorithms = ["fedavg", "distfl"]
        options: dict[str, Any] = {"rounds": 1, "seeds": 2, "devices": 2}
        shoal.compare(algorithms, "watch", out=tmp_path, workers=workers, **options)
        folders = {path.name.rpartition("-")[0]: path for path in (tmp_path / "models").iterdir()}
        assert sorted(folders) == [f"{a}-seed-{s}" for a in sorted(algorithms) for s in (0, 1)]
        alone = shoal.simulate("watch", algorithm="fedavg", rounds=1, devices=2, seed=1)
        kept = load_file(folders["fedavg-seed-1"] / "group-0.safetensors")
        state = alone.model().state_dict()
        shared = [key for key in kept if key.startswith("shared/")]
        assert shared
        for key in shared:
            assert np.array_equal(kept[key], state[key.removeprefix("shared/")].numpy())
        before = {path: path.stat().st_mtime_ns for path in (tmp_path / "models").rglob("*.pt")}
        shoal.compare(algorithms, "watch", out=tmp_path, workers=1, **options)
        assert before == {path: path.stat().st_mtime_ns for path in before}

    def test_the_table_has_the_columns_of_the_file(self, tmp_path: Path) -> None:
        pytest.importorskip(
            "pandas", reason="pandas is not installed: pip install 'shoal[pandas]' would run this"
        )
        found = shoal.compare(["fedavg"], synthetic_fleet(2), rounds=1, out=tmp_path)
        with (tmp_path / "compare.csv").open(newline="") as file:
            assert list(found.table.columns) == next(csv.reader(file))
        assert found.table["accuracy.mean"].tolist() == [found.rows[0]["accuracy"]["mean"]]

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (
                {"algorithms": []},
                "algorithms must have at least one name, and none twice, got none",
            ),
            ({"reference": "distfl"}, "reference must be one of fedavg, local, got distfl"),
            ({"seeds": 0}, "seeds must be a whole number between 1 and 1000000, got 0"),
            (
                {"workers": 2},
                "workers must be 1 with a FleetData, a model of your own or a class outside of any "
                "file, got 2",
            ),
            ({"split": "session"}, "session"),
            (
                {"labels": [1, 5]},
                "labels must be a single value without scenarios, got 1,5",
            ),
            (
                {"scenarios": True, "target": 0.5},
                "target must be left out with scenarios, which count no rounds, got 0.5",
            ),
            (
                {"scenarios": True, "split": ["session"]},
                "scenarios: no cell of the grid can run. Reason for the first: split session",
            ),
            (
                {"algorithms": ["fedavg", "fedavg"]},
                "algorithms must have at least one name, and none twice, got fedavg, fedavg",
            ),
            ({"algorithms": [3]}, "must be a name, a class"),
            ({"data": []}, "data must be a name, a path or a FleetData"),
        ],
    )
    def test_options_that_cannot_be_are_one_clear_error(
        self, options: dict[str, Any], said: str
    ) -> None:
        asked: dict[str, Any] = {
            "algorithms": ALGORITHMS,
            "data": synthetic_fleet(2),
            "rounds": 1,
        } | options
        with pytest.raises(shoal.ShoalError, match=said):
            shoal.compare(**asked)


class Heavier(FedAvg):
    """A class that its file names: its runs are found again."""

    name: ClassVar[str] = "heavier"
    citation: ClassVar[str] = "a test"


class TestGrid:
    """`scenarios`, and what resuming needs."""

    OPTIONS: ClassVar[dict[str, Any]] = {
        "labels": ["all", 2],
        "split": ["time", "session"],
        "rounds": 1,
        "seeds": 2,
        "scenarios": True,
    }

    @pytest.mark.full
    def test_a_grid_is_that_of_the_command(self, tmp_path: Path) -> None:
        told: list[shoal.CompareProgress] = []
        found = shoal.compare(
            ALGORITHMS,
            "watch",
            devices=2,
            out=tmp_path / "python",
            on_progress=told.append,
            **self.OPTIONS,
        )
        options = [
            "--data",
            "watch",
            "--devices",
            "2",
            "--labels",
            "all,2",
            "--split",
            "time,session",
            "--rounds",
            "1",
            "--seeds",
            "2",
        ]
        written = tmp_path / "command"
        said = [
            "--scenarios",
            "--algorithms",
            ",".join(ALGORITHMS),
            *options,
            "--workers",
            "1",
            "--out",
            str(written),
        ]
        application("compare")(["compare", *said], standalone_mode=False)
        files = [
            json.loads((folder / "compare.json").read_text())
            for folder in (tmp_path / "python", written)
        ]
        assert files[0] == files[1]
        assert files[0]["overall"] == found.rows
        assert files[0]["left_out"] == found.left_out
        assert [cell["split"] for cell in found.left_out] == ["session", "session"]
        assert [row for cell in files[0]["cells"] for row in cell["algorithms"]] == [
            {key: value for key, value in row.items() if key not in ("data", "split", "labels")}
            for row in found.cells
        ]
        assert (tmp_path / "python" / "compare.csv").read_text() == (
            written / "compare.csv"
        ).read_text()
        assert (told[-1].finished_rounds, told[-1].total, len(told)) == (8, 8, 8)
        assert {(t.algorithm, t.seed, t.labels, t.split) for t in told} == {
            (name, seed, labels, "time")
            for name in ALGORITHMS
            for seed in (0, 1)
            for labels in ("all", "2")
        }

    def test_data_and_classes_at_hand_are_compared_and_found_again(self, tmp_path: Path) -> None:
        fleets = [replace(synthetic_fleet(2), name="one"), replace(synthetic_fleet(3), name="two")]
        asked: dict[str, Any] = {
            "rounds": 1,
            "seeds": 1,
            "labels": [2],
            "split": ["random"],
            "scenarios": True,
            "out": tmp_path,
        }
        algorithms: list[Given] = [
            "fedavg",
            Heavier,
            algorithm_of("fedavg", choice(FedAvgM, beta=0.5)),
        ]
        found = shoal.compare(algorithms, fleets, **asked)
        assert [row["algorithm"].rpartition(":")[2] for row in found.rows] == [
            "fedavg",
            "Heavier",
            "beta=0.5",
        ]
        assert [row["data"].partition("@")[0] for row in found.cells] == ["one"] * 3 + ["two"] * 3
        stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir()}
        assert len(stamps) == 6
        assert shoal.compare(algorithms, fleets, **asked).rows == found.rows
        assert {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir()} == stamps
        windows = fleets[0].devices["d0"]
        changed = replace(
            fleets[0],
            devices={**fleets[0].devices, "d0": replace(windows, train_x=windows.train_x + 1)},
        )
        shoal.compare(["fedavg"], [changed], **asked)
        assert len([*(tmp_path / "runs").iterdir()]) == 7, (
            "other values are other data, whatever they are called"
        )

    def test_runs_go_on_where_a_callback_ended_them(self, tmp_path: Path) -> None:
        def stop(told: shoal.CompareProgress) -> None:
            if told.algorithm == "local":
                raise KeyboardInterrupt

        asked: dict[str, Any] = {"data": synthetic_fleet(2), "rounds": 1, "out": tmp_path}
        with pytest.raises(KeyboardInterrupt):
            shoal.compare(ALGORITHMS, on_progress=stop, **asked)
        (kept,) = (tmp_path / "runs").iterdir()
        stamp = kept.stat().st_mtime_ns
        assert len(shoal.compare(ALGORITHMS, **asked).runs) == 2
        assert kept.stat().st_mtime_ns == stamp

    def test_a_class_that_is_in_no_file_is_compared_and_its_runs_are_made_anew(
        self, tmp_path: Path
    ) -> None:
        class Local(Heavier):
            name: ClassVar[str] = "local-class"

        found = shoal.compare(["fedavg", Local], synthetic_fleet(2), rounds=1, out=tmp_path)
        assert [row["algorithm"] for row in found.rows] == ["fedavg", "python:Local"]
        assert len([*(tmp_path / "runs").iterdir()]) == 1
        with pytest.raises(shoal.ConfigError, match="a class outside of any file"):
            shoal.compare([Local], "watch", workers=2)
        against = shoal.compare(["fedavg", Local], synthetic_fleet(2), rounds=1, reference=Local)
        assert [row["against"]["reference"] for row in against.rows if row.get("against")] == [
            "python:Local"
        ]

    def test_quantities_have_their_error_and_several_labels_the_area_under_the_curve(
        self, tmp_path: Path
    ) -> None:
        for make, task, column in (
            (quantities, "regression", "mae"),
            (several_labels, "multi-label", "auc"),
        ):
            fleet = make(synthetic_fleet(2))
            found = shoal.compare(
                [f"fedavg+{task}", f"local+{task}"], fleet, rounds=1, out=tmp_path / task
            )
            simulated = shoal.simulate(fleet, algorithm=f"fedavg+{task}", rounds=1).summary
            told = found.rows[0][column]
            if column == "auc":
                assert told["mean"] == known(simulated.auc).mean
            else:
                assert told == {name: error.mean for name, error in known(simulated.mae).items()}
            assert column in (tmp_path / task / "compare.csv").read_text().splitlines()[0]


class TestExport:
    @pytest.mark.full
    def test_a_bundle_is_written_for_a_model_of_ones_own(self, tmp_path: Path) -> None:
        told: list[str] = []
        published = shoal.export(
            synthetic_fleet(2), tmp_path, algorithm="fedavg", model=small, on_progress=told.append
        )
        assert {path.name for path in tmp_path.iterdir()} == {
            "device.shoal",
            "server.pt2",
            "trust.pem",
            "signing.key",
        }
        bundle = unpack((tmp_path / "device.shoal").read_bytes())
        assert bundle.digest == published.bundle.digest
        assert (bundle.manifest.algorithm, bundle.manifest.classes) == (
            "fedavg",
            ("slow", "middle", "fast"),
        )
        assert "shared/extractor.0.weight" in {spec.key for spec in bundle.manifest.tensors}
        assert load_graph(bundle, "predict") is not None
        assert told[0] == "making the model"
        assert "step: writing it for ONNX" in told

    @pytest.mark.full
    def test_a_class_at_hand_is_exported(self, tmp_path: Path) -> None:
        published = shoal.export(synthetic_fleet(2), tmp_path, algorithm=Heavier, model=small)
        assert published.bundle.manifest.algorithm == "heavier"

    @pytest.mark.full
    def test_a_key_of_ones_own_signs_and_is_not_copied(self, tmp_path: Path) -> None:
        shoal.export(synthetic_fleet(2), tmp_path / "one", algorithm="fedavg", model=small)
        again = shoal.export(
            synthetic_fleet(2),
            tmp_path / "two",
            algorithm="fedavg",
            model=small,
            key=tmp_path / "one" / "signing.key",
        )
        assert again.trust == (tmp_path / "one" / "trust.pem").read_bytes()
        assert not (tmp_path / "two" / "signing.key").exists()
        with pytest.raises(shoal.ConfigError, match=r"key none\.pem: no such file; leave key out"):
            shoal.export(synthetic_fleet(2), tmp_path, key="none.pem")

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"max_batch": 2}, "max_batch must be a whole number of at least 8, got 2"),
            ({"runtimes": ["tpu"]}, "runtimes must be onnx, .*, got tpu"),
            (
                {"model": lambda shape, classes: 3},
                "is of type int. A model must be a torch.nn.Module whose last layer",
            ),
        ],
    )
    def test_options_that_cannot_be_are_one_clear_error(
        self, options: dict[str, Any], said: str, tmp_path: Path
    ) -> None:
        with pytest.raises(shoal.ConfigError, match=said):
            shoal.export(synthetic_fleet(2), tmp_path, **options)
