"""The native engine against torch: every known layer in any order, every instruction set that this
machine has."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from torch import nn

from algorithms.models.reading.network import network_of
from host.native.plan import available_targets
from host.native.trainer import NativeTrainer
from tests.host.native_cases import (
    LR,
    MOMENTUM,
    batches_of,
    classifier,
    examples,
    flat_of,
    parts_of,
    settled,
    stacks,
    train_in_torch,
)


@settings(suppress_health_check=list(HealthCheck))
@given(stacks(), st.integers(2, 11), st.sampled_from([2, 5, 33]), st.integers(0, 10**6))
@example(
    ([nn.Conv1d(2, 3, 2, padding=1), nn.Flatten(), nn.BatchNorm1d(15)], 2, 4), 3, 5, 0
)  # what is normalised is not the product's rows
def test_a_step_equals_that_of_torch(
    stack: tuple[list[nn.Module], int, int], classes: int, size: int, seed: int
) -> None:
    layers, channels, time = stack
    torch.manual_seed(seed)
    model = classifier(layers, channels, time, classes)
    network = network_of(model, (channels, time))
    start = flat_of(model, network)
    x, y = examples(channels, time, classes, size, seed)
    order, bounds, batches = batches_of([size])
    state = copy.deepcopy(model.double().state_dict())
    assume(settled(model.train(), x, batches))
    model.load_state_dict(state)
    expected = train_in_torch(model, x, y, batches)
    wanted = flat_of(model, network) - start
    for target in available_targets():
        flat, velocity = start.copy(), np.zeros_like(start)
        outcome = NativeTrainer(network, target=target).train(
            flat, velocity, x, y, order, bounds, LR, MOMENTUM
        )
        assert outcome.loss_sum == pytest.approx(expected.loss_sum, rel=1e-4, abs=1e-4)
        assert outcome.num_examples == size
        for name, part in parts_of(network):
            near = {
                "rtol": 0,
                "atol": 2e-3 * np.abs(wanted[part]).max(initial=0) + 1e-6,
                "err_msg": f"{name} {target}",
            }
            np.testing.assert_allclose(flat[part] - start[part], wanted[part], **near)
            if "running" not in name:
                np.testing.assert_allclose(-LR * velocity[part], wanted[part], **near)


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(stacks(), st.integers(2, 11), st.sampled_from([1, 31, 70]), st.integers(0, 10**6))
def test_evaluation_and_prediction_equal_those_of_torch(
    stack: tuple[list[nn.Module], int, int], classes: int, size: int, seed: int
) -> None:
    layers, channels, time = stack
    torch.manual_seed(seed)
    model = classifier(layers, channels, time, classes)
    network = network_of(model, (channels, time))
    start = flat_of(model, network)
    x, y = examples(channels, time, classes, size + 3, seed)
    order = np.random.default_rng(seed).permutation(size + 3)[:size]
    model.double().eval()
    with torch.no_grad():
        logits = model(torch.from_numpy(x[order]).double())
    loss = F.cross_entropy(logits, torch.from_numpy(y[order]), reduction="sum").item()
    top = logits.topk(2, dim=1).values
    for target in available_targets():
        trainer, flat = NativeTrainer(network, target=target), start.copy()
        outcome = trainer.evaluate(flat, x, y, order)
        assert outcome.loss_sum == pytest.approx(loss, rel=1e-4, abs=1e-4)
        assert abs(outcome.num_correct - int((logits.argmax(1).numpy() == y[order]).sum())) <= int(
            (top[:, 0] - top[:, 1] < 1e-4).sum()
        )
        np.testing.assert_allclose(
            trainer.predict(flat, x, order), torch.softmax(logits, 1).numpy(), rtol=1e-3, atol=1e-5
        )
        assert np.array_equal(flat, start)


def test_batch_norm_stands_a_large_mean() -> None:
    """Signals of spread 1 around 3,000: the variance is right, also where the first example lies
    far from the others."""
    torch.manual_seed(0)
    model = classifier([nn.BatchNorm1d(3), nn.Flatten()], 3, 50, 2)
    model.scale = nn.Identity()
    network = network_of(model, (3, 50))
    x, y = examples(3, 50, 2, 40)
    x += 3000
    x[0, 1] -= 3000
    start = flat_of(model, network)
    order = np.arange(40)
    train_in_torch(model, x, y, [order])
    variance = dict(parts_of(network))["extractor.0.running_var"]
    for target in available_targets():
        flat = start.copy()
        NativeTrainer(network, target=target).train(
            flat, None, x, y, order, np.array([0, 40]), LR, MOMENTUM
        )
        np.testing.assert_allclose(flat[variance], flat_of(model, network)[variance], rtol=1e-4)
        np.testing.assert_allclose(flat, flat_of(model, network), rtol=1e-3, atol=1e-3)


def test_equal_maxima_send_their_gradient_to_the_first() -> None:
    """Signals that are constant over every pool, through ReLU at exactly 0 too: torch's float32
    gradients."""
    torch.manual_seed(0)
    model = classifier(
        [
            nn.Conv1d(2, 3, 1, bias=False),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(3, 4, 3),
            nn.MaxPool1d(3),
            nn.Flatten(),
        ],
        2,
        22,
        3,
    )
    network = network_of(model, (2, 22))
    x, y = examples(2, 11, 3, 8)
    x = np.repeat(x, 2, axis=2)
    x[:, :, 4:12] = 0
    start = flat_of(model, network)
    train_in_torch(model, x, y, [np.arange(8)])
    for target in available_targets():
        flat = start.copy()
        NativeTrainer(network, target=target).train(
            flat, None, x, y, np.arange(8), np.array([0, 8]), LR, MOMENTUM
        )
        np.testing.assert_allclose(flat, flat_of(model, network), rtol=0, atol=1e-6)
