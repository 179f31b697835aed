"""Options of `serve`, `campaign start` and `campaign set` about a round's cohort."""

from typing import Any

import pytest

from aggregator.core.settings import RunSettings
from aggregator.service_settings import CampaignSettings
from algorithms.composition import read_algorithm
from export.describe import describe_bundle
from host.settings import settings_of
from shoal.campaign_settings import campaign_fields, with_asking
from shoal.commands.options import CampaignWords
from simulation.objective import objective_for_fleet
from tests.support.fleets import synthetic_fleet
from wire.errors import ConfigError


@pytest.mark.parametrize(
    ("policy", "cohort", "fields"),
    [
        ("sync", 20, {"cohort": 20, "over_select": 1.0, "buffer": 0, "concurrency": 0}),
        (
            "over-select:cohort=20:over=0.5",
            None,
            {"cohort": 20, "over_select": 1.5, "buffer": 0, "concurrency": 0},
        ),
        (
            "buffered:buffer=7",
            None,
            {"cohort": 0, "over_select": 1.0, "buffer": 7, "concurrency": 0},
        ),
    ],
)
def test_a_policy_says_the_fields_of_a_campaign(
    policy: str, cohort: int | None, fields: dict[str, Any]
) -> None:
    assert with_asking(policy, cohort, None) == fields


@pytest.mark.parametrize(
    ("policy", "cohort", "over_select", "error"),
    [
        ("over-select:cohort=20", 10, None, "cohort is given twice"),
        ("buffered", 10, None, "cohort must be 0 with policy 'buffered', got 10"),
        (
            "over-select",
            None,
            1.3,
            "over_select must be left out with a policy, got 1.3 with 'over-select'",
        ),
        ("eager", None, None, r"No policy 'eager'\. Known policies: sync, over-select, buffered\."),
    ],
)
def test_two_options_that_say_the_same_are_refused(
    policy: str, cohort: int | None, over_select: float | None, error: str
) -> None:
    with pytest.raises(ConfigError, match=error):
        with_asking(policy, cohort, over_select)


def campaign(**values: Any) -> CampaignSettings:
    """The settings of a campaign whose other options have their defaults."""
    structs = (CampaignWords, CampaignSettings)
    usual = {name: s.default for kind in structs for name, s in settings_of(kind).items()}
    return CampaignSettings(run="run-1", **campaign_fields(None, usual | values))


class TestPrivacyBudget:
    @pytest.mark.parametrize("name", ["gaussian", "local-gaussian"])
    def test_becomes_noise_for_the_rounds_planned(self, name: str) -> None:
        short, long = (
            campaign(algorithm="fedavg", privacy=f"{name}:epsilon=8", rounds=rounds).algorithm
            for rounds in (5, 50)
        )
        assert short.parts.privacy.noise_multiplier < long.parts.privacy.noise_multiplier
        assert str(short).startswith(f"fedavg+{name}:epsilon=8:noise_multiplier=")

    def test_of_dp_sgd_needs_the_fewest_windows_of_a_device(self) -> None:
        with pytest.raises(ConfigError, match="min_examples must be above 0 with epsilon=8"):
            campaign(algorithm="fedavg", privacy="dp-sgd:epsilon=8")

    def test_of_dp_sgd_leaves_out_devices_with_fewer_windows(self) -> None:
        settings = campaign(algorithm="fedavg", privacy="dp-sgd:epsilon=8:min_examples=70")
        fleet = synthetic_fleet(1)
        objective = objective_for_fleet(fleet, settings.algorithm, 0)
        bundle = describe_bundle(objective, name="b", classes=fleet.classes, window=fleet.window)
        run = RunSettings.for_bundle(bundle, settings, run_id="r", data="d")
        assert run.min_batch == 70
        assert run.hyper["noise_multiplier"] == settings.algorithm.parts.privacy.noise_multiplier

    def test_a_bundle_without_dp_sgd_is_refused(self) -> None:
        settings = campaign(algorithm="fedavg", privacy="dp-sgd")
        fleet = synthetic_fleet(1)
        objective = objective_for_fleet(fleet, read_algorithm("fedavg"), 0)
        bundle = describe_bundle(objective, name="b", classes=fleet.classes, window=fleet.window)
        with pytest.raises(ConfigError, match="bundle b has none; export it with --privacy dp-sgd"):
            RunSettings.for_bundle(bundle, settings, run_id="r", data="d")
