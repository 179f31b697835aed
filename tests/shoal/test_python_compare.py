"""`shoal.compare` and `shoal.export` are doors to what the commands do."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import shoal
from algorithms.registry import read_algorithm
from export.runtimes import load_graph
from simulation.compare import Job, run_job
from simulation.partition import read_partition
from simulation.simulate import SimulationSettings
from tests.conftest import synthetic_fleet
from tests.shoal.test_python_result import small
from wire.bundle import unpack

ALGORITHMS = ["fedavg", "local"]


class TestCompare:
    def test_data_by_name_are_compared_as_the_command_does(self, tmp_path: Path) -> None:
        found = shoal.compare(ALGORITHMS, devices=3, rounds=1, out=tmp_path)
        assert [row["algorithm"] for row in found.rows] == ALGORITHMS
        assert json.loads((tmp_path / "compare.json").read_text()) == found.rows
        assert (tmp_path / "compare.png").read_bytes().startswith(b"\x89PNG")
        job = Job("watch", read_partition("user"), SimulationSettings(read_algorithm("local"), 1), 3)
        expected = run_job(job)
        assert found.runs[1]["devices"] == expected["devices"]
        kept = sorted((tmp_path / "runs").iterdir())
        stamps = [path.stat().st_mtime_ns for path in kept]
        assert len(kept) == 2
        again = shoal.compare(",".join(ALGORITHMS), devices=3, rounds=1, out=tmp_path)
        assert again.rows == found.rows
        assert [path.stat().st_mtime_ns for path in sorted((tmp_path / "runs").iterdir())] == stamps

    def test_own_data_and_models_are_compared_over_seeds(self, tmp_path: Path) -> None:
        fleet = synthetic_fleet(3)
        found = shoal.compare(ALGORITHMS, fleet, model=small, rounds=2, seeds=2, out=tmp_path)
        assert [(run["algorithm"], run["seed"]) for run in found.runs] == [(name, seed) for seed in (0, 1) for name in ALGORITHMS]
        for run in found.runs:
            single = shoal.simulate(fleet, algorithm=run["algorithm"], model=small, rounds=2, seed=run["seed"])
            assert run["devices"] == {d: s.accuracy for d, s in single.summary.devices.items()}
        assert found.rows[1]["against"]["reference"] == "fedavg"
        assert {path.name for path in tmp_path.iterdir()} == {"compare.json", "compare.csv", "compare.png"}

    def test_the_table_has_the_columns_of_the_file(self, tmp_path: Path) -> None:
        pytest.importorskip("pandas", reason="pandas is not installed: pip install 'shoal[pandas]' would run this")
        found = shoal.compare(["fedavg"], synthetic_fleet(2), rounds=1, out=tmp_path)
        with (tmp_path / "compare.csv").open(newline="") as file:
            assert list(found.table.columns) == next(csv.reader(file))
        assert found.table["accuracy.mean"].tolist() == [found.rows[0]["accuracy"]["mean"]]

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"algorithms": []}, "expected different names"),
            ({"reference": "distfl"}, "reference distfl: expected one of fedavg,local"),
            ({"seeds": 0}, "seeds = 0: expected a whole number from 1"),
            ({"workers": 2}, "workers = 2: a FleetData or a model of your own is compared in this process"),
            ({"split": "session"}, "session"),
        ],
    )
    def test_options_that_cannot_be_are_one_clear_error(self, options: dict[str, Any], said: str) -> None:
        asked: dict[str, Any] = {"algorithms": ALGORITHMS, "data": synthetic_fleet(2), "rounds": 1} | options
        with pytest.raises(shoal.ShoalError, match=said):
            shoal.compare(**asked)


class TestExport:
    def test_a_bundle_is_written_for_a_model_of_ones_own(self, tmp_path: Path) -> None:
        told: list[str] = []
        published = shoal.export(synthetic_fleet(2), tmp_path, algorithm="fedavg", model=small, on_progress=told.append)
        assert {path.name for path in tmp_path.iterdir()} == {"device.shoal", "server.pt2", "trust.pem", "signing.key"}
        bundle = unpack((tmp_path / "device.shoal").read_bytes())
        assert bundle.digest == published.bundle.digest
        assert (bundle.manifest.algorithm, bundle.manifest.classes) == ("fedavg", ("slow", "middle", "fast"))
        assert "shared/extractor.0.weight" in {spec.key for spec in bundle.manifest.tensors}
        assert load_graph(bundle, "predict") is not None
        assert told[0] == "making the model"
        assert "step: writing it for ONNX" in told

    def test_a_key_of_ones_own_signs_and_is_not_copied(self, tmp_path: Path) -> None:
        shoal.export(synthetic_fleet(2), tmp_path / "one", algorithm="fedavg", model=small)
        again = shoal.export(synthetic_fleet(2), tmp_path / "two", algorithm="fedavg", model=small, key=tmp_path / "one" / "signing.key")
        assert again.trust == (tmp_path / "one" / "trust.pem").read_bytes()
        assert not (tmp_path / "two" / "signing.key").exists()
        with pytest.raises(shoal.ConfigError, match="there is no such file"):
            shoal.export(synthetic_fleet(2), tmp_path, key="none.pem")

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"max_batch": 2}, "max_batch = 2: expected a whole number from 8"),
            ({"runtimes": ["tpu"]}, "runtimes tpu: expected onnx"),
            ({"model": lambda shape, classes: 3}, "is int: expected a torch.nn.Module whose last layer"),
        ],
    )
    def test_options_that_cannot_be_are_one_clear_error(self, options: dict[str, Any], said: str, tmp_path: Path) -> None:
        with pytest.raises(shoal.ConfigError, match=said):
            shoal.export(synthetic_fleet(2), tmp_path, **options)
