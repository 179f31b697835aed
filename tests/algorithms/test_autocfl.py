"""AutoCFL against its algorithm line by line: the vote for clusters, and the adjustment of local
epochs."""

from collections.abc import Sequence
from itertools import pairwise as pairwise_of
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorithms.core.contract import GroupingMemory, LocalModel
from algorithms.core.keys import NEWCOMER
from algorithms.groupings.autocfl import (
    LATEST,
    MOST_EPOCHS,
    AutoCFL,
    cumulate,
    distance_matrix,
    last_layer,
    vote_for_clusters,
)
from tests.contracts.grouping import (
    SEEDS,
    SIZE,
    by_truth,
    initial_model,
    labelled,
    local_model,
    names,
    run,
)
from wire.errors import ConfigError


def slow_votes(distances: list[list[float]], counts: list[int], weighted: bool) -> list[int]:
    """Algorithm 1, line by line; the demarcation is sought among the other devices."""
    devices = range(len(counts))
    score: dict[tuple[int, int], float] = {}
    for m in devices:
        others = sorted((n for n in devices if n != m), key=lambda n: (distances[m][n], n))
        gaps = [distances[m][b] - distances[m][a] for a, b in pairwise_of(others)]
        near = [m, *(others[: gaps.index(max(gaps)) + 1] if gaps and max(gaps) > 0 else others)]
        largest = min(near, key=lambda n: (-counts[n], n))
        for n in near:
            share = counts[n] / sum(counts[z] for z in near) if weighted else 1 / len(near)
            score[n, largest] = score.get((n, largest), 0.0) + share
    result = []
    for m in devices:
        chosen = m
        while True:
            head = max(
                devices, key=lambda n: (round(score.get((chosen, n), 0.0), 12), counts[n], -n)
            )
            if head == chosen:
                break
            chosen = head
        result.append(chosen)
    return result


def distances_on_a_line(places: Sequence[float]) -> np.ndarray:
    return np.abs(np.subtract.outer(places, places))


class TestAutoCFLClustering:
    def test_by_hand(self) -> None:
        # rows: 0 sees 1 at 1, 2 at 10, 3 at 12: near {0, 1}. 1 sees 0 at 1, 2 at 9, 3 at 11: near
        # {0, 1}. 2 sees 3 at 2, 1 at 9, 0 at 10: near {2, 3}. 3 sees 2 at 2, 1 at 11, 0 at 12: near
        # {2, 3}.
        distances = distances_on_a_line([0, 1, 10, 12])
        assert vote_for_clusters(distances, np.array([10, 30, 5, 5])).tolist() == [1, 1, 2, 2]

    def test_votes_count_by_examples(self) -> None:
        # near parts: 0 {0, 1}, 1 {0, 1}, 2 {1, 2}, 3 {2, 3, 4}, 4 {3, 4}: device 2 is a third of
        # 2's vote and half of 3's
        places = [0.0, 1.0, 4.0, 8.0, 10.0]
        counts = np.array([40, 10, 20, 15, 50])
        for vote in ("weighted", "unweighted"):
            got = vote_for_clusters(distances_on_a_line(places), counts, vote)
            assert got.tolist() == slow_votes(
                distances_on_a_line(places).tolist(), counts.tolist(), vote == "weighted"
            )

    def test_weights_can_decide(self) -> None:
        rng = np.random.default_rng(0)
        different = 0
        for _ in range(200):
            distances = distance_matrix(list(rng.normal(size=(9, 2))))
            counts = rng.integers(1, 200, 9)
            different += not np.array_equal(
                vote_for_clusters(distances, counts),
                vote_for_clusters(distances, counts, "unweighted"),
            )
        assert different > 0

    @given(st.integers(1, 12), SEEDS, st.booleans())
    def test_equals_the_algorithm_line_by_line(self, count: int, seed: int, weighted: bool) -> None:
        rng = np.random.default_rng(seed)
        distances = distance_matrix(list(rng.normal(size=(count, 3))))
        counts = rng.integers(1, 40, count)
        got = vote_for_clusters(distances, counts, "weighted" if weighted else "unweighted")
        assert got.tolist() == slow_votes(distances.tolist(), counts.tolist(), weighted)

    def test_equal_models_are_one_cluster(self) -> None:
        assert vote_for_clusters(np.zeros((5, 5)), np.array([1, 2, 9, 4, 5])).tolist() == [2] * 5

    @pytest.mark.parametrize("count", [1, 2])
    def test_one_or_two_devices_are_one_cluster(self, count: int) -> None:
        assert (
            len(set(vote_for_clusters(distances_on_a_line(range(count)), np.ones(count)).tolist()))
            == 1
        )

    def test_distance_is_divided_by_the_number_of_weights(self) -> None:
        a, b = np.zeros((2, 3), np.float32), np.full((2, 3), 2, np.float32)
        np.testing.assert_allclose(
            distance_matrix([a, b]), [[0, np.sqrt(24) / 6], [np.sqrt(24) / 6, 0]]
        )

    def test_four_groups_of_labels(self) -> None:
        seen = run(AutoCFL(), names(20), labelled(4), 6)
        assert {len(set(grouped.memory.membership.values())) for grouped in seen[:4]} == {1}
        assert by_truth(seen[-1].memory.membership, 4) == 1.0
        assert seen[4].notes["clustered"] == 5
        assert seen[4].views["last layer"].shape == (20, 20)

    def test_last_layer(self) -> None:
        model = initial_model()
        assert last_layer(model) == "shared/head.weight"
        model["private/head.weight"] = model.pop("shared/head.weight")
        with pytest.raises(ConfigError, match=r"shared/body\.conv\.weight"):
            AutoCFL().check(model, None)


def losses(values: dict[str, tuple[int, float]], start: str = "0") -> list[LocalModel]:
    return [
        local_model(d, np.zeros(SIZE), start, count, loss)
        for d, (count, loss) in sorted(values.items())
    ]


class TestAutoCFLAdjustment:
    def test_equations_by_hand(self) -> None:
        grouping = AutoCFL()
        first = grouping.group(
            GroupingMemory(),
            losses({"a": (100, 1.0), "b": (50, 1.2), "c": (10, 2.0)}, NEWCOMER),
            None,
            0,
        )
        # b: 1 + (0.5 * 100 / 50)^1 = 2; c: 1 + (0.5 * 100 / 10)^1 = 6
        assert first.memory.info["extra"] == {"a": 0.0, "b": 1.0, "c": 5.0}
        assert first.extra_epochs == {"b": 1, "c": 5}
        assert first.memory.info["variances"] == [pytest.approx(np.var([1.0, 1.2, 2.0]))]
        second = grouping.group(
            first.memory, losses({"a": (100, 0.5), "b": (50, 0.2), "c": (10, 0.25)}), None, 0
        )
        # cumulative 1.5, 1.4, 2.25: b is no longer above a; c: rho = 0.25 / 0.5, 6 + 5^0.5 = 8.236
        assert second.memory.info["cumulative"] == {"a": 1.5, "b": 1.4, "c": 2.25}
        assert second.memory.info["extra"] == {"a": 0.0, "b": 1.0, "c": pytest.approx(5 + 5**0.5)}
        assert second.extra_epochs == {"b": 1, "c": 7}
        assert second.memory.info["variances"][1] == pytest.approx(np.var([1.5, 1.4, 2.25]))

    def test_stays_within_what_a_plan_can_ask(self) -> None:
        assert AutoCFL().group(
            GroupingMemory(), losses({"a": (10**8, 1.0), "b": (1, 2.0)}), None, 0
        ).extra_epochs == {"b": MOST_EPOCHS}

    def test_can_be_switched_off(self) -> None:
        assert (
            AutoCFL(adjust=False)
            .group(GroupingMemory(), losses({"a": (100, 1.0), "b": (50, 1.2)}), None, 0)
            .extra_epochs
            == {}
        )

    def test_a_missed_round_counts_as_the_last_and_a_late_device_as_its_first(self) -> None:
        info: dict[str, Any] = {}
        for values in (
            {"a": (9, 1.0), "b": (9, 2.0)},
            {"a": (9, 0.5)},
            {"a": (9, 0.25), "b": (9, 1.0), "c": (9, 3.0)},
        ):
            info = cumulate(info, losses(values))
        assert info["cumulative"] == {"a": 1.75, "b": 2.0 + 2.0 + 1.0, "c": 9.0}

    def test_a_diverged_device_does_not_stop_the_run(self) -> None:
        info = cumulate({}, losses({"a": (9, 1.0), "b": (9, float("inf"))}))
        assert info["cumulative"] == {"a": 1.0}

    def test_needs_losses(self) -> None:
        with pytest.raises(ConfigError, match="needs training losses, and no device reported one"):
            AutoCFL().group(GroupingMemory(), losses({"a": (9, float("nan"))}), None, 0)

    def test_waits_until_the_variance_rises(self) -> None:
        def clustered(spread: Sequence[float], earliest: int) -> int | None:
            grouping, memory = AutoCFL(earliest=earliest), GroupingMemory()
            for number, value in enumerate(spread):
                values = {"a": (9, 5.0), "b": (9, 5.0 + value), "c": (9, 5.0 - value)}
                grouped = grouping.group(
                    memory, losses(values, "0" if number else NEWCOMER), None, 0
                )
                memory = grouped.memory
            return memory.info.get("clustered")

        falling = [
            2.0,
            -0.5,
            -0.4,
            -0.3,
            -0.2,
            -0.1,
        ]  # cumulative spread 2, 1.5, 1.1, 0.8, 0.6, 0.5
        assert clustered(falling, 2) is None
        assert clustered([*falling, 0.1], 2) == 7
        assert clustered([1.0, 1.0, 1.0, 1.0, 1.0, 1.0], 5) == 5
        assert clustered([1.0, 1.0], 1) == 2
        assert clustered([1.0] + [0.0] * (LATEST - 2), 5) is None
        assert clustered([1.0] + [0.0] * (LATEST - 1), 5) == LATEST

    def test_the_run_goes_on_with_its_own_epochs_after_the_clustering(self) -> None:
        seen = run(AutoCFL(earliest=2), names(6), labelled(), 4)
        assert seen[0].extra_epochs
        assert not seen[-1].extra_epochs

    @pytest.mark.parametrize(
        "options", [{"vote": "loud"}, {"alpha": 0.0}, {"alpha": float("nan")}, {"earliest": 0}]
    )
    def test_refuses_options(self, options: dict[str, Any]) -> None:
        with pytest.raises(ConfigError, match=next(iter(options))):
            AutoCFL(**options)
