"""FedAvg's step and DistFL's parts against slow, obvious references."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import rel_entr
from sklearn.metrics import adjusted_rand_score
from torch import nn

from algorithms.core.contract import LocalModel
from algorithms.core.keys import NEWCOMER
from algorithms.core.probe import make_probe
from algorithms.groupings.base import keep_names
from algorithms.groupings.distfl import pre_aggregate
from algorithms.groupings.knowledge import Extraction, extract_knowledge
from algorithms.groupings.responses import SMALLEST, divergence, respond
from algorithms.groupings.significance import FEWEST_DEVICES, SAMPLE, find_groups
from algorithms.groupings.views import coordinates_of_distances, euclidean_coordinates
from algorithms.models.classifier import Classifier
from algorithms.models.har_cnn import HarCnn
from algorithms.objectives.fedavg import FedAvg
from tests.support.known import known


def small_model(seed: int = 0) -> HarCnn:
    torch.manual_seed(seed)
    return HarCnn(2, 16, 3, torch.tensor([2.0, 1.0]))


def to_numpy(tensors: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    return {k: v.detach().numpy().copy() for k, v in tensors.items()}


class TestFedAvgStep:
    def test_equals_torch_sgd_on_the_module(self) -> None:
        model = small_model()
        objective = FedAvg(model)
        tensors = objective.initial()
        reference = small_model().train()
        optimiser = torch.optim.SGD(reference.parameters(), lr=0.05, momentum=0.9)
        hyper = {"lr": torch.tensor(0.05), "momentum": torch.tensor(0.9)}
        generator = torch.Generator().manual_seed(1)
        for size in (8, 8, 3, 8, 5):
            x, y = (
                torch.randn(size, 2, 16, generator=generator),
                torch.randint(0, 3, (size,), generator=generator),
            )
            outputs = objective.step(tensors, {"x": x, "y": y}, hyper)
            tensors = {
                **tensors,
                **{k.removeprefix("next/"): v for k, v in outputs.items() if k.startswith("next/")},
            }
            optimiser.zero_grad()
            logits = reference(x)
            loss = F.cross_entropy(logits, y)
            loss.backward()
            optimiser.step()
            assert float(outputs["metric/loss_sum"]) == pytest.approx(float(loss) * size, rel=1e-5)
            assert float(outputs["metric/num_correct"]) == float((logits.argmax(1) == y).sum())
        for name, value in (*reference.named_parameters(), *reference.named_buffers()):
            for role in ("shared", "statistic"):
                if f"{role}/{name}" in tensors:
                    torch.testing.assert_close(
                        tensors[f"{role}/{name}"], value, rtol=1e-4, atol=1e-6
                    )

    def test_does_not_touch_the_model_or_its_inputs(self) -> None:
        model = small_model()
        before = {k: v.clone() for k, v in model.state_dict().items()}
        objective = FedAvg(model)
        tensors = objective.initial()
        given_tensors = {k: v.clone() for k, v in tensors.items()}
        hyper = {"lr": torch.tensor(0.1), "momentum": torch.tensor(0.9)}
        objective.step(
            tensors, {"x": torch.randn(4, 2, 16), "y": torch.zeros(4, dtype=torch.int64)}, hyper
        )
        assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
        assert all(torch.equal(given_tensors[k], v) for k, v in tensors.items())

    def test_survey_is_the_mean_gradient_and_the_batch_statistics(self) -> None:
        model = small_model()
        objective = FedAvg(model)
        x, y = torch.randn(6, 2, 16), torch.tensor([0, 1, 2, 0, 1, 2])
        survey = objective.survey(objective.initial(), {"x": x, "y": y})
        reference = small_model().train()
        F.cross_entropy(reference(x), y, reduction="sum").backward()
        torch.testing.assert_close(
            survey["metric/gradient"], reference.head.weight.grad, rtol=1e-4, atol=1e-5
        )
        features = reference.extractor.get_submodule("conv1")(reference.scale(x))
        torch.testing.assert_close(
            survey["metric/mean.extractor.norm1"], 6 * features.mean((0, 2)), rtol=1e-4, atol=1e-5
        )
        torch.testing.assert_close(
            survey["metric/variance.extractor.norm1"],
            6 * features.var((0, 2), correction=0),
            rtol=1e-4,
            atol=1e-5,
        )


def local_models(count: int = 4, seed: int = 0) -> list[LocalModel]:
    base = to_numpy(
        {k: v for k, v in FedAvg(small_model()).initial().items() if not k.startswith("slot/")}
    )
    rng = np.random.default_rng(seed)
    models = []
    for i in range(count):
        tensors = {
            k: (v + rng.normal(0, 0.05, v.shape)).astype(np.float32) for k, v in base.items()
        }
        tensors = {k: np.abs(v) if k.endswith("running_var") else v for k, v in tensors.items()}
        models.append(LocalModel(f"d{i}", 10, 2, NEWCOMER, tensors))
    return models


class TestDistFLParts:
    def test_divergence_equals_the_double_loop(self) -> None:
        rng = np.random.default_rng(0)
        responses = rng.dirichlet(np.ones(3), size=(5, 7)).astype(np.float32)
        p = np.maximum(responses.astype(np.float64), SMALLEST)
        slow = [[rel_entr(p[i], p[j]).sum() / 7 for j in range(5)] for i in range(5)]
        np.testing.assert_allclose(divergence(responses), np.maximum(slow, 0), atol=1e-9)

    def test_divergence_stays_finite_when_a_model_is_certain(self) -> None:
        certain = np.array([[[1.0, 0.0]], [[0.0, 1.0]]], np.float32)
        assert np.isfinite(divergence(certain)).all()

    def test_knowledge_meets_the_statistics_better_than_noise(self) -> None:
        models = local_models()
        probe = make_probe(small_model(), (2, 16))
        inputs, losses = extract_knowledge(
            pre_aggregate(models), probe, Extraction(num_inputs=20), seed=0
        )
        assert inputs.shape == (20, 2, 16)
        assert losses[-1] < 0.75 * losses[0]
        again, _ = extract_knowledge(
            pre_aggregate(models), probe, Extraction(num_inputs=20), seed=0
        )
        np.testing.assert_array_equal(inputs, again)

    def test_knowledge_objective_is_equation_4(self) -> None:
        models = local_models(1)
        probe = make_probe(small_model(), (2, 16))
        settings = Extraction(num_inputs=8, channel_share=0.25, iterations=1)
        _, losses = extract_knowledge(models[0].tensors, probe, settings, seed=3)
        noise = torch.from_numpy(
            np.random.default_rng(3).standard_normal((8, 2, 16)).astype(np.float32)
        )
        module = small_model().eval()
        weights = {k.split("/", 1)[1]: torch.from_numpy(v) for k, v in models[0].tensors.items()}
        module.load_state_dict(weights, strict=False)
        conv1, norm1, conv2, norm2 = map(
            module.extractor.get_submodule, ("conv1", "norm1", "conv2", "norm2")
        )
        features = conv1(module.scale(noise))
        expected = 0.0
        for norm in (norm1, norm2):
            assert isinstance(norm, nn.BatchNorm1d)
            chosen = norm.weight.abs().argsort(descending=True)[: round(0.25 * norm.num_features)]
            expected += float((features.mean((0, 2)) - known(norm.running_mean))[chosen].norm())
            expected += float(
                (features.var((0, 2), correction=0) - known(norm.running_var))[chosen].norm()
            )
            features = conv2(F.max_pool1d(F.relu(norm(features)), 2)) if norm is norm1 else features
        assert losses[0] == pytest.approx(expected, rel=1e-4)

    def test_a_model_without_batch_norm_is_refused(self) -> None:
        model = Classifier(nn.Identity(), nn.Flatten(), nn.Linear(32, 3))
        with pytest.raises(ValueError, match="no BatchNorm"):
            extract_knowledge({}, make_probe(model, (2, 16)), Extraction(), 0)

    def test_responses_are_probabilities_of_each_model(self) -> None:
        responses = respond(
            local_models(3), make_probe(small_model(), (2, 16)), np.zeros((4, 2, 16), np.float32)
        )
        assert responses.shape == (3, 4, 3)
        np.testing.assert_allclose(responses.sum(2), 1, rtol=1e-5)


def clouds(
    sizes: list[int], distance: float, seed: int = 0, dims: int = 30
) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(len(sizes), dims)) * distance
    truth = np.repeat(np.arange(len(sizes)), sizes)
    return centres[truth] + rng.normal(size=(sum(sizes), dims)), truth


class TestSignificance:
    @pytest.mark.representatives("sizes0")
    @pytest.mark.parametrize("sizes", [[10, 10], [5, 5, 5, 5], [4, 16], [40, 10]])
    def test_separate_groups_are_found(self, sizes: list[int]) -> None:
        points, truth = clouds(sizes, 2.0)
        labels, tests = find_groups({"x": euclidean_coordinates(points)}, np.full(len(truth), 100))
        assert adjusted_rand_score(truth, labels) == 1.0
        assert tests[0].p <= 0.01

    @pytest.mark.representatives("0", "1")
    @pytest.mark.parametrize("seed", range(10))
    def test_one_population_stays_one_group(self, seed: int) -> None:
        points = np.random.default_rng(seed).normal(size=(20, 30)) * np.linspace(3, 0.1, 30)
        labels, _ = find_groups({"x": euclidean_coordinates(points)}, np.full(20, 100), seed=seed)
        assert labels.max() == 0

    def test_devices_with_few_examples_are_not_a_group_of_their_own(self) -> None:
        rng = np.random.default_rng(0)
        counts = np.array([400] * 11 + [40] * 9)
        points = rng.normal(size=(20, 30)) * np.sqrt(400 / counts)[:, None]
        labels, _ = find_groups({"x": euclidean_coordinates(points)}, counts)
        assert labels.max() == 0

    def test_a_second_view_may_decide(self) -> None:
        points, truth = clouds([10, 10], 2.0)
        other = np.random.default_rng(1).normal(size=(20, 30))
        labels, _ = find_groups(
            {"a": euclidean_coordinates(other), "b": euclidean_coordinates(points)},
            np.full(20, 100),
        )
        assert adjusted_rand_score(truth, labels) == 1.0

    def test_too_few_devices_are_one_group(self) -> None:
        points, _ = clouds([3, 4], 50.0)
        labels, tests = find_groups({"x": points}, np.full(7, 10))
        assert labels.max() == 0
        assert tests == []
        assert len(points) < FEWEST_DEVICES

    def test_a_larger_fleet_is_sampled_and_the_rest_placed(self) -> None:
        points, truth = clouds([200, 150], 3.0)
        assert len(points) > SAMPLE
        labels, _ = find_groups({"x": points}, np.full(len(points), 10))
        assert adjusted_rand_score(truth, labels) == 1.0

    def test_identical_devices_are_one_group(self) -> None:
        labels, _ = find_groups({"x": np.zeros((10, 4))}, np.full(10, 5))
        assert labels.max() == 0

    def test_coordinates_keep_distances(self) -> None:
        points, _ = clouds([6], 0.0)
        squared = ((points[:, None] - points) ** 2).sum(2)
        for found in (euclidean_coordinates(points), coordinates_of_distances(squared)):
            np.testing.assert_allclose(((found[:, None] - found) ** 2).sum(2), squared, atol=1e-8)


class TestIdentity:
    @given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.permutations(range(4)))
    def test_the_same_partition_keeps_every_name(
        self, labels: list[int], renamed: list[int]
    ) -> None:
        ids = [f"d{i:02d}" for i in range(len(labels))]
        before = keep_names(ids, np.array(labels), {})
        assert keep_names(ids, np.array([renamed[g] for g in labels]), before) == before

    def test_a_split_keeps_the_name_with_the_larger_part(self) -> None:
        before = dict.fromkeys("abcde", "0")
        assert keep_names("abcde", np.array([1, 1, 0, 0, 0]), before) == {
            "a": "1",
            "b": "1",
            "c": "0",
            "d": "0",
            "e": "0",
        }

    def test_a_new_device_takes_the_name_of_its_group(self) -> None:
        assert keep_names("abc", np.array([5, 7, 7]), {"a": "3", "b": "4"}) == {
            "a": "3",
            "b": "4",
            "c": "4",
        }
