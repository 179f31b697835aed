"""The models of a run's last rounds: they stay, a round that devices say is much worse is given up,
and the operator can go back."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from immutables import Map

from aggregator.aggregation.bounds import worse_than
from aggregator.aggregation.orders import rolled_back
from aggregator.fleet.records import Campaign, Version
from aggregator.transfer.offered import needed
from simulation.datasets.windows import FleetData
from tests.aggregator.training import RECEIVED, Training
from tests.support.settings import SETTINGS as CHOSEN
from wire.messages import Metrics, Train

SETTINGS = {"keep_models": 3, "max_drop": 0.3, "rounds": 9}


def made_in(bench: Training) -> list[int]:
    return [version.round for version in bench.campaign.history]


def test_the_models_of_the_last_rounds_stay_with_what_devices_said_of_them(
    fleet: FleetData,
) -> None:
    bench = Training(fleet, settings=SETTINGS)
    offered = []
    for number in range(5):
        offered.append((bench.campaign.models, bench.campaign.version.memory))
        bench.close(a=(1.0, 2), b=(1.0, number % 2 + 2))
    assert made_in(bench) == [2, 3, 4]
    history = bench.campaign.history
    assert [(v.models, v.memory) for v in history] == offered[2:]
    assert [v.evaluated["b"].num_correct for v in history] == [2, 3, 2]
    stay = needed(bench.campaign, bench.fleet)
    assert {digest for v in history for digest in (*v.models.values(), v.memory)} <= stay
    assert offered[1][0]["0"] not in stay


def test_models_that_are_much_worse_are_given_up_for_the_best_of_the_last(fleet: FleetData) -> None:
    bench = Training(fleet, settings=SETTINGS)
    bench.close(a=(1.0, 1), b=(1.0, 1))
    best = bench.campaign.models
    bench.close(a=(1.0, 4), b=(1.0, 4))
    bench.close(a=(50.0, 3), b=(50.0, 3))
    assert bench.campaign.version.round == 3
    notes = bench.close(a=(1.0, 0), b=(1.0, 0))
    assert notes["rolled_back"] == {
        "from": 3,
        "to": 1,
        "reason": "the mean accuracy of devices that evaluated both fell by 1.000; at most 0.3 is "
        "accepted (max_drop)",
        "made_by": ["a", "b"],
    }
    campaign = bench.campaign
    assert (campaign.models, campaign.version.round, campaign.trained) == (best, 1, 4)
    assert made_in(bench) == [0, 1]
    works = [bench.fleet.devices[d].assignment for d in "ab"]
    assert {work.model for work in works if work is not None} == {best["0"]}
    assert {d: m.group for d, m in bench.campaign.members.items()} == {"a": "0", "b": "0"}
    assert bench.close(a=(1.0, 4), b=(1.0, 4)) == {}, "the run goes on from there"
    assert (bench.campaign.version.round, made_in(bench)) == (5, [0, 1])


@pytest.mark.parametrize(
    ("settings", "second", "because"),
    [
        ({"max_drop": 1.0}, (0, 0), "it is off"),
        ({}, (0, 4), "one device alone says so"),
        ({}, (3, 3), "they are not much worse"),
        ({"keep_models": 0}, (0, 0), "nothing is remembered"),
    ],
)
def test_models_stay(
    fleet: FleetData, settings: dict[str, Any], second: tuple[int, int], because: str
) -> None:
    bench = Training(fleet, settings={**SETTINGS, **settings})
    bench.close(a=(1.0, 4), b=(1.0, 4))
    assert "rolled_back" not in bench.close(a=(1.0, second[0]), b=(1.0, second[1])), because
    assert bench.campaign.version.round == 2


accuracies = st.lists(st.integers(0, 10), min_size=2, max_size=8)


def told(values: list[int]) -> dict[str, Metrics]:
    return {f"d{i}": Metrics(10, 1.0, right) for i, right in enumerate(values)}


def after(before: list[int], now: list[int]) -> Campaign:
    """Return a campaign after two versions; arguments are the correct windows of 10 by device."""
    settings = msgspec.structs.replace(CHOSEN, max_drop=0.3, keep_models=3, min_updates=1)
    version = Version(
        round=0,
        models={"initial": "1" * 64},
        memory="2" * 64,
        programs={},
        newcomers="initial",
        evaluated=told(before),
    )
    updates = {
        d: msgspec.structs.replace(RECEIVED, evaluated=metrics, round=2)
        for d, metrics in told(now).items()
    }
    return Campaign(
        settings=settings,
        next_settings=settings,
        phase="aggregating",
        round=2,
        version=msgspec.structs.replace(version, round=1, evaluated={}),
        history=(version,),
        updates=Map(updates),
    )


@given(accuracies, st.integers(0, 10), st.integers(0, 10))
def test_no_single_device_has_models_given_up_that_others_do_not_find_worse(
    honest: list[int], before: int, now: int
) -> None:
    assert worse_than(after([*honest, before], [*honest, now])) is None


@given(accuracies)
def test_models_that_all_find_worse_are_given_up(before: list[int]) -> None:
    now = [max(0, right - 4) for right in before]
    fell = sorted((right - left) / 10 for right, left in zip(before, now, strict=True))[:-1]
    mean = sum(fell) / len(fell)
    if abs(mean - 0.3) > 1e-9:
        assert (worse_than(after(before, now)) is not None) == (mean > 0.3)


class TestOperator:
    def test_a_campaign_returns_to_the_models_and_groups_of_a_round(self, fleet: FleetData) -> None:
        bench = Training(fleet, settings=SETTINGS)
        offered = []
        for _ in range(3):
            offered.append(bench.campaign.models)
            bench.close(a=(1.0, 2), b=(1.0, 2))
        bench.update("a")
        bench.feed(rolled_back(bench.campaign, 1, bench.algorithm, bench.blobs, 9.0))
        bench.ring()
        campaign = bench.campaign
        assert (campaign.models, campaign.version.round) == (offered[1], 1)
        assert not campaign.updates
        assert made_in(bench) == [0, 1]
        assert {d: m.group for d, m in campaign.members.items()} == {"a": "0", "b": "0"}
        works = [bench.fleet.devices[d].assignment for d in "ab"]
        assert {w.model for w in works if w is not None and not w.lapsed} == {offered[1]["0"]}
        number = campaign.round
        assert bench.close(a=(1.0, 2), b=(1.0, 2)) == {}
        assert bench.campaign.version.round == number

    def test_devices_train_by_the_settings_of_now(self, fleet: FleetData) -> None:
        bench = Training(fleet, settings={**SETTINGS, "max_drop": 1.0, "local_epochs": 1})
        for _ in range(2):
            bench.close(a=(1.0, 1), b=(1.0, 1))
        bench.configure(local_epochs=3)
        bench.close(a=(1.0, 1), b=(1.0, 1))
        bench.feed(rolled_back(bench.campaign, 1, bench.algorithm, bench.blobs, 9.0))
        bench.ring()
        work = bench.fleet.devices["a"].assignment
        assert work is not None
        assert [verb.epochs for verb in work.verbs if isinstance(verb, Train)] == [3]

    @pytest.mark.parametrize("number", [7, 3])
    def test_a_round_that_is_not_remembered_is_an_error(
        self, fleet: FleetData, number: int
    ) -> None:
        bench = Training(fleet, settings=SETTINGS)
        bench.close(a=(1.0, 2), b=(1.0, 2))
        bench.close(a=(1.0, 2), b=(1.0, 2))
        with pytest.raises(KeyError):
            rolled_back(bench.campaign, number, bench.algorithm, bench.blobs, 9.0)
