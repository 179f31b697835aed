"""CFL and hierarchical clustering against double loops and sklearn."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import squareform
from sklearn.cluster import AgglomerativeClustering
from sklearn.metrics import adjusted_rand_score

from algorithms.core.contract import GroupingMemory, LocalModel, Probe, TorchTensors
from algorithms.groupings.cfl import Cfl, bipartition, compare, mean_norm
from algorithms.groupings.distfl import DistFL
from algorithms.groupings.gap import connect, group_by_gap
from algorithms.groupings.hierarchical import JUMP, METRICS, Hierarchical, cut, pairwise
from tests.contracts.grouping import (
    SEEDS,
    SIZE,
    Change,
    by_truth,
    directions,
    labelled,
    names,
    run,
)
from wire.errors import ConfigError


def scaled_by(scale: float, change: Change) -> Change:
    return lambda i, number, rng: scale * change(i, number, rng)


def cosine_matrix(rng: np.random.Generator, count: int) -> np.ndarray:
    return compare(rng.normal(size=(count, 4)).astype(np.float32))[1]


class TestCfl:
    def test_compare_equals_the_double_loop(self) -> None:
        updates = np.random.default_rng(0).normal(size=(5, 30)).astype(np.float32)
        updates[3] = 0
        norms, cosines = compare(updates)
        for i in range(5):
            assert norms[i] == pytest.approx(np.linalg.norm(updates[i]), rel=1e-6)
            for j in range(5):
                length = float(np.linalg.norm(updates[i]) * np.linalg.norm(updates[j]))
                expected = (
                    1.0 if i == j else float(updates[i] @ updates[j]) / length if length else 0.0
                )
                assert cosines[i, j] == pytest.approx(expected, abs=1e-5)

    def test_mean_is_weighted(self) -> None:
        assert mean_norm(np.array([[3.0, 0.0], [0.0, 4.0]], np.float32), [1, 3]) == pytest.approx(
            np.hypot(0.75, 3.0)
        )

    @given(st.integers(2, 8), SEEDS)
    def test_bipartition_is_the_best_of_all(self, count: int, seed: int) -> None:
        cosines = cosine_matrix(np.random.default_rng(seed), count)
        everyone = set(range(count))
        halves = [
            set(half) for size in range(1, count) for half in combinations(range(count), size)
        ]
        best = min(max(cosines[i, j] for i in half for j in everyone - half) for half in halves)
        labels, separation = bipartition(cosines)
        assert set(labels.tolist()) == {0, 1}
        assert separation == pytest.approx(np.sqrt((1 - best) / 2))

    @given(st.integers(2, 12), SEEDS, st.sampled_from(["single", "complete", "average"]))
    def test_bipartition_equals_sklearn(self, count: int, seed: int, linkage: Any) -> None:
        cosines = cosine_matrix(np.random.default_rng(seed), count)
        expected = AgglomerativeClustering(
            n_clusters=2, metric="precomputed", linkage=linkage
        ).fit_predict(1 - cosines)
        assert adjusted_rand_score(expected, bipartition(cosines, linkage)[0]) == 1.0

    def test_equal_updates_make_two_halves_all_the_same(self) -> None:
        labels, separation = bipartition(np.ones((4, 4)))
        assert set(labels.tolist()) == {0, 1}
        assert separation == 0.0

    def test_cuts_when_the_mean_has_converged(self) -> None:
        seen = run(Cfl(), names(10), labelled(2), 6)
        assert [len(set(grouped.memory.membership.values())) for grouped in seen] == [
            1,
            1,
            2,
            2,
            2,
            2,
        ]
        assert by_truth(seen[-1].memory.membership, 2) == 1.0
        assert [d for d, g in seen[-1].memory.membership.items() if g == "0"] == names(10)[::2]
        note = seen[2].notes["groups"]["0"]
        assert note["cut"] is True
        assert note["mean"] < 0.4 * seen[2].memory.info["scale"] < note["max"]

    def test_cuts_again(self) -> None:
        axes = np.linalg.qr(np.random.default_rng(1).normal(size=(SIZE, 4)))[0].T

        def change(i: int, number: int, rng: np.random.Generator) -> np.ndarray:
            """Two pairs of groups: the pairs' difference is larger and fades when they have models
            of their own, that inside stays."""
            pair, inner = i % 4 // 2, i % 2
            apart = 4.0 if number < 4 else 4.0 * 0.5 ** (number - 3)
            update = (
                3 * 0.5**number * axes[0]
                + apart * (2 * pair - 1) * axes[1]
                + 3 * (2 * inner - 1) * axes[2 + pair]
            )
            return np.asarray(update + 0.1 * rng.normal(size=SIZE))

        seen = run(Cfl(eps2=0.8), names(16), change, 9)
        assert [len(set(grouped.memory.membership.values())) for grouped in seen] == [
            1,
            1,
            2,
            2,
            2,
            4,
            4,
            4,
            4,
        ]
        assert by_truth(seen[-1].memory.membership, 4) == 1.0

    @pytest.mark.parametrize("options", [{"eps1": 0.01}, {"eps2": 3.0}, {"gamma": 1.0}])
    def test_each_condition_can_forbid_the_cut(self, options: dict[str, Any]) -> None:
        assert set(
            run(Cfl(**options), names(10), labelled(2), 5)[-1].memory.membership.values()
        ) == {"0"}

    def test_two_devices_are_not_cut(self) -> None:
        assert set(run(Cfl(), names(2), labelled(2), 5)[-1].memory.membership.values()) == {"0"}

    def test_does_not_depend_on_the_unit(self) -> None:
        change = labelled(2, noise=0.4)
        for scale in (1e-3, 1e3):
            scaled = run(Cfl(), names(9), scaled_by(scale, change), 5)
            assert (
                scaled[-1].memory.membership
                == run(Cfl(), names(9), change, 5)[-1].memory.membership
            )

    @pytest.mark.parametrize(
        "options", [{"eps1": -1.0}, {"eps2": float("nan")}, {"gamma": 1.1}, {"linkage": "ward"}]
    )
    def test_refuses_options(self, options: dict[str, Any]) -> None:
        with pytest.raises(ConfigError, match=next(iter(options))):
            Cfl(**options)


class TestHierarchical:
    @pytest.mark.parametrize("metric", METRICS)
    def test_pairwise_equals_the_double_loop(self, metric: Any) -> None:
        updates = np.random.default_rng(1).normal(size=(5, 9)).astype(np.float32)
        got = squareform(pairwise(updates, metric))
        for i, j in combinations(range(5), 2):
            a, b = updates[i].astype(float), updates[j].astype(float)
            cosine = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
            expected = {
                "euclidean": np.linalg.norm(a - b),
                "manhattan": np.abs(a - b).sum(),
                "cosine": np.sqrt(2 - 2 * cosine),
            }[metric]
            assert got[i, j] == pytest.approx(expected, rel=1e-6)

    @given(st.integers(2, 12), SEEDS, st.sampled_from(sorted(JUMP)), st.floats(0.5, 6))
    def test_cut_equals_sklearn(
        self, count: int, seed: int, linkage: Any, threshold: float
    ) -> None:
        updates = np.random.default_rng(seed).normal(size=(count, 5)).astype(np.float32)
        expected = AgglomerativeClustering(
            n_clusters=None, distance_threshold=threshold, linkage=linkage
        ).fit_predict(updates)
        labels, height = cut(pairwise(updates, "euclidean"), linkage, threshold)
        assert height == threshold
        assert adjusted_rand_score(expected, labels) == 1.0

    @pytest.mark.parametrize("linkage", JUMP)
    @pytest.mark.parametrize("groups", [1, 2, 4])
    def test_finds_groups_without_a_threshold(self, linkage: Any, groups: int) -> None:
        own = directions(4) if groups > 1 else np.zeros((4, SIZE))
        change: Change = lambda i, _number, rng: own[i % groups] + 0.2 * rng.normal(size=SIZE)  # noqa: E731
        for scale in (1.0, 1e-4):
            seen = run(Hierarchical(linkage=linkage), names(20), scaled_by(scale, change), 6)
            assert all(set(grouped.memory.membership.values()) == {"0"} for grouped in seen[:4])
            assert by_truth(seen[-1].memory.membership, groups) == 1.0
            assert seen[4].notes["clustered"] == 5

    def test_clusters_once(self) -> None:
        seen = run(
            Hierarchical(rounds=1),
            names(8),
            lambda i, number, rng: directions(2)[(i >> number) % 2] + 0.1 * rng.normal(size=SIZE),
            3,
        )
        assert by_truth(seen[0].memory.membership, 2) == 1.0
        assert all(grouped.memory.membership == seen[0].memory.membership for grouped in seen)

    def test_waits_for_a_second_device(self) -> None:
        memory = run(Hierarchical(rounds=1), ["a"], labelled(), 2)[-1].memory
        assert "clustered" not in memory.info
        assert memory.membership == {"a": "0"}

    def test_a_threshold_is_taken_as_it_is(self) -> None:
        assert set(
            run(Hierarchical(1, threshold=1e6), names(8), labelled(), 1)[
                0
            ].memory.membership.values()
        ) == {"0"}
        assert (
            len(
                set(
                    run(Hierarchical(1, threshold=1e-6), names(8), labelled(), 1)[
                        0
                    ].memory.membership.values()
                )
            )
            == 8
        )

    @pytest.mark.parametrize(
        "options",
        [
            {"rounds": 0},
            {"threshold": 0.0},
            {"linkage": "odd"},
            {"metric": "odd"},
            {"metric": "manhattan"},
        ],
    )
    def test_refuses_options(self, options: dict[str, Any]) -> None:
        with pytest.raises(ConfigError, match=next(iter(options))):
            Hierarchical(**options)


class TestGap:
    @given(truth=st.lists(st.integers(0, 3), min_size=3, max_size=12), seed=st.integers(0, 1000))
    def test_finds_groups_that_are_far_apart(self, truth: list[int], seed: int) -> None:
        same = np.equal.outer(truth, truth)
        divergences = np.where(same, 0.0, 10.0) + np.random.default_rng(seed).uniform(
            0, 1, same.shape
        )
        groups, threshold = group_by_gap(divergences)
        off = ~np.eye(len(truth), dtype=bool)
        if same[off].any() and not same.all():
            assert 1 < threshold < 10
            np.testing.assert_array_equal(np.equal.outer(groups, groups), same)
        assert sorted(set(groups.tolist())) == list(range(groups.max() + 1))

    @pytest.mark.parametrize("count", [1, 2])
    def test_one_pair_has_no_gap(self, count: int) -> None:
        assert group_by_gap(1 - np.eye(count))[0].tolist() == [0] * count


class TestFixedDivergence:
    """DistFL as its authors' code groups."""

    @given(count=st.integers(1, 12), threshold=st.floats(0.01, 0.5), seed=st.integers(0, 1000))
    def test_chains_of_near_devices_are_groups(
        self, count: int, threshold: float, seed: int
    ) -> None:
        divergences = np.random.default_rng(seed).uniform(0, 1, (count, count))
        _, labels = connected_components(divergences < threshold, directed=False)
        groups = connect(divergences, threshold)
        np.testing.assert_array_equal(
            np.equal.outer(groups, groups), np.equal.outer(labels, labels)
        )
        assert groups[0] == 0

    def test_groups_once_after_the_rounds_and_places_who_comes_later(self) -> None:
        grouping = DistFL(signature="noise", num_inputs=4, cut="fixed", after=3)
        answers = {"a": 0.0, "b": 0.1, "c": 4.0, "d": 4.1}
        found, memory = [], GroupingMemory()
        for late in ({}, {}, {}, {"c": 0.0}, {"e": 4.05}, {"f": -4.0}):
            answers |= late
            models = [
                LocalModel(
                    d, 10, 1, grouping.start(memory, d), {"shared/z": np.array([z], np.float32)}
                )
                for d, z in answers.items()
            ]
            memory = grouping.group(memory, models, ANSWERING, 0).memory
            found.append(dict(memory.membership))
        assert found[:2] == [dict.fromkeys("abcd", "0")] * 2
        assert found[2]["a"] == found[2]["b"] != found[2]["c"] == found[2]["d"]
        assert found[3] == found[2]  # c answers otherwise now, and stays
        assert found[4] == found[3] | {"e": found[2]["d"]}
        assert found[5].keys() == set("abcdef")
        assert found[5]["f"] not in found[4].values()


def answer(
    tensors: TorchTensors, x: torch.Tensor
) -> tuple[torch.Tensor, list[tuple[torch.Tensor, torch.Tensor]]]:
    z = tensors["shared/z"]
    return torch.sigmoid(torch.stack([z, -z], 1)).repeat(len(x), 1), []


ANSWERING = Probe(answer, (1, 4), (), ())
