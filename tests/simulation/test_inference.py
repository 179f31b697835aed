"""Intervals that hold as often as they say, and tests of pairs that say what textbooks do."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.comparison.inference import compare_pairs, half_width, holm
from simulation.comparison.table import against
from tests.support.known import known


def test_the_interval_is_students() -> None:
    assert half_width([1.0, 2.0, 3.0]) == pytest.approx(
        4.302653 * 1.0 / np.sqrt(3), rel=1e-6
    )  # t(0.975, 2) of the tables
    assert half_width([1.0]) is None
    assert half_width([]) is None


def test_the_interval_holds_in_95_of_100_cases() -> None:
    draws = np.random.default_rng(0).normal(3.0, 2.0, (2000, 3))
    holds = [abs(float(np.mean(d)) - 3.0) <= known(half_width(d.tolist())) for d in draws]
    assert 0.935 < np.mean(holds) < 0.965


def test_wilcoxons_smallest_p_for_five_pairs_is_one_in_sixteen() -> None:
    found = compare_pairs([0.1, 0.2, 0.3, 0.4, 0.5])
    assert found.p == pytest.approx(2 / 2**5)
    assert found.mean == pytest.approx(0.3)
    assert found.pairs == 5
    assert compare_pairs([-0.1, -0.2, -0.3, -0.4, -0.5]).p == pytest.approx(2 / 2**5)


def test_equal_pairs_are_no_evidence() -> None:
    assert compare_pairs([0.0, 0.0, 1e-15]).p == 1.0
    assert compare_pairs([0.2]).half_width is None
    with pytest.raises(ValueError, match="no pairs"):
        compare_pairs([])


@pytest.mark.full
def test_false_discoveries_are_rare() -> None:
    rng = np.random.default_rng(1)
    false = [
        min(holm([compare_pairs(rng.normal(size=20).tolist()).p for _ in range(5)])) < 0.05
        for _ in range(400)
    ]
    assert np.mean(false) < 0.08


def test_holm_is_that_of_the_paper() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_is_between_the_p_and_bonferroni_and_keeps_their_order(values: list[float]) -> None:
    found = holm(values)
    for p, adjusted in zip(values, found, strict=True):
        assert p <= adjusted <= min(1.0, p * len(values)) + 1e-12
    order = sorted(range(len(values)), key=values.__getitem__)
    assert [found[i] for i in order] == sorted(found)


def result(
    algorithm: str, seed: int, labels: str = "all", **accuracies: float | None
) -> dict[str, object]:
    newcomers = {"devices": {"n": 0.25}} if labels == "none" else None
    return {
        "algorithm": algorithm,
        "seed": seed,
        "labels": labels,
        "devices": accuracies,
        "attack": None,
        "newcomers": newcomers,
    }


def test_a_device_is_one_pair_with_its_mean_over_the_seeds_that_both_have() -> None:
    runs = {
        "a": [result("a", 0, x=0.5, y=0.6), result("a", 1, x=0.9, y=None)],
        "b": [result("b", 1, x=0.8, y=0.1), result("b", 0, x=0.6, y=0.7, z=0.0)],
    }
    assert against(runs, "a") == {
        "b": {
            "reference": "a",
            "difference": pytest.approx(0.05),
            "ci95": pytest.approx(12.706 * 0.05, abs=1e-4),
            "p": 1.0,
            "pairs": 2,
        }
    }
    assert against(runs, "b").keys() == {"a"}
    assert against({"a": runs["a"]}, "a") == {}
    assert against({"a": runs["a"], "b": [result("b", 7, x=0.1)]}, "a") == {}


def test_a_device_that_does_the_same_in_every_seed_is_no_more_evidence() -> None:
    """Methods that are equal, on devices that differ from each other more than from themselves."""
    rng, false = np.random.default_rng(0), 0
    for _ in range(300):
        lasting = rng.normal(size=12)
        runs = [
            (name, seed, rng.normal(size=12) * 0.5 + lasting * (name == "b"))
            for name in "ab"
            for seed in range(4)
        ]
        by_name = {
            n: [
                result(n, s) | {"devices": dict(enumerate(x.tolist()))}
                for m, s, x in runs
                if m == n
            ]
            for n in "ab"
        }
        false += against(by_name, "a")["b"]["p"] < 0.05
    assert false / 300 < 0.09


def test_devices_of_two_data_sets_are_two_however_they_are_called() -> None:
    runs = {
        name: [result(name, 0, x=0.5) | {"data": data, "cell": data} for data in ("one", "two")]
        for name in "ab"
    }
    assert against(runs, "a")["b"]["pairs"] == 2


def test_attackers_do_not_count_and_without_labels_the_newcomers_do() -> None:
    honest = {
        "a": [result("a", 0, x=0.5, evil=0.9)],
        "b": [result("b", 0, x=0.7, evil=0.0) | {"attack": {"attackers": ["evil"]}}],
    }
    assert (against(honest, "a")["b"]["pairs"], against(honest, "a")["b"]["difference"]) == (1, 0.2)
    newcomers = {name: [result(name, 0, labels="none", x=float(name == "a"))] for name in "ab"}
    assert (against(newcomers, "a")["b"]["pairs"], against(newcomers, "a")["b"]["difference"]) == (
        1,
        0.0,
    )
