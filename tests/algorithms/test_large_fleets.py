"""Fleets of more devices than are tested at once: the same groups as the exact test finds, in
memory that does not grow with N x N."""

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from algorithms.algorithm import SURVEY, Algorithm, State, decode_memory, encode_memory
from algorithms.composition import make_algorithm, read_algorithm
from algorithms.core.contract import Grouped, GroupingMemory, LocalModel, Probe, Work
from algorithms.core.keys import NEWCOMER
from algorithms.core.probe import make_probe, whole_model
from algorithms.groupings import significance
from algorithms.groupings.bootstrap import BATCH, Draws, run_test
from algorithms.groupings.distfl import AT_ONCE, VIEWED, DistFL, pre_aggregate
from algorithms.groupings.responses import divergence, divergence_to, respond
from algorithms.groupings.significance import SAMPLE, find_groups, join_groups
from algorithms.groupings.surveys import SHORT, Surveys, shorten
from algorithms.groupings.views import Points, Responses
from algorithms.models.har_cnn import HarCnn
from host.native.arithmetic import NativeArithmetic
from wire.errors import ConfigError

pytestmark = pytest.mark.full

CLASSES, CHANNELS = 6, 40


def fleet(
    kind: str, count: int, seed: int = 0
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Views, examples and truth. Every device's rows are means over its examples, so that few
    examples mean much noise."""
    rng = np.random.default_rng(seed)
    examples = rng.integers(60, 400, count)
    noise = np.sqrt(200 / examples)[:, None]
    truth = np.zeros(count, np.int64)
    shares, places = np.full((1, CLASSES), 1 / CLASSES), np.zeros((1, CHANNELS))
    if kind == "label skew":  # five unequal groups, the smallest 5 % of the fleet
        truth = rng.choice(5, count, p=[0.4, 0.3, 0.15, 0.1, 0.05])
        shares = np.array(
            [np.where(np.isin(range(CLASSES), (g, g + 1)), 0.4, 0.05) for g in range(5)]
        )
    elif kind == "rotations":
        truth, places = rng.integers(0, 4, count), rng.normal(size=(4, CHANNELS)) * 1.2
    elif kind.endswith("%"):  # a small group whose labels are flipped
        truth = (rng.permutation(count) < float(kind[:-1]) / 100 * count).astype(np.int64)
        shares = np.array(
            [np.full(CLASSES, 1 / CLASSES), np.where(np.arange(CLASSES) < 2, 0.45, 0.025)]
        )
    flips = np.sign(shares - shares.mean())[truth] if kind.endswith("%") else 1.0
    labels = (shares[truth if len(shares) > 1 else np.zeros(count, int)] * flips) @ rng.normal(
        size=(CLASSES, 60)
    )
    views = {
        "labels": labels + 0.04 * noise * rng.normal(size=(count, 60)),
        "statistics": places[truth if len(places) > 1 else np.zeros(count, int)]
        + noise * rng.normal(size=(count, CHANNELS)) * np.geomspace(1, 0.1, CHANNELS),
    }
    return {name: rows.astype(np.float32) for name, rows in views.items()}, examples, truth


KINDS = ["label skew", "rotations", "3%", "2%", "alike"]


def compare_with_exact(
    kind: str, count: int, seed: int, draws: Draws, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition by samples, and by the test of all devices at once."""
    views, examples, truth = fleet(kind, count, seed)
    sampled, tests = find_groups(views, examples)
    assert tests[0].num_devices == SAMPLE
    monkeypatch.setattr(significance, "SAMPLE", count)
    monkeypatch.setattr(significance, "DRAWS", draws)
    exact, tests = find_groups(views, examples)
    assert tests[0].num_devices == count
    assert adjusted_rand_score(exact, sampled) == 1.0
    assert adjusted_rand_score(truth, sampled) == 1.0


class TestSampledTest:
    @pytest.mark.parametrize("kind", KINDS)
    def test_finds_the_partition_that_the_exact_test_finds(
        self, kind: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        compare_with_exact(kind, 350, 0, Draws(49), monkeypatch)

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("seed", range(3))
    def test_finds_it_in_a_thousand_devices(
        self, kind: str, seed: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        compare_with_exact(kind, 1000, seed, Draws(99, enough=5), monkeypatch)

    @pytest.mark.representatives("0-1%")
    @pytest.mark.parametrize("share", ["1%", "3%"])
    @pytest.mark.parametrize("seed", range(3))
    def test_a_group_too_rare_for_the_sample_is_found_by_its_distance(
        self, share: str, seed: int
    ) -> None:
        views, examples, truth = fleet(share, 5000, seed)
        assert adjusted_rand_score(truth, find_groups(views, examples)[0]) > 0.99

    @pytest.mark.representatives("0")
    @pytest.mark.parametrize("seed", range(6))
    def test_one_population_stays_one_group(self, seed: int) -> None:
        views, examples, _ = fleet("alike", 3000, seed)
        labels, tests = find_groups(views, examples)
        assert labels.max() == 0
        assert min(test.p for test in tests) > 0.025

    def test_twenty_thousand_devices_take_little_memory(self) -> None:
        views, examples, truth = fleet("rotations", 20_000)
        tracemalloc.start()
        labels, _ = find_groups(views, examples)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert adjusted_rand_score(truth, labels) > 0.99
        assert peak < 20_000**2 * 8 / 50, "a fiftieth of the distances between all"

    def test_identical_devices_are_one_group(self) -> None:
        labels, _ = find_groups({"x": np.zeros((600, 4), np.float32)}, np.full(600, 5))
        assert labels.max() == 0

    def test_responses_are_grouped_by_divergence(self) -> None:
        rng = np.random.default_rng(0)
        truth = rng.integers(0, 3, 600)
        answers = rng.dirichlet(np.ones(4), size=(3, 10))[truth] + 0.05 * rng.random((600, 10, 4))
        view = Responses((answers / answers.sum(2, keepdims=True)).astype(np.float32))
        assert (
            adjusted_rand_score(truth, find_groups({"responses": view}, np.full(600, 10))[0]) == 1.0
        )

    def test_a_clear_case_is_not_drawn_to_the_end(self) -> None:
        points = np.random.default_rng(0).normal(size=(30, 5))
        whole, early = (
            run_test("x", points, np.full(30, 9.0), 0, draws)
            for draws in (Draws(999), Draws(999, enough=10))
        )
        assert early.p > 0.1
        assert early.p == pytest.approx(whole.p, abs=0.15)
        grouped = points + 20 * (np.arange(30) % 2)[:, None]
        assert run_test("x", grouped, np.full(30, 9.0), 0, Draws(2 * BATCH, enough=10)).p == 1 / (
            2 * BATCH + 1
        )


class TestViews:
    def test_distances_to_centres(self) -> None:
        rows = np.random.default_rng(0).normal(5, 1, size=(9000, 7)).astype(np.float32)
        members = np.arange(1, 9000, 2)
        centres = np.stack([Points(rows).centre(members), rows[3]])
        np.testing.assert_allclose(centres[0], rows[members].mean(0), rtol=1e-5)
        slow = ((rows[members][:, None].astype(np.float64) - centres) ** 2).sum(2)
        np.testing.assert_allclose(
            Points(rows).squared_distances(members, centres), slow, atol=1e-4
        )

    def test_divergence_to_centres_is_both_directions(self) -> None:
        responses = np.random.default_rng(0).dirichlet(np.ones(3), size=(5, 7)).astype(np.float32)
        kl = divergence(responses)
        np.testing.assert_allclose(
            divergence_to(responses, responses[:2]), (kl + kl.T)[:, :2], atol=1e-9
        )


def survey(place: np.ndarray, gradient: np.ndarray) -> dict[str, np.ndarray]:
    values = {
        "mean.norm": place,
        "variance.norm": np.ones_like(place),
        "gradient": gradient.reshape(3, -1),
    }
    return {f"response/survey.{name}": value.astype(np.float32) for name, value in values.items()}


def device(number: int, group: int, start: str = NEWCOMER, seed: int = 0) -> LocalModel:
    """A device whose inputs are of one of the groups."""
    rng = np.random.default_rng([seed, number])
    place = np.random.default_rng(group).normal(size=20) * 2 + 0.3 * rng.normal(size=20)
    told = survey(place, np.ones(600) + 0.3 * rng.normal(size=600))
    return LocalModel(f"d{number:05}", 100, 1, start, {"shared/w": np.zeros(2, np.float32)}, told)


def first_round(count: int = 400, groups: int = 3) -> Grouped:
    return DistFL(signature="both").group(
        GroupingMemory(), [device(i, i % groups) for i in range(count)], None, 0
    )


class TestDistFLOfManyDevices:
    def test_memory_is_one_array_per_quantity_and_survives_a_restart(self) -> None:
        grouped = first_round()
        memory = grouped.memory
        assert sorted(memory.arrays) == ["gradient", "mean.norm", "variance.norm"]
        assert memory.arrays["gradient"].shape == (400, SHORT)
        assert memory.arrays["mean.norm"].dtype == np.float32
        again = decode_memory(encode_memory(State({}, memory)), {}).memory
        assert again.info == memory.info
        assert DistFL().group(again, [device(9, 0)], None, 0).memory.membership == memory.membership
        assert len(set(memory.membership.values())) == 3

    def test_people_see_distances_of_some(self) -> None:
        grouped = first_round()
        assert len(grouped.device_ids) == VIEWED
        assert {name: view.shape for name, view in grouped.views.items()} == dict.fromkeys(
            ("labels", "statistics"), (VIEWED, VIEWED)
        )
        i, j = 5, 200
        rows = Surveys.of(grouped.memory).rows()["statistics"]
        at = [grouped.memory.info["device_ids"].index(grouped.device_ids[k]) for k in (i, j)]
        assert grouped.views["statistics"][i, j] == pytest.approx(
            float(np.linalg.norm(rows[at[0]] - rows[at[1]])), rel=1e-5
        )

    def test_few_newcomers_are_placed_without_a_test(self) -> None:
        memory = first_round().memory
        grouped = DistFL().group(memory, [device(5000 + i, i % 3) for i in range(9)], None, 0)
        assert grouped.notes == {"placed": 9}
        for i in range(9):
            assert grouped.memory.membership[f"d{5000 + i:05}"] == memory.membership[f"d{i:05}"]
        assert len(grouped.memory.info["device_ids"]) == 409
        assert memory.membership == {
            d: g for d, g in grouped.memory.membership.items() if d in memory.membership
        }

    def test_many_newcomers_call_for_a_test_even_if_they_come_one_by_one(self) -> None:
        grouped = first_round()
        for number in range(4):
            grouped = DistFL().group(
                grouped.memory, [device(5000 + 10 * number + i, i % 3) for i in range(10)], None, 0
            )
            assert ("tests" in grouped.notes) is (number == 3)
        assert grouped.memory.info["num_tested"] == 440

    def test_newcomers_that_fit_nowhere_call_for_a_test(self) -> None:
        memory = first_round().memory
        grouped = DistFL().group(memory, [device(5000 + i, 7) for i in range(20)], None, 0)
        assert "tests" in grouped.notes
        new = {grouped.memory.membership[f"d{5000 + i:05}"] for i in range(20)}
        assert len(new) == 1
        assert new.isdisjoint(memory.membership.values())

    def test_a_device_that_has_moved_changes_its_group(self) -> None:
        memory = first_round().memory
        moved = device(1, 2, start="0", seed=4)
        assert (
            DistFL().group(memory, [moved], None, 0).memory.membership == memory.membership
        )  # not asked for
        grouped = DistFL(resurvey=5).group(
            memory, [moved, device(2, 2, start="1", seed=4)], None, 0
        )
        assert grouped.notes == {"placed": 2}
        assert (
            grouped.memory.membership["d00001"]
            == memory.membership["d00002"]
            != memory.membership["d00001"]
        )
        assert len(grouped.memory.info["device_ids"]) == 400
        np.testing.assert_allclose(
            Surveys.of(grouped.memory).arrays["mean.norm"][1],
            moved.responses["response/survey.mean.norm"],
        )

    def test_a_device_that_is_a_newcomer_again_changes_its_group(self) -> None:
        memory = first_round().memory
        grouped = DistFL().group(
            memory, [device(1, 2, seed=4), device(2, 2, start="1", seed=4)], None, 0
        )
        assert grouped.notes == {"placed": 1}
        assert (
            grouped.memory.membership["d00001"]
            == memory.membership["d00002"]
            != memory.membership["d00001"]
        )

    @pytest.mark.slow
    def test_a_fleet_that_has_moved_is_tested(self) -> None:
        memory = first_round().memory
        grouped = DistFL(resurvey=5).group(
            memory, [device(i, 5 + i % 2, seed=4) for i in range(400)], None, 0
        )
        assert "tests" in grouped.notes
        assert len(set(grouped.memory.membership.values())) == 2

    def test_a_device_of_a_small_fleet_that_has_moved_changes_its_group(self) -> None:
        grouping = DistFL(resurvey=1)
        memory = grouping.group(
            GroupingMemory(), [device(i, i % 2) for i in range(24)], None, 0
        ).memory
        grouped = grouping.group(memory, [device(3, 0, start="1", seed=4)], None, 0)
        assert "tests" in grouped.notes
        assert (
            grouped.memory.membership["d00003"]
            == memory.membership["d00000"]
            != memory.membership["d00003"]
        )

    def test_surveys_are_asked_for_again(self) -> None:
        work = Work(8, 1)

        def surveyed(algorithm: Algorithm, rounds: int) -> bool:
            state = State({}, GroupingMemory({"a": "0"}), rounds=rounds)
            return SURVEY in algorithm.programs(state, work, {})[""]

        assert [
            surveyed(make_algorithm(read_algorithm("distfl:resurvey=3")), r) for r in range(1, 8)
        ] == [
            False,
            False,
            True,
            False,
            False,
            True,
            False,
        ]
        assert not any(surveyed(make_algorithm(read_algorithm("distfl")), r) for r in range(1, 8))

    @pytest.mark.parametrize(
        "options", [{"resurvey": -1}, {"resurvey": 2, "signature": "responses"}]
    )
    def test_resurvey_needs_surveys(self, options: dict[str, Any]) -> None:
        with pytest.raises(ConfigError, match="resurvey"):
            DistFL(**options)

    def test_groups_by_responses(self) -> None:
        model = HarCnn(2, 16, 3)
        base = {k: v.detach().numpy() for k, v in whole_model(model).items()}
        rng = np.random.default_rng(0)
        heads = rng.normal(size=(2, *base["shared/head.weight"].shape)).astype(np.float32)
        models = []
        for i in range(300):
            tensors = base | {
                "shared/head.weight": heads[i % 2]
                + rng.normal(0, 0.05, heads[0].shape).astype(np.float32)
            }
            models.append(LocalModel(f"d{i:05}", 100, 1, NEWCOMER, tensors))
        grouping = DistFL(signature="responses", num_inputs=20, iterations=3)
        grouped = grouping.group(GroupingMemory(), models, make_probe(model, (2, 16)), 0)
        truth = [i % 2 for i in range(300)]
        assert (
            adjusted_rand_score(truth, [grouped.memory.membership[m.device_id] for m in models])
            == 1.0
        )
        assert grouped.views["responses"].shape == (VIEWED, VIEWED)


class TestSurveys:
    def test_reports_take_their_rows(self) -> None:
        models = [device(i, i) for i in (4, 1, 7)]
        surveys = Surveys().with_reports(models)
        assert surveys.device_ids == ("d00001", "d00004", "d00007")
        later = surveys.with_reports(
            [
                replace(device(4, 2), num_examples=0),
                device(2, 0),
                replace(device(9, 0), responses={}),
            ]
        )
        assert later.device_ids == ("d00001", "d00002", "d00004", "d00007")
        assert later.num_examples == (100, 100, 1, 100)
        for d, model in {
            "d00007": models[2],
            "d00004": device(4, 2),
            "d00002": device(2, 0),
        }.items():
            np.testing.assert_array_equal(
                later.arrays["gradient"][later.positions[d]],
                model.responses["response/survey.gradient"].ravel(),
            )
        assert surveys.with_reports([]) is surveys

    def test_rows_do_not_depend_on_the_unit_of_an_input_or_the_length_of_a_gradient(self) -> None:
        small = [device(i, i % 2) for i in range(9)]
        scaled = [
            replace(
                m, responses={k: v * (9 if "variance" in k else 3) for k, v in m.responses.items()}
            )
            for m in small
        ]
        for name, rows in Surveys().with_reports(small).rows().items():
            np.testing.assert_allclose(Surveys().with_reports(scaled).rows()[name], rows, rtol=1e-5)

    def test_short_gradients_keep_distances(self) -> None:
        rows = np.random.default_rng(0).normal(size=(6, 12_288)).astype(np.float32)
        short = shorten(rows)
        assert short.shape == (6, SHORT)
        assert short.dtype == np.float32
        for i in range(5):
            assert np.linalg.norm(short[i] - short[5]) == pytest.approx(
                np.linalg.norm(rows[i] - rows[5]), rel=0.15
            )
        np.testing.assert_array_equal(shorten(rows[:1]), short[:1])

    def test_join_groups_says_who_fits(self) -> None:
        rng = np.random.default_rng(0)
        labels = np.arange(60) % 2
        rows = rng.normal(size=(60, 10)) + 30 * labels[:, None]
        new = np.vstack([rng.normal(size=10), rng.normal(size=10) + 30, np.full(10, 12.0)])
        nearest, fits = join_groups(
            {"x": Points(rows)}, np.full(60, 5), labels, {"x": Points(new)}, np.full(3, 5)
        )
        assert nearest.tolist() == [0, 1, 0]
        assert fits.tolist() == [True, True, False]


class TestManyModels:
    def make(self, count: int) -> tuple[list[LocalModel], Probe]:
        model = HarCnn(2, 16, 3, torch.tensor([2.0, 1.0]))
        rng = np.random.default_rng(0)
        models = []
        for i in range(count):
            tensors = {
                k: v.detach().numpy() + rng.normal(0, 0.2, v.shape).astype(np.float32)
                for k, v in whole_model(model).items()
            }
            tensors = {
                k: np.abs(v) + np.float32(0.1) if k.endswith("running_var") else v
                for k, v in tensors.items()
            }
            models.append(LocalModel(f"d{i}", 10, 1, NEWCOMER, tensors))
        return models, replace(make_probe(model, (2, 16)), arithmetic=NativeArithmetic())

    def test_folded_answers_are_the_sequential_ones(self) -> None:
        models, probe = self.make(SAMPLE + 4)
        inputs = np.random.default_rng(1).normal(size=(5, 2, 16)).astype(np.float32)
        plain = replace(probe, predict=None, predict_folded=None, network=None)
        slow = respond(models, plain, inputs)
        np.testing.assert_allclose(respond(models, probe, inputs), slow, atol=5e-6)
        np.testing.assert_array_equal(respond(models[:9], probe, inputs), slow[:9])

    def test_a_model_that_overflows_answers_nothing(self) -> None:
        models, probe = self.make(2)
        models[1].tensors["shared/head.bias"][:] = np.inf
        responses = respond(models, probe, np.zeros((4, 2, 16), np.float32))
        assert np.isfinite(responses).all()
        np.testing.assert_allclose(responses[1], 1 / 3)

    def test_mean_of_more_models_than_are_copied_at_once(self) -> None:
        models, _ = self.make(2 * AT_ONCE + 3)
        average = pre_aggregate(models)
        key = "shared/head.weight"
        assert average[key].dtype == np.float32
        np.testing.assert_allclose(
            average[key],
            np.mean([m.tensors[key] for m in models], axis=0, dtype=np.float64),
            rtol=1e-6,
        )
