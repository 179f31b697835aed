"""The papers' comparisons: data by their protocols, and runs that go on where they stopped."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from algorithms.composition import read_algorithm
from benchmarks.papers import cgau, feddisk_oracle, har
from benchmarks.papers.__main__ import TABLES, measure
from benchmarks.papers.budget import passes
from benchmarks.papers.intervals import estimate, paired
from benchmarks.papers.results import Results
from benchmarks.papers.table import Setting, Table, accuracy, best_round, by_seed, pooled_best
from simulation.comparison.runs import pooled_accuracy
from simulation.datasets.npz import load_npz
from simulation.datasets.windows import FleetData
from tests.support.fleets import synthetic_fleet


def rows(num_users: int = 30, each: int = 9) -> har.Rows:
    count = num_users * each
    x = np.arange(count * 9 * 12, dtype=np.float32).reshape(count, 9, 12)
    return {
        "X": x,
        "y": np.tile(np.arange(each) // 2, num_users),
        "subject": np.repeat(np.arange(1, num_users + 1), each),
    }


class TestData:
    def test_reshaped_windows_are_those_of_a_transpose_that_was_forgotten(self) -> None:
        before = rows()["X"]
        turned = np.stack(
            [window.T for window in before]
        )  # (n, time, channels), as the authors' code has them
        after = har.reshaped(rows())["X"]
        assert np.array_equal(after.ravel(), turned.ravel())
        assert after.shape == before.shape
        assert (
            after[0, 0, :9].tolist() == before[0, :, 0].tolist()
        )  # one "channel" begins with nine sensors at one time

    def test_last_quarter_is_the_end_of_each_users_rows(self) -> None:
        made = har.last_quarter(rows())
        assert sorted(set(made["subject"])) == sorted(har.DISTFL_USERS)
        assert len(har.DISTFL_USERS) == 20
        for user in har.DISTFL_USERS:
            split = made["split"][made["subject"] == user]
            assert split.tolist() == ["train"] * 6 + ["test"] * 3  # a quarter of 9, rounded up

    def test_a_form_is_a_file_that_a_run_reads(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(har, "find_uci_har", lambda: tmp_path)
        monkeypatch.setattr(
            har, "read_rows", lambda path: rows() | {"split": np.array(["train"] * 270)}
        )
        fleet = load_npz(har.write("last-quarter", tmp_path))
        assert isinstance(fleet, FleetData)
        assert {(w.num_train, w.num_test) for w in fleet.devices.values()} == {(6, 3)}


def test_pooled_accuracy_counts_examples_not_devices() -> None:
    fleet = synthetic_fleet(2)
    small = replace(
        fleet.devices["d1"],
        test_x=fleet.devices["d1"].test_x[:4],
        test_y=fleet.devices["d1"].test_y[:4],
    )
    fleet = replace(fleet, devices={"d0": fleet.devices["d0"], "d1": small})
    assert pooled_accuracy({"d0": 1.0, "d1": 0.0}, fleet) == 0.75
    assert pooled_accuracy({}, fleet) is None


class TestIntervals:
    def test_students_interval(self) -> None:
        found = estimate([90.0, 92.0, 94.0])
        assert (found.mean, found.count) == (92.0, 3)
        assert found.half == pytest.approx(4.303 * 2 / 3**0.5, rel=1e-3)
        assert found.show() == "92.0 ±5.0"

    def test_one_seed_has_no_interval(self) -> None:
        found = estimate([90.0])
        assert not found.above
        assert not found.below
        assert found.show() == "90.0 (one seed)"

    def test_pairs_take_away_what_seeds_have_in_common(self) -> None:
        found = paired([80.1, 90.2, 70.3], [79.0, 89.0, 69.0])
        assert found.above
        assert not estimate([80.1 - 79, 89.0 - 79, 70.3 - 79]).above


class TestTables:
    def test_keys_are_different_and_algorithms_exist(self) -> None:
        assert len({t.key for t in TABLES}) == len(TABLES)
        for table in TABLES:
            for name in table.algorithms:
                read_algorithm(name)
            assert table.hour is None or set(table.hour) <= set(table.algorithms), table.key
            assert {algorithm for chosen in table.only.values() for algorithm in chosen} <= set(
                table.algorithms
            ), table.key

    def test_a_table_that_ranks_has_three_seeds(self) -> None:
        assert {
            t.key: s.at(night).seeds
            for t in TABLES
            for s in t.columns.values()
            for night in (False, True)
            if s.at(night).seeds < 3
        } == {}

    def test_runs_that_are_there_are_not_made_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "data.npz"
        fleet = synthetic_fleet(2)
        parts = [
            (w.train_x, w.train_y, np.full(w.num_train, i))
            for i, w in enumerate(fleet.devices.values())
        ]
        x, y, subject = (np.concatenate(part) for part in zip(*parts, strict=True))
        np.savez(path, X=x, y=y, subject=subject)
        table = Table(
            "t",
            "T",
            {"c": Setting(str(path), rounds=2, seeds=2)},
            {"fedavg": "FedAvg", "local": "Local"},
            hour=("fedavg",),
        )
        told: list[int] = []
        first = table.measure(tmp_path, False, 1, lambda job, number: told.append(number))
        (row,) = first["c"]
        assert len(row["by_seed"]["accuracy"]) == len(row["by_seed"]["pooled_best"]) == 2
        assert row["trained"] == "2 rounds of one pass, batches of 32, 2 seeds"
        monkeypatch.setattr(
            "simulation.comparison.processes.run_job",
            lambda *given: pytest.fail("a run was made again"),
        )
        assert table.measure(tmp_path, False, 1, lambda job, number: None) == first
        text = table.markdown(first)
        assert "| FedAvg (`fedavg`) | " in text
        assert " ±" in text
        assert "Local" not in text

    def test_a_table_shows_what_is_finished(self, tmp_path: Path) -> None:
        settings = {
            "c": Setting("mnist", rounds=2, seeds=3),
            "d": Setting("watch", rounds=2, seeds=3),
        }
        row = {
            "algorithm": "fedavg",
            "trained": settings["c"].describe(),
            "accuracy": {"mean": 0.01},
            "by_seed": {"accuracy": [1.0, 1.0, 1.0]},
        }
        for tall in (False, True):
            table = Table("t", "T", settings, {"fedavg": "FedAvg"}, tall=tall)
            assert table.collect(tmp_path, night=False) == {"c": [], "d": []}
            text = table.markdown({"c": [row], "d": []})
            assert "1.0" in text
            assert ("| FedAvg (`fedavg`) | 1.0 ±0.0 | - | 1 |" in text) is not tall

    def test_the_best_round_is_chosen_over_all_test_examples(self) -> None:
        results = [{"accuracy": {"mean": 0.5}, "pooled_by_round": [0.4, 0.7, None, 0.6]}]
        row = {"by_seed": by_seed(results), "accuracy": {"mean": 0.5}}
        assert row["by_seed"] == {"accuracy": [50.0], "pooled_best": [70.0], "best_round": [2]}
        assert (pooled_best(row), best_round(row), accuracy(row)) == (70.0, 2.0, 50.0)
        assert (
            by_seed([{"failed": "no update", "accuracy": {"mean": None}, "pooled_by_round": []}])
            == {}
        )


@pytest.mark.parametrize(
    ("algorithm", "text"),
    [
        ("fedavg", "1"),
        ("dbe", "1"),
        ("ditto", "2"),
        ("lg-net", "1 + 10 at the end"),
        ("per-fedavg:adapt_steps=1", "1 + 1 step at the end"),
    ],
)
def test_passes_of_a_method(algorithm: str, text: str) -> None:
    assert passes(algorithm) == text


class TestSections:
    """A comparison that fits no table resumes where it stopped, too."""

    def test_the_oracle_keeps_every_run(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made: list[tuple[str, int]] = []

        def run(name: str, size: feddisk_oracle.Size, seed: int) -> float:
            if len(made) == 5:
                raise KeyboardInterrupt
            made.append((name, seed))
            return 80.0 + len(made)

        monkeypatch.setattr(feddisk_oracle, "accuracy_with", run)
        section = feddisk_oracle.Section()
        with pytest.raises(KeyboardInterrupt):
            section.measure(tmp_path, night=False)
        before = list(made)

        def go_on(name: str, size: feddisk_oracle.Size, seed: int) -> float:
            made.append((name, seed))
            return 90.0

        monkeypatch.setattr(feddisk_oracle, "accuracy_with", go_on)
        found = section.measure(tmp_path, night=False)
        assert made[:5] == before
        assert sorted(made) == sorted(
            (name, seed) for name in feddisk_oracle.ROWS for seed in range(3)
        )
        assert {len(values) for values in found["rows"].values()} == {3}
        text = section.markdown(found)
        assert text.count("\n| ") == 5
        assert " ±" in text

    def test_the_experiment_of_cgau_makes_what_is_missing(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fleet = synthetic_fleet(2)
        monkeypatch.setattr(
            cgau, "_prepared", lambda seed: (None, None, lambda x: x.reshape(len(x), -1))
        )
        monkeypatch.setattr(cgau, "_assign", lambda *given: fleet)
        made: list[tuple[str, int]] = []

        def train(algorithm: str, fleet: FleetData, rounds: int, seed: int) -> float:
            made.append((algorithm, seed))
            return 0.5

        monkeypatch.setattr(cgau, "accuracy_of_head", train)
        size = replace(cgau.HOUR, seeds=2, shuffles=(0.0,))
        found: dict[str, dict[str, list[float]]] = {"CGAU": {"0.0": [0.9, 0.8]}}
        kept: list[int] = []
        cgau.experiment(size, found, lambda held: kept.append(len(held)))
        assert found["CGAU"] == {"0.0": [0.9, 0.8]}
        assert [found[label]["0.0"] for label in list(cgau.HEADS.values())[1:]] == [[0.5, 0.5]] * 2
        assert len(kept) == len(made) == 4

    def test_a_night_in_parts_keeps_what_was_made_before(self, tmp_path: Path) -> None:
        table = Table(
            "t",
            "T",
            {"c": Setting("watch", rounds=2, seeds=3)},
            {"fedavg": "FedAvg", "local": "Local", "ditto": "Ditto"},
            hour=(),
        )
        assert len(table.lacking({}, night=True).jobs(True, tmp_path)) == 9
        trained = "2 rounds of one pass, batches of 32, {} seeds"
        row = {"seeds": 3, "trained": trained.format(3), "by": "before"}
        results = Results(tmp_path / "papers.json")
        results.keep(
            "t", {"c": [row | {"algorithm": "fedavg"}, row | {"algorithm": "local"}]}, night=True
        )
        left = table.lacking(results.of("t"), night=True)
        assert [str(job.settings.algorithm.objective) for job in left.jobs(True, tmp_path)] == [
            "ditto"
        ] * 3
        assert left.lacking(results.of("t"), night=True) == left
        fewer = {"seeds": 2, "trained": trained.format(2), "by": "now"}
        results.keep(
            "t",
            {"c": [row | {"algorithm": "local", "by": "now"}, fewer | {"algorithm": "ditto"}]},
            night=True,
        )
        found = {
            made["algorithm"]: (made["by"], made["seeds"])
            for made in Results(tmp_path / "papers.json").of("t")["c"]
        }
        assert found == {"fedavg": ("before", 3), "local": ("now", 3), "ditto": ("now", 2)}
        assert (
            len(table.lacking(results.of("t"), night=True).jobs(True, tmp_path)) == 3
        )  # a row of two seeds is made anew
        results.keep("t", {"c": []}, night=True)  # nothing of the column was made
        results.keep("t", {"c": [fewer | {"algorithm": "local"}]}, night=True)
        assert {made["algorithm"]: made["seeds"] for made in results.of("t")["c"]} == {
            "fedavg": 3,
            "local": 3,
            "ditto": 2,
        }
        results.keep(
            "t",
            {
                "c": [
                    fewer
                    | {
                        "algorithm": "local",
                        "trained": "4 rounds of one pass, batches of 32, 2 seeds",
                    }
                ]
            },
            night=True,
        )
        assert [made["seeds"] for made in results.of("t")["c"]] == [
            2
        ]  # trained otherwise: none of before can stand beside it

    def test_a_run_from_the_command_line(self, tmp_path: Path) -> None:
        console, results = Console(record=True, width=200), Results(tmp_path / "papers.json")
        path = tmp_path / "data.npz"
        held = synthetic_fleet(1).devices["d0"]
        np.savez(path, X=held.train_x, y=held.train_y, subject=np.arange(held.num_train) % 2)
        setting = Setting(str(path), rounds=1, seeds=3)
        measure(
            Table("ours", "Ours", {"c": setting}, {"fedavg": "FedAvg"}),
            False,
            tmp_path,
            1,
            results,
            console,
        )
        measure(
            Table("later", "Later", {"c": setting}, {"fedavg": "FedAvg"}, hour=()),
            False,
            tmp_path,
            1,
            results,
            console,
        )
        assert len(Results(tmp_path / "papers.json").of("ours")["c"][0]["by_seed"]["accuracy"]) == 3
        assert Results(tmp_path / "papers.json").of("later") == {}
        text = console.export_text()
        assert "### Ours" in text
        assert "later: for a night (--night)" in text


class TestOracle:
    def test_a_censored_density_sums_to_one(self) -> None:
        clean, inside = np.float64(0.2), (np.arange(20_000) + 0.5) / 20_000
        ends = np.exp(
            feddisk_oracle.log_density(np.array([[0.0], [1.0]]), np.full((2, 1), clean), 0.09)
        ).sum()
        between = np.exp(
            feddisk_oracle.log_density(inside[:, None], np.full((20_000, 1), clean), 0.09)
        ).mean()
        assert ends + between == pytest.approx(1.0, abs=1e-4)

    def test_true_weights_are_the_ratio_of_densities(self) -> None:
        size = feddisk_oracle.Size(devices=3, x=3.0, examples=2, tests=1)
        rng = np.random.default_rng(0)
        clean = {f"d{k}": rng.uniform(0, 1, (2, 1, 2, 2)).astype(np.float32) for k in range(3)}
        noisy = {
            d: np.clip(x + rng.normal(0, 1, x.shape), 0, 1).astype(np.float32)
            for d, x in clean.items()
        }
        like = synthetic_fleet(1)

        def fleet_of(held: dict[str, np.ndarray]) -> FleetData:
            return replace(
                like, devices={d: replace(like.devices["d0"], train_x=x) for d, x in held.items()}
            )

        weights = feddisk_oracle.true_weights(fleet_of(noisy), fleet_of(clean), size)
        assert weights["d0"].tolist() == [1.0, 1.0]
        densities = [
            np.exp(feddisk_oracle.log_density(noisy["d1"], clean["d1"], v)) for v in (1.0, 2.0)
        ]
        assert weights["d1"] == pytest.approx((densities[0] + densities[1]) / densities[0])


def test_heads_on_embeddings_learn_as_on_the_images_they_came_from() -> None:
    """The data of CGAU's clients are computed once, and change nothing."""
    import torch
    from torch import nn

    from algorithms.composition import make_objective
    from algorithms.models.classifier import Classifier
    from simulation.settings import SimulationSettings
    from simulation.simulate import simulate

    fleet = synthetic_fleet(2)
    torch.manual_seed(3)
    extractor = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Tanh())

    def embed(x: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            made: np.ndarray = extractor(torch.from_numpy(x)).numpy()
        return made

    algorithm = "cgau:units=4"
    own = cgau.accuracy_of_head(algorithm, cgau.embedded(fleet, embed), 3, 0)
    torch.manual_seed(0)
    nn.Linear(10, 3)  # takes the random numbers that a head of the embeddings' classifier takes
    torch.manual_seed(0)
    whole = Classifier(nn.Identity(), extractor, nn.Linear(10, 3))
    whole.shape = fleet.window.shape
    settings = SimulationSettings(read_algorithm(algorithm), 3, seed=0)
    outcome = simulate(fleet, settings, objective=make_objective(read_algorithm(algorithm), whole))
    assert outcome.summary.accuracy.mean == pytest.approx(own, abs=1e-6)
