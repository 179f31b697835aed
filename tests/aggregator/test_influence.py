"""Bounds on one device's influence on a model: the rules alone, and their effect on a round."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median_low
from typing import ClassVar

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.aggregation.bounds import FLOOR, bounded, too_far
from aggregator.aggregation.stored import load_state
from aggregator.fleet.records import AdmittedUpdate, Campaign, Version
from algorithms.core.contract import Combined, Mean, Slice
from algorithms.core.stack import Stack
from simulation.contract.fleet import difference
from simulation.datasets.windows import FleetData
from tests.aggregator.training import RECEIVED, Training
from tests.support.settings import SETTINGS
from wire.arrays.tensors import Array

CAPPED = msgspec.structs.replace(SETTINGS, weight_cap=10.0, norm_cap=10.0)


def update(norm: float = 1.0, num_train: int = 10) -> AdmittedUpdate:
    return msgspec.structs.replace(RECEIVED, num_train=num_train, norms={"delta": norm})


def cohort(*updates: AdmittedUpdate) -> dict[str, AdmittedUpdate]:
    return {f"d{i}": one for i, one in enumerate(updates)}


class TestNorms:
    def test_an_update_far_louder_than_the_others_is_left_out_and_it_is_said_why(self) -> None:
        kept, left_out, norms = bounded(CAPPED, cohort(update(1), update(2), update(9e5)), {})
        assert sorted(kept) == ["d0", "d1"]
        assert left_out == {"d2": "the norm of its delta is 9e+05; at most 20 counts in this round"}
        assert norms == {"delta": 2}

    def test_a_newcomer_is_held_against_newcomers_of_its_own_and_of_earlier_rounds(self) -> None:
        def member(norm: float) -> AdmittedUpdate:
            return msgspec.structs.replace(update(norm), start="0")

        def newcomer(response: float, delta: float = 1.0) -> AdmittedUpdate:
            return msgspec.structs.replace(RECEIVED, norms={"delta": delta, "response": response})

        _, first, norms = bounded(CAPPED, cohort(newcomer(12), newcomer(12), newcomer(12)), {})
        members = cohort(member(0.01), member(0.01), member(0.01))
        _, second, norms = bounded(CAPPED, members, norms)
        _, late, after = bounded(
            CAPPED, members | {"n": newcomer(13, 5.0)}, norms
        )  # it trains from a model that the others have left
        _, loud, _ = bounded(CAPPED, members | {"n": newcomer(1e6)}, norms)
        _, one, _ = bounded(
            CAPPED, members | {"n": newcomer(12), "m": newcomer(12, 1e6), "o": newcomer(12)}, norms
        )
        _, inside, _ = bounded(CAPPED, members | {"d9": member(5.0), "n": newcomer(12, 5.0)}, norms)
        assert (first, second, late, [*loud], [*one], [*inside]) == (
            {},
            {},
            {},
            ["n"],
            ["m"],
            ["d9"],
        )
        assert after == {"delta": 0.01, "response": 13}

    @pytest.mark.parametrize("role", ["statistic", "response"])
    def test_statistics_and_responses_have_bounds_of_their_own(self, role: str) -> None:
        _, left_out, _ = bounded(
            CAPPED,
            cohort(
                *(msgspec.structs.replace(update(), norms={role: norm}) for norm in (5, 6, 3e11))
            ),
            {},
        )
        assert [*left_out] == ["d2"]
        assert role in left_out["d2"]

    def test_of_two_devices_the_louder_cannot_excuse_itself(self) -> None:
        assert [*bounded(CAPPED, cohort(update(1), update(100)), {})[1]] == ["d1"]

    def test_the_round_before_counts_as_one_more_device(self) -> None:
        alone = cohort(update(100))
        assert bounded(CAPPED, alone, {})[1] == {}
        assert [*bounded(CAPPED, alone, {"delta": 1.0})[1]] == ["d0"]

    def test_a_small_norm_is_never_too_large(self) -> None:
        assert bounded(CAPPED, cohort(update(0), update(0), update(FLOOR)), {})[1] == {}

    @given(
        st.lists(st.floats(1, 2), min_size=1, max_size=9),
        st.lists(st.floats(0, 1e12), max_size=8),
        st.one_of(st.none(), st.floats(1, 2)),
    )
    def test_a_minority_cannot_have_honest_devices_left_out_nor_be_louder_than_the_bound(
        self, honest: list[float], hostile: list[float], before: float | None
    ) -> None:
        hostile = hostile[: len(honest) - 1]
        received = cohort(*map(update, honest + hostile))
        kept, left_out, norms = bounded(
            CAPPED, received, {} if before is None else {"delta": before}
        )
        assert kept.keys() | left_out.keys() == received.keys()
        assert not kept.keys() & left_out.keys()
        assert set(left_out) <= {f"d{i}" for i in range(len(honest), len(received))}
        assert all(one.norms["delta"] <= 10 * 2 for one in kept.values())
        assert norms == {"delta": median_low(honest + hostile)}


class TestWeights:
    def test_a_claim_of_very_many_windows_is_capped(self) -> None:
        kept, _, _ = bounded(CAPPED, cohort(update(1, 20), update(1, 30), update(1, 10**9)), {})
        assert [one.num_train for one in kept.values()] == [20, 30, 300]

    @given(st.lists(st.integers(0, 2**50), min_size=1, max_size=12))
    def test_no_weight_is_above_the_cap_and_none_below_it_changes(self, counts: list[int]) -> None:
        received = cohort(*(update(1, count) for count in counts))
        kept, _, _ = bounded(CAPPED, received, {})
        most = max(1, 10 * median_low(counts))
        assert [one.num_train for one in kept.values()] == [min(count, most) for count in counts]

    @given(st.integers(0, 2**50), st.lists(st.integers(10, 20), min_size=2, max_size=9))
    def test_one_device_among_others_weighs_at_most_ten_times_the_heaviest_of_them(
        self, claimed: int, honest: list[int]
    ) -> None:
        kept, _, _ = bounded(
            CAPPED, cohort(update(1, claimed), *(update(1, count) for count in honest)), {}
        )
        assert kept["d0"].num_train <= 10 * max(honest)
        assert [kept[f"d{i + 1}"].num_train for i in range(len(honest))] == honest


@given(st.lists(st.tuples(st.floats(0, 1e12), st.integers(0, 2**50)), max_size=6))
def test_without_bounds_everything_counts_as_it_says(claims: list[tuple[float, int]]) -> None:
    received = cohort(*(update(norm, count) for norm, count in claims))
    kept, left_out, _ = bounded(
        msgspec.structs.replace(CAPPED, weight_cap=0.0, norm_cap=0.0), received, {}
    )
    assert (kept, left_out) == (received, {})


def models_of(bench: Training) -> dict[str, str]:
    return bench.campaign.models


class Overflowing(Mean):
    """A mean whose sums overflow."""

    name: ClassVar[str] = "overflowing"
    citation: ClassVar[str] = "none"

    def combine(
        self, stack: Stack, num_examples: Array, layout: Sequence[Slice], seed: int
    ) -> Combined:
        return Combined(np.full(stack.size, np.inf, np.float32), np.full(len(stack), np.nan))


class TestRound:
    """Effect of the rules on a round."""

    def test_an_update_out_of_bounds_moves_nothing_and_the_record_says_so(
        self, fleet: FleetData
    ) -> None:
        bench, alone = (
            Training(fleet, settings={"norm_cap": 10.0, "min_updates": 1}) for _ in range(2)
        )
        notes = bench.close(a=(1.0, 2), b=(90.0, 2))
        assert [*notes["left_out"]] == ["b"]
        assert (bench.campaign.version.round, bench.campaign.made_by) == (1, ("a",))
        alone.close(
            a=(1.0, 2), b=(1.0, 2)
        )  # the mean of one change and the same change is that change
        assert models_of(bench) == models_of(alone)

    def test_too_few_updates_within_bounds_leave_the_models_as_they_were(
        self, fleet: FleetData
    ) -> None:
        bench = Training(fleet, settings={"norm_cap": 10.0, "min_updates": 2})
        before = models_of(bench)
        notes = bench.close(a=(1.0, 2), b=(90.0, 2))
        assert notes["set_aside"] == "1 updates are within bounds, at least 2 are needed"
        made = bench.campaign.version.round, bench.campaign.trained
        assert (models_of(bench), *made) == (before, 0, 1)

    def test_one_device_out_of_bounds_does_not_stop_a_round_that_needs_all(
        self, fleet: FleetData
    ) -> None:
        settings = {"norm_cap": 10.0, "min_updates": 3}
        bench = Training(fleet, settings=settings, device_ids="abc")
        notes = bench.close(a=(1.0, 2), b=(90.0, 2), c=(1.0, 2))
        assert ([*notes["left_out"]], "set_aside" in notes) == (["b"], False)
        assert bench.campaign.version.round == 1

    def test_a_model_that_is_not_finite_is_not_offered(self, fleet: FleetData) -> None:
        bench = Training(fleet, mean=Overflowing())
        before = models_of(bench)
        notes = bench.close(a=(1.0, 2), b=(1.0, 2))
        assert "of model '0' would hold values that are not finite" in notes["set_aside"]
        assert (models_of(bench), bench.campaign.phase) == (before, "training")

    def test_a_group_of_too_few_devices_keeps_its_last_model(self, fleet: FleetData) -> None:
        bench = Training(fleet, settings={"min_group": 3})
        first = models_of(bench)["initial"]
        notes = bench.close(a=(1.0, 2), b=(1.0, 2))
        assert notes["too_small"] == {"0": 2}
        assert models_of(bench) == {"initial": first, "0": first}

    def test_a_group_that_keeps_its_last_model_keeps_what_the_server_optimizer_remembered_of_it(
        self, fleet: FleetData
    ) -> None:
        bench = Training(fleet, algorithm="fedavg+fedadam", settings={"min_group": 2})
        bench.close(a=(1.0, 2), b=(1.0, 2))
        before = load_state(bench.campaign.version, bench.blobs)
        assert before.moments.keys() == {"0"}
        bench.configure(min_group=3)
        bench.close(a=(1.0, 2), b=(1.0, 2))
        before = load_state(bench.campaign.version, bench.blobs)
        assert bench.close(a=(1.0, 2), b=(1.0, 2))["too_small"] == {"0": 2}
        after = load_state(bench.campaign.version, bench.blobs)
        assert difference(replace(before, rounds=3), after) == ""

    def test_a_model_far_from_the_last_one_is_set_aside_also_where_all_devices_agree(
        self, fleet: FleetData
    ) -> None:
        bench = Training(fleet, settings={"norm_cap": 10.0})
        bench.close(a=(1.0, 2), b=(1.0, 2))
        bench.close(a=(9.0, 2), b=(9.0, 2))
        assert [round(distance["shared"], 3) for distance in bench.campaign.distances] == [1.0, 9.0]
        before = models_of(bench)
        notes = bench.close(a=(11.0, 2), b=(11.0, 2))
        assert notes["too_far"] == {
            "0": "the distance of its shared is 11; at most 10 is accepted in this run"
        }
        assert notes["set_aside"] == "every new model is too far from the last one"
        assert (models_of(bench), bench.campaign.version.round) == (before, 2)

    def test_without_a_norm_cap_no_model_is_too_far(self, fleet: FleetData) -> None:
        bench = Training(fleet)
        bench.close(a=(1.0, 2), b=(1.0, 2))
        assert bench.close(a=(99.0, 2), b=(99.0, 2)) == {}
        assert (bench.campaign.version.round, bench.campaign.distances) == (2, ())


def test_a_model_near_another_groups_last_one_is_not_too_far() -> None:
    settings = msgspec.structs.replace(SETTINGS, norm_cap=10.0)
    version = Version(round=0, models={}, memory="", programs={}, newcomers="initial")
    distances = ({"shared": 1.0},)
    campaign = Campaign(
        settings=settings, next_settings=settings, version=version, distances=distances
    )
    before = {
        key: {"shared/w": np.full(4, value, np.float32)} for key, value in (("0", 0.0), ("1", 50.0))
    }
    for value, is_too_far in ((4.0, False), (48.0, False), (20.0, True)):
        models = {"0": {"shared/w": np.full(4, value, np.float32)}, "1": before["1"]}
        far, near = too_far(campaign, models, {key: key for key in before}, before)
        assert ([*far], near) == ((["0"], {}) if is_too_far else ([], {"shared": 2 * value}))


def test_rounds_that_change_nothing_have_spent_privacy_too(fleet: FleetData) -> None:
    bounds = {"norm_cap": 10.0, "max_drop": 0.3, "keep_models": 3, "min_updates": 2}
    bench, plain = (
        Training(fleet, algorithm="fedavg+gaussian:noise_multiplier=2", settings=limits)
        for limits in (bounds, {})
    )
    right = [(4, 4), (4, 4), (0, 0), (4, 4)]
    told = [
        bench.close(a=(1.0, a), b=(99.0 if number == 0 else 1.0, b))
        for number, (a, b) in enumerate(right)
    ]
    assert ["set_aside" in told[0], "rolled_back" in told[2]] == [True, True]
    assert [notes["epsilon"] for notes in told] == [
        plain.close(a=(1.0, 4), b=(1.0, 4))["epsilon"] for _ in right
    ]
