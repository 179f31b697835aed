"""Orders to campaigns that are refused leave nothing behind; those that are accepted are numbered
as they come."""

import secrets
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from aggregator.core.steps import Gate
from aggregator.fleet.events import AssignmentDeclined
from aggregator.releases import ReleaseMaker
from aggregator.service.place import ServiceStorage
from aggregator.service.start import Trust, read_exported, read_trust, run_settings
from aggregator.service.steering import Steering
from aggregator.service.trainer import RETRY_S
from aggregator.service_settings import CampaignSettings
from aggregator.storage.charter import Charter, accept, charters, propose
from algorithms.composition import read_algorithm
from simulation.datasets.windows import FleetData
from tests.aggregator.bench import Bench
from tests.aggregator.full_disk import Disk, FullStore
from tests.aggregator.releasing import Releasing
from tests.support.bundles import Exported
from wire.errors import ConfigError, ShoalError
from wire.messages import Train


def steering_of(bench: Bench, folder: Path, database: str, trust: Trust) -> Steering:
    maker = ReleaseMaker("off", (), Gate(), None, lambda _name: bench.blobs, bench.clock)
    return Steering(bench.runner, ServiceStorage(folder, database, trust), maker)


def suggest(folder: Path, name: str, exported: Exported) -> None:
    found = read_exported(exported.folder, read_trust(exported.folder))
    settings = CampaignSettings(run=name, algorithm=read_algorithm("distfl"))
    propose(
        folder,
        Charter(0, run_settings(settings, found.bundle, secrets.token_hex(16))),
        exported.folder,
    )


def test_a_campaign_that_cannot_begin_is_none_and_can_be_ordered_again(
    fleet: FleetData, tmp_path: Path, exported: Exported
) -> None:
    disk = Disk()
    bench = Bench(fleet, FullStore(disk))
    database = f"sqlite:///{tmp_path / 'shoal.db'}"
    steering = steering_of(bench, tmp_path, database, read_trust(exported.folder))
    disk.full = True
    suggest(tmp_path, "second", exported)
    wanted = tmp_path / "campaigns" / ".wanted-second"
    assert wanted.is_dir()
    with pytest.raises(ShoalError):
        steering.handlers["campaign-start"]("second")
    assert (charters(tmp_path), wanted.exists()) == ({}, False)
    disk.full = False
    bench.clock.now_s += RETRY_S
    bench.tick()
    suggest(tmp_path, "second", exported)
    assert "campaign second has started" in steering.handlers["campaign-start"]("second")
    assert list(charters(tmp_path)) == ["second"]


def test_a_campaign_starts_from_no_models_whose_release_was_taken_back(
    fleet: FleetData, tmp_path: Path
) -> None:
    service = Releasing(fleet, tmp_path, "manual", rounds=9)
    service.round()
    storage = ServiceStorage(tmp_path, "sqlite://", Trust((), None))
    steering = Steering(service.bench.runner, storage, service.maker)
    charter = Charter(0, replace(service.bench.campaign.settings, name="next"))
    source = steering.source(charter)
    assert source is not None
    assert source.name == "campaign run-1, round 1"
    service.order("make-releases", campaign="run-1")
    service.order("end-rollout", campaign="run-1")
    assert steering.source(charter) is None, "its models were taken back, so the bundle's own"
    service.round()
    source = steering.source(charter)
    assert source is not None
    assert source.name == "campaign run-1, round 2"


def test_campaigns_are_numbered_as_they_are_accepted(tmp_path: Path, exported: Exported) -> None:
    for name in ("zz", "aa"):
        suggest(tmp_path, name, exported)
    assert [accept(tmp_path, name).number for name in ("zz", "aa")] == [1, 2]
    assert list(charters(tmp_path)) == ["zz", "aa"]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"hyper": {"lr": -5.0}}, "lr must be a number of at least 0, got -5"),
        ({"deadline_s": -1.0}, r"Expected `float` >= 1.0 - at `\$.deadline_s`"),
        ({"rounds": 0}, r"Expected `int` >= 1 - at `\$.rounds`"),
        ({"over_select": 0.5}, r"at `\$.over_select`"),
        ({"max_drop": 2.0}, r"at `\$.max_drop`"),
        (
            {"lr_schedule": "cosine:warmup=50"},
            "warmup must be below the number of rounds, .*, got 50",
        ),
        (
            {"lr_schedule": "falling"},
            "No learning rate schedule 'falling'. Known learning rate schedules: constant, step",
        ),
        (
            {"algorithm": "distfl+/tmp/x.py:Mean"},
            "/tmp/x.py:Mean cannot be added; classes of your own can be named only when a campaign",
        ),
    ],
)
def test_a_campaign_takes_no_settings_that_it_could_not_have_been_started_with(
    fleet: FleetData, tmp_path: Path, changes: dict[str, Any], error: str
) -> None:
    bench = Bench(fleet)
    steering, had = steering_of(bench, tmp_path, "", Trust((), None)), bench.campaign.next_settings
    with pytest.raises(ConfigError, match=error):
        steering.handlers["campaign-set"](bench.campaign.name, changes)
    assert bench.campaign.next_settings == had


def test_the_answer_to_another_learning_rate_names_the_one_to_go_back_to(
    fleet: FleetData, tmp_path: Path
) -> None:
    bench = Bench(fleet)
    steering, name = steering_of(bench, tmp_path, "", Trust((), None)), bench.campaign.name
    usual = bench.trainer.bundle.manifest.hyper["lr"]
    before = hyper_of(bench)
    change = {"hyper": {"lr": 3.0}, "rounds": 8}
    answer = steering.handlers["campaign-set"](name, change)
    assert answer == f"campaign {name} goes on with lr 3 (of the bundle: {usual:g}), rounds 8"
    bench.close(a=(1.0, 2), b=(1.0, 2))
    assert hyper_of(bench) != before
    steering.handlers["campaign-set"](name, {"hyper": {"lr": usual}})
    bench.close(a=(1.0, 2), b=(1.0, 2))
    assert hyper_of(bench) == before


def hyper_of(bench: Bench) -> list[dict[str, float]]:
    """Return the hyper-parameters of the training of a device's plan."""
    usual = bench.trainer.bundle.manifest.hyper
    return [{**usual, **verb.hyper} for verb in bench.work("a").verbs if isinstance(verb, Train)]


class TestReturns:
    @pytest.fixture
    def bench(self, fleet: FleetData) -> Bench:
        """Round 3 is open, and has the update of `a`."""
        bench = Bench(fleet, settings={"rounds": 9, "keep_models": 5})
        for _ in range(2):
            bench.close(a=(1.0, 2), b=(1.0, 2))
        bench.send("a", "update", bench.payload("a"))
        assert (bench.campaign.round, [*bench.campaign.updates]) == (3, ["a"])
        return bench

    def order(self, bench: Bench, folder: Path, order: str, *choice: Any) -> str:
        steering = steering_of(bench, folder, "", Trust((), None))
        answer = steering.handlers[order](bench.campaign.name, *choice)
        bench.tick()
        return answer

    def test_a_return_to_the_present_models_opens_the_open_round_anew(
        self, bench: Bench, tmp_path: Path
    ) -> None:
        before = bench.campaign
        text = "campaign run-1 opens its round anew from the models of round 2; 1 update of it is "
        assert self.order(bench, tmp_path, "campaign-rollback", 2) == text + "discarded"
        after = bench.campaign
        assert (after.version, after.phase, [*after.updates]) == (before.version, "training", [])
        assert (after.round, after.trained) == (4, 2)
        assert all(bench.work(d).round == 4 for d in "ab")
        notes = bench.close(a=(1.0, 2), b=(1.0, 2))
        assert "rolled_back" not in notes
        assert bench.campaign.trained == 3
        assert [v.round for v in bench.campaign.history] == [0, 1, 2]

    def test_it_ends_a_pause_and_the_rests_after_failures(
        self, bench: Bench, tmp_path: Path
    ) -> None:
        serial = bench.work("b").serial
        declined = AssignmentDeclined(at_s=bench.clock(), device_id="b", serial=serial)
        bench.runner.order(declined)
        self.order(bench, tmp_path, "campaign-pause")
        self.order(bench, tmp_path, "campaign-rollback", 2)
        assert bench.campaign.phase == "training"
        assert all(bench.work(d).round == 4 for d in "ab")

    def test_a_finished_campaign_with_these_models_stays_as_it_is(
        self, bench: Bench, tmp_path: Path
    ) -> None:
        self.order(bench, tmp_path, "campaign-abort")
        before = bench.campaign
        text = "campaign run-1 is finished and has the models of round 2 already"
        assert self.order(bench, tmp_path, "campaign-rollback", 2) == text
        assert bench.campaign == before

    def test_an_earlier_round_and_the_first_models(self, bench: Bench, tmp_path: Path) -> None:
        text = "campaign run-1 is back at the models of round 1, and goes on"
        assert self.order(bench, tmp_path, "campaign-rollback", 1) == text
        text = "campaign run-1 is back at the models of round 0, and goes on"
        assert self.order(bench, tmp_path, "campaign-rollback", 0) == text
        with pytest.raises(ConfigError, match=r"No models of round 1. .* are stored: 0\."):
            self.order(bench, tmp_path, "campaign-rollback", 1)
        assert "anew from" in self.order(bench, tmp_path, "campaign-rollback", 0)

    @pytest.mark.parametrize("device_id", ["a", "b"])
    def test_an_exclusion_since_the_open_round_keeps_the_others_updates(
        self, bench: Bench, tmp_path: Path, device_id: str
    ) -> None:
        answer = self.order(bench, tmp_path, "campaign-exclude", device_id, 3)
        assert answer.endswith("; the present models, of round 2, are from before round 3")
        assert (bench.campaign.round, bench.campaign.version.round) == (3, 2)
        assert [*bench.campaign.updates] == ([] if device_id == "a" else ["a"])

    def test_an_exclusion_returns_to_the_models_after_the_round_before(
        self, bench: Bench, tmp_path: Path
    ) -> None:
        answer = self.order(bench, tmp_path, "campaign-exclude", "a", 2)
        assert answer.endswith("campaign run-1 is back at the models of round 1, and goes on")

    def test_an_exclusion_names_the_round_whose_models_are_not_there(
        self, bench: Bench, tmp_path: Path
    ) -> None:
        self.order(bench, tmp_path, "campaign-rollback", 2)
        for _ in range(2):
            bench.close(a=(1.0, 2), b=(1.0, 2))
        answer = self.order(bench, tmp_path, "campaign-exclude", "a", 4)
        back = "campaign run-1 is back at the models of round 2, and goes on"
        assert answer.endswith(f"; {back} (no models of round 3 are stored)")
