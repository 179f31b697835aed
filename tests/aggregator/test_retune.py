"""Other settings for a campaign of a service that is started again: which, and what makes another
campaign."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from aggregator.core.settings import RunSettings
from aggregator.service.start import check_retuned
from algorithms.composition import read_algorithm
from algorithms.core.contract import Work
from host.settings import marked
from simulation.datasets.windows import FleetData
from tests.aggregator.bench import Bench
from tests.support.settings import SETTINGS
from wire.errors import ConfigError
from wire.messages import Metrics, Plan, Train


def changed(settings: RunSettings, **changes: Any) -> RunSettings:
    return msgspec.structs.replace(settings, **changes)


def test_a_service_goes_on_with_what_its_command_says(fleet: FleetData) -> None:
    bench = Bench(fleet, settings={"rounds": 2})
    for _ in range(2):
        bench.close(a=(1.0, 2), b=(1.0, 2))
    tensors, bench.tensors = bench.tensors, {}
    for device_id in ("a", "b"):
        bench.verdict(bench.payload(device_id, num_steps=0, trained=Metrics()), device_id)
    assert bench.campaign.phase == "finished"
    bench.tensors, models = tensors, bench.campaign.models
    bench.answers()
    bench.start(epoch=2, rounds=3, local_epochs=4)
    plans = [answer for answer in bench.answers() if isinstance(answer, Plan)]
    assert [verb.epochs for p in plans for verb in p.verbs if isinstance(verb, Train)] == [4, 4]
    assert (bench.campaign.phase, bench.campaign.models) == ("training", models), (
        "from the models that it had"
    )
    bench.close(a=(1.0, 2), b=(1.0, 2))
    assert [record.phase for record in bench.store.rounds("run-1")] == [
        "training",
        "training",
        "evaluating",
        "training",
    ]
    before = bench.campaign
    bench.start(epoch=3)
    assert changed_in(before, bench.campaign) == set(), "the same command changes nothing"


def changed_in(before: msgspec.Struct, after: msgspec.Struct) -> set[str]:
    """Names of the fields that differ, but for the epoch of the last command."""
    names = set(before.__struct_fields__) - {"command_epoch"}
    return {name for name in names if getattr(before, name) != getattr(after, name)}


@pytest.mark.parametrize(
    "name", ["rounds", "min_devices", "deadline_s", "norm_cap", "batch_size", "update_encoding"]
)
def test_what_may_change(tmp_path: Path, name: str) -> None:
    assert check_retuned(SETTINGS, SETTINGS, tmp_path) == ""
    assert (
        check_retuned(SETTINGS, changed(SETTINGS, **{name: 64}), tmp_path)
        == f"{name} 64, not {getattr(SETTINGS, name)!r}"
    )


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [
        ({}, {"seed": 7}),
        ({}, {"bundle": "9" * 64}),
        ({"algorithm": "distfl"}, {"algorithm": "fedavg"}),
        ({"algorithm": "fedavg"}, {"algorithm": "fedprox"}),
        ({"algorithm": "fedavg+fedadam"}, {"algorithm": "fedavg+fedyogi"}),
        ({"algorithm": "fedavg"}, {"algorithm": "fedavg+gaussian"}),
        ({"algorithm": "fedavg+gaussian"}, {"local_epochs": 5}),
        ({"algorithm": "fedavg+gaussian"}, {"hyper": {"lr": 1.0}}),
    ],
)
def test_what_makes_another_run(
    tmp_path: Path, stored: dict[str, Any], wanted: dict[str, Any]
) -> None:
    had = changed(SETTINGS, **stored)
    with pytest.raises(
        ConfigError,
        match=rf"was started with other settings \({next(iter(wanted))} .*; give it another --run",
    ):
        check_retuned(had, changed(had, **wanted), tmp_path)


def test_a_privacy_budget_bounds_the_rounds(tmp_path: Path) -> None:
    spec = read_algorithm("fedavg+gaussian:epsilon=8").with_noise(20, [], Work(32, 1))
    had = changed(SETTINGS, algorithm=str(spec), rounds=20)
    assert check_retuned(had, changed(had, rounds=12), tmp_path) == "rounds 12, not 20"
    with pytest.raises(ConfigError, match=r"epsilon must be at least 8\.\d+ with .* in 21 rounds"):
        check_retuned(had, changed(had, rounds=21), tmp_path)


def test_the_mean_may_change(tmp_path: Path) -> None:
    had = changed(SETTINGS, algorithm="distfl")
    check_retuned(had, changed(had, algorithm="distfl+median"), tmp_path)
    assert "algorithm" not in marked(RunSettings, "live")


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"buffer": 2, "cohort": 3}, "cohort must be 0 with a buffer, got 3"),
        ({"buffer": 2, "over_select": 2.0}, "over_select must be 1 with a buffer, got 2"),
        ({"over_select": 12.0}, "over_select must be between 1 and 10, got 12"),
        ({"concurrency": 2}, "concurrency must be 0 without a buffer, got 2"),
        ({"buffer": 2, "min_updates": 3}, r"buffer must be 0 or at least min_devices \(3\), got 2"),
        ({"buffer": 5}, "was started with other settings"),
        ({"days": -1.0}, "days must be between 0 and 36600, got -1"),
        ({"days": float("inf")}, "days must be between 0 and 36600, got inf"),
        ({"patience": -1}, "patience must be a whole number between 0 and 1000000, got -1"),
        ({"min_delta": float("nan")}, "min_delta must be between 0 and 1, got nan"),
    ],
)
def test_what_cannot_be(tmp_path: Path, changes: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        check_retuned(SETTINGS, changed(SETTINGS, **changes), tmp_path)
