"""Comparisons: every run once, resumed where they stopped, and a table that says what the runs say;
newcomers."""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from aggregator.fleet.plan import round_seed
from algorithms.composition import read_algorithm
from edge_client.work.executor import Executor, PlanResult
from simulation import newcomers
from simulation.comparison.processes import check_jobs, run_all
from simulation.comparison.runs import Job, agreement, content_of, jobs_of, read_algorithms, run_job
from simulation.comparison.table import tabulate
from simulation.newcomers import hold_out
from simulation.settings import SimulationSettings
from simulation.simulate import simulate
from tests.support.fleets import synthetic_fleet
from tests.support.known import known
from wire.errors import ConfigError, ShoalError
from wire.messages import Plan, Train


@pytest.fixture
def npz(tmp_path: Path) -> str:
    data = synthetic_fleet(4, shift=1.0)
    parts = [
        (d, split, getattr(w, f"{split}_x"), getattr(w, f"{split}_y"))
        for d, w in data.devices.items()
        for split in ("train", "test")
    ]
    np.savez(
        tmp_path / "small.npz",
        X=np.concatenate([x for _, _, x, _ in parts]),
        y=np.concatenate([y for *_, y in parts]),
        subject=np.concatenate([np.full(len(y), int(d[1:])) for d, _, _, y in parts]),
        split=np.concatenate([np.full(len(y), split) for _, split, _, y in parts]),
    )
    return str(tmp_path / "small.npz")


ALGORITHMS = "fedavg,lg-net:fine_tune_epochs=1"


def asked(npz: str, **others: Any) -> list[Job]:
    return jobs_of(
        npz,
        read_algorithms(ALGORITHMS),
        2,
        SimulationSettings(rounds=2, **others),
    )


@pytest.mark.full
def test_runs_are_made_once_and_a_comparison_goes_on_where_it_stopped(
    npz: str, tmp_path: Path
) -> None:
    jobs = asked(npz)
    assert [(j.settings.algorithm, j.settings.seed) for j in jobs] == [
        (n, s) for s in (0, 1) for n in read_algorithms(ALGORITHMS)
    ]
    heard: list[tuple[str, int]] = []
    folder = tmp_path / "runs"
    first = run_all(
        jobs[:1], folder, workers=1, on_round=lambda job, number: heard.append((job.key, number))
    )
    assert [number for _, number in heard] == [1, 2]
    kept = (folder / f"{jobs[0].key}.json").stat().st_mtime_ns
    every = run_all(jobs, folder, workers=2)
    assert (folder / f"{jobs[0].key}.json").stat().st_mtime_ns == kept
    assert every[0] == first[0]
    assert [r["seed"] for r in every] == [0, 0, 1, 1]
    assert len({j.key for j in [*jobs, *asked(npz, local_epochs=2)]}) == 8


def test_data_that_changed_and_a_result_that_is_damaged_are_other_runs(
    npz: str, tmp_path: Path
) -> None:
    folder, (job, *_) = tmp_path / "runs", asked(npz)
    (first,) = run_all([job], folder, workers=1)
    kept = folder / f"{job.key}.json"
    for damaged in (kept.read_bytes()[:100], b"[]", b"{}", b"\xff"):
        kept.write_bytes(damaged)
        (again,) = run_all([job], folder, workers=1)
        assert again["devices"] == first["devices"]
    arrays = dict(np.load(npz))
    np.savez(npz, **arrays | {"y": np.random.default_rng(0).permutation(arrays["y"])})
    other = asked(npz)[0]
    assert other.key != job.key
    (changed,) = run_all([other], folder, workers=1)
    assert changed["accuracy"] != first["accuracy"]
    np.savez(npz, **arrays)
    assert [asked(npz)[0].key, *run_all(asked(npz)[:1], folder, workers=1)] == [
        job.key,
        again | {"job": again["job"]},
    ]


def test_a_folder_of_devices_and_a_models_file_are_known_by_what_they_hold(tmp_path: Path) -> None:
    (tmp_path / "fleet" / "a").mkdir(parents=True)
    (tmp_path / "model.py").write_text("1")
    name, model = str(tmp_path / "fleet"), f"{tmp_path / 'model.py'}:make"
    seen = [content_of("watch"), content_of(name), content_of(name, model)]
    for file, text in (
        ("fleet/a/x.csv", "1"),
        ("fleet/a/x.csv", "22"),
        ("fleet/a/y.csv", "1"),
        ("model.py", "22"),
    ):
        (tmp_path / file).write_text(text)
        seen.append(content_of(name, model))
    assert seen[:2] == ["", ""]
    assert len(set(seen)) == len(seen) - 1


def test_the_table_says_what_the_runs_say(npz: str, tmp_path: Path) -> None:
    results = run_all(asked(npz), tmp_path, workers=1)
    rows = tabulate(results)
    assert [row["algorithm"] for row in rows] == [
        str(algorithm) for algorithm in read_algorithms(ALGORITHMS)
    ]
    own = [r for r in results if r["algorithm"] == "fedavg"]
    means = [r["accuracy"]["mean"] for r in own]
    assert rows[0]["accuracy"]["mean"] == pytest.approx(np.mean(means), abs=1e-5)
    assert rows[0]["accuracy"]["std"] == pytest.approx(np.std(means, ddof=1), abs=1e-5)
    assert rows[0]["accuracy"]["worst"] == pytest.approx(
        np.mean([r["accuracy"]["worst"] for r in own]), abs=1e-5
    )
    assert rows[0]["groups"] == {"count": 1, "ari": None}
    assert rows[0]["bytes"]["up"] > 0 < rows[0]["bytes"]["down"]
    assert rows[0]["epsilon"] is None
    best = max(row["accuracy"]["mean"] for row in rows)
    assert rows[0]["target"] == pytest.approx(0.95 * best, abs=1e-5)
    assert tabulate(results, target=0.0)[0]["rounds_to_target"] == 1
    assert tabulate(results, target=1.01)[0]["rounds_to_target"] is None
    assert json.loads(json.dumps(rows)) == rows


def test_time_to_the_target_is_that_of_the_virtual_clock(npz: str, tmp_path: Path) -> None:
    results = run_all(
        asked(npz, profiles="boards:available=1:dropout=0", policy="sync"),
        tmp_path,
        workers=1,
    )
    own = [r["accuracy_over_time"] for r in results if r["algorithm"] == "fedavg"]
    assert tabulate(results, target=0.0)[0]["time_to_target_s"] == pytest.approx(
        np.mean([points[0][0] for points in own])
    )
    last = [points[-1] for points in own]
    assert all(0 <= points[0][0] < end[0] for points, end in zip(own, last, strict=True))
    assert tabulate(results, target=1.01)[0]["time_to_target_s"] is None
    assert (
        tabulate(run_all(asked(npz), tmp_path, workers=1), target=0.0)[0]["time_to_target_s"]
        is None
    )


def test_a_run_is_the_simulation_of_the_same_settings(npz: str) -> None:
    from simulation.partition import make_fleet, read_partition

    job = asked(npz)[0]
    result = run_job(job)
    summary = simulate(make_fleet(npz, read_partition("user"), None, 0), job.settings).summary
    assert result["accuracy"] == msgspec.structs.asdict(summary.accuracy)
    assert result["devices"] == {d: device.accuracy for d, device in summary.devices.items()}


def test_a_run_that_cannot_be_made_is_one_error_and_what_is_finished_is_kept(
    npz: str, tmp_path: Path
) -> None:
    good = asked(npz)[:1]
    bad = jobs_of(
        npz, read_algorithms("fedavg"), 1, SimulationSettings(rounds=2, hyper={"mu": 1.0})
    )
    with pytest.raises(ConfigError, match="hyper-parameter 'mu'"):
        run_all([*good, *bad], tmp_path, workers=1)
    assert len(list(tmp_path.glob("*.json"))) == 1


@pytest.mark.full
def test_an_error_in_one_of_several_processes_is_the_same_one_error(
    npz: str, tmp_path: Path
) -> None:
    jobs = jobs_of(
        npz,
        read_algorithms("fedavg,fedprox"),
        1,
        SimulationSettings(rounds=2, hyper={"nu": 1.0}),
    )
    with pytest.raises(ConfigError, match="hyper-parameter 'nu'"):
        run_all(jobs, tmp_path, workers=2)


@pytest.mark.parametrize(
    ("data", "settings", "error"),
    [
        ("missing.npz", {}, "No data set 'missing.npz'"),
        ("", {"hyper": {"nu": 1.0}}, "hyper-parameter 'nu'"),
        ("", {"model": "nothing"}, "model 'nothing'"),
        ("", {"newcomers": 4}, "newcomers must be less than the 4 devices"),
        ("", {"pretrain": "missing.npz"}, "No data set 'missing.npz'"),
    ],
)
def test_what_cannot_be_run_is_known_before_anything_is(
    npz: str,
    tmp_path: Path,
    data: str,
    settings: dict[str, Any],
    error: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("simulation.comparison.runs.simulate", None)
    asked = SimulationSettings(rounds=2, **settings)
    with pytest.raises(ShoalError, match=error):
        check_jobs(jobs_of(data or npz, read_algorithms("fedavg,fedprox"), 2, asked), tmp_path)


def test_agreement_with_the_known_groups() -> None:
    truth = {"a": "x", "b": "x", "c": "y", "d": "y"}
    assert agreement(truth, {"a": 0, "b": 0, "c": 1, "d": 1}) == 1.0
    assert agreement(truth, {"a": 0, "b": 0, "c": 0, "d": 0}) == 0.0
    assert agreement({}, {"a": 0}) is None


@pytest.mark.parametrize("text", ["", ",", "fedavg,fedavg"])
def test_names_must_be_different(text: str) -> None:
    with pytest.raises(ConfigError, match="--algorithms must be different names"):
        read_algorithms(text)


class TestNewcomers:
    def test_they_are_held_out_and_the_same_for_the_same_seed(self) -> None:
        data = synthetic_fleet(6)
        left, taken = hold_out(data, 2, 3)
        assert sorted([*left.devices, *taken]) == sorted(data.devices)
        assert hold_out(data, 2, 3)[1].keys() == taken.keys()

    @pytest.mark.representatives("fedavg", "ifca")
    @pytest.mark.parametrize(
        "algorithm",
        [
            "fedavg",
            "dbe",
            "ifca",
            "fedper",
            "individual",
            "autocfl",
            "feddisk:preparations=1:density_units=4",
        ],
    )
    def test_they_are_received_and_change_nothing(self, algorithm: str) -> None:
        data = synthetic_fleet(5)
        outcome = simulate(data, SimulationSettings(read_algorithm(algorithm), 2, newcomers=2))
        left, _ = hold_out(data, 2, 0)
        alone = simulate(left, SimulationSettings(read_algorithm(algorithm), 2))
        assert outcome.campaign.models == alone.campaign.models
        assert 0 <= known(known(outcome.summary.newcomers).mean) <= 1

    @pytest.mark.full
    @pytest.mark.parametrize("labels", ["all", "none"])
    def test_what_they_keep_is_told_as_of_other_devices(self, labels: str) -> None:
        settings = SimulationSettings(read_algorithm("personal"), 2, newcomers=2, labels=labels)
        summary = simulate(synthetic_fleet(5), settings).summary
        newcomers, told = known(summary.newcomers), summary.devices
        assert newcomers.personal_models.keys() == newcomers.devices.keys()
        assert newcomers.devices.keys() == newcomers.placed.keys()
        for kept in newcomers.personal_models.values():
            if labels == "none":
                assert known(kept).windows == 0, "to judge takes labels"
                assert known(kept).candidate == "general + nearest neighbours (weight 0.5)"
            else:
                assert known(kept).candidate in known(summary.personal_models).candidates
                assert {known(kept).candidate, *known(kept).others} == set(
                    known(summary.personal_models).candidates
                )
        assert all(device.personal_model is not None for device in told.values())

    @pytest.mark.full
    def test_they_are_placed_in_the_group_that_fits_them(self) -> None:
        data = synthetic_fleet(14, shift=1.5)
        summary = simulate(
            data, SimulationSettings(read_algorithm("distfl"), 6, newcomers=2, hyper={"lr": 0.02})
        ).summary
        assert summary.groups.count == 2
        assert known(known(summary.newcomers).mean) > 0.8

    @pytest.mark.full
    @pytest.mark.parametrize(
        ("algorithm", "epochs"),
        [
            ("personal", {2}),
            ("personal:epochs=3", {3}),
            ("fedavg+none+recalibrated", set()),
            ("fedavg+none", {10}),
        ],
    )
    def test_they_train_as_a_joining_device_where_devices_keep_something_else_ten_epochs(
        self, algorithm: str, epochs: set[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        served: list[Plan] = []

        class Watched(Executor):
            def execute(self, plan: Plan, *others: Any) -> PlanResult:
                served.append(plan)
                return super().execute(plan, *others)

        monkeypatch.setattr(newcomers, "Executor", Watched)
        simulate(
            synthetic_fleet(6),
            SimulationSettings(read_algorithm(algorithm), 1, local_epochs=2, newcomers=1),
        )
        assert {verb.epochs for verb in served[-1].verbs if isinstance(verb, Train)} == epochs

    def test_newcomers_draw_from_the_seed_of_a_round_as_all_devices_do(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plans: list[Plan] = []

        class Watched(Executor):
            def execute(self, plan: Plan, *others: Any) -> PlanResult:
                plans.append(plan)
                return super().execute(plan, *others)

        monkeypatch.setattr(newcomers, "Executor", Watched)
        outcome = simulate(
            synthetic_fleet(6), SimulationSettings(read_algorithm("fedavg"), 1, newcomers=2, seed=3)
        )
        assert {plan.seed for plan in plans} == {
            round_seed(outcome.campaign.settings.seed, outcome.campaign.round + 1)
        }
