"""The native engine against torch: every known layer in any order, every instruction set that this machine has."""

import copy
import threading
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from torch import nn

from algorithms.models.blocks import conv_stack
from algorithms.models.classifier import Classifier, Scale
from algorithms.models.network import Network, network_of
from host.native.trainer import Floats, Outcome, Trainer, available_targets
from wire.errors import ConfigError, DataError

LR, MOMENTUM = 0.05, 0.9


def classifier(layers: list[nn.Module], channels: int, time: int, classes: int) -> Classifier:
    """A classifier of these layers with parameters and statistics away from their usual start."""
    extractor = nn.Sequential(*layers)
    extractor.eval()
    features = extractor(torch.zeros(2, channels, time)).shape[1]
    model = Classifier(Scale(torch.rand(channels) + 0.5), extractor, nn.Linear(features, classes))
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            if module.affine:
                nn.init.normal_(module.weight, 0.7, 0.5)
                nn.init.normal_(module.bias, 0, 0.3)
    return model


def flat_of(model: Classifier, network: Network) -> Floats:
    state = model.state_dict()
    return np.concatenate([state[n].numpy().ravel() for n in network.shapes]).astype(np.float32)


def examples(channels: int, time: int, classes: int, n: int, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, channels, time)).astype(np.float32), rng.integers(0, classes, n)


def train_in_torch(model: Classifier, x: Any, y: Any, batches: list[Any], frozen: tuple[str, ...] = ()) -> Outcome:
    """The same steps in torch, double precision: the outcome before each step; `model` becomes the trained one."""
    model.double().train()
    optimizer = torch.optim.SGD([p for n, p in model.named_parameters() if n not in frozen], LR, MOMENTUM)
    loss_sum, correct = 0.0, 0
    for chosen in batches:
        logits = model(torch.from_numpy(x[chosen]).double())
        loss = F.cross_entropy(logits, torch.from_numpy(y[chosen]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss_sum += loss.item() * len(chosen)
        correct += int((logits.argmax(1).numpy() == y[chosen]).sum())
    return Outcome(loss_sum, correct, sum(map(len, batches)))


def batches_of(sizes: list[int]) -> tuple[Any, Any, list[Any]]:
    """A shuffled order of sum(sizes) examples, its bounds, and the batches that they describe."""
    order, bounds = np.random.default_rng(1).permutation(sum(sizes)), np.cumsum([0, *sizes])
    return order, bounds, [order[a:b] for a, b in pairwise(bounds)]


@st.composite
def stacks(draw: st.DrawFn) -> tuple[list[nn.Module], int, int]:
    """Known layers in any order that fits (channels, time): in time first, then flat."""
    channels, time = draw(st.sampled_from([1, 3, 9, 17])), draw(st.integers(1, 45))
    inputs, length, layers = channels, time, list[nn.Module]()
    for _ in range(draw(st.integers(0, 6))):
        kind = draw(st.sampled_from(["conv", "conv", "norm", "relu", "max", "mean", "identity"]))
        if kind == "conv":
            kernel, padding, stride = draw(st.integers(1, 7)), draw(st.integers(0, 4)), draw(st.sampled_from([1, 1, 1, 2, 3]))
            after = (length + 2 * padding - kernel) // stride + 1
            if after < 1:
                continue
            outputs = draw(st.sampled_from([1, 2, 5, 16, 20, 33, 50, 70]))
            layers.append(nn.Conv1d(inputs, outputs, kernel, stride, padding, bias=draw(st.booleans())))
            inputs, length = outputs, after
        elif kind in ("max", "mean"):
            pool = draw(st.integers(1, 4))
            if length // pool:
                layers.append(nn.MaxPool1d(pool) if kind == "max" else nn.AvgPool1d(pool))
                length //= pool
        else:
            layers.append({"norm": nn.BatchNorm1d(inputs, affine=draw(st.booleans())), "relu": nn.ReLU()}.get(kind, nn.Identity()))
    if draw(st.booleans()):
        layers.append(nn.AdaptiveAvgPool1d(1))
        length = 1
    layers.append(nn.Flatten())
    inputs *= length
    for _ in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from(["linear", "norm", "relu"]))
        if kind == "linear":
            outputs = draw(st.sampled_from([1, 7, 16, 40, 130]))
            layers.append(nn.Linear(inputs, outputs, bias=draw(st.booleans())))
            inputs = outputs
        else:
            layers.append(nn.BatchNorm1d(inputs) if kind == "norm" else nn.ReLU())
    return layers, channels, time


def settled(model: Classifier, x: Any, batches: list[Any]) -> bool:
    """Whether float32 can decide as float64 does: no activation near a jump, no channel without any spread.

    A max-pool of equal values, a ReLU at 0 and a BatchNorm of a constant make the gradient jump with the last bit.
    """
    seen = [True]

    def watch(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        z = inputs[0].detach()
        if isinstance(module, nn.ReLU):
            seen[0] &= bool(((z == 0) | (z.abs() > 5e-6)).all())
        elif isinstance(module, nn.MaxPool1d):
            top = z[..., : z.shape[-1] // module.kernel_size * module.kernel_size].unfold(-1, module.kernel_size, module.kernel_size)
            if top.shape[-1] > 1:
                first, second = top.topk(2).values.unbind(-1)
                seen[0] &= bool(((first - second > 5e-6) | ((first == second) & (first == 0))).all())
        elif isinstance(module, nn.BatchNorm1d):
            seen[0] &= bool((z.transpose(0, 1).flatten(1).var(1) > 1e-2).all())

    hooks = [m.register_forward_pre_hook(watch) for m in model.modules()]
    for chosen in batches:
        model(torch.from_numpy(x[chosen]).double())
    for hook in hooks:
        hook.remove()
    return seen[0]


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(stacks(), st.integers(2, 11), st.sampled_from([2, 5, 33]), st.integers(0, 10**6))
@example(([nn.Conv1d(2, 3, 2, padding=1), nn.Flatten(), nn.BatchNorm1d(15)], 2, 4), 3, 5, 0)  # what is normalised is not the product's rows
def test_a_step_equals_that_of_torch(stack: tuple[list[nn.Module], int, int], classes: int, size: int, seed: int) -> None:
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
        outcome = Trainer(network, target=target).train(flat, velocity, x, y, order, bounds, LR, MOMENTUM)
        assert outcome.loss_sum == pytest.approx(expected.loss_sum, rel=1e-4, abs=1e-4)
        assert outcome.num_examples == size
        for name, part in parts_of(network):
            near = {"rtol": 0, "atol": 2e-3 * np.abs(wanted[part]).max(initial=0) + 1e-6, "err_msg": f"{name} {target}"}
            np.testing.assert_allclose(flat[part] - start[part], wanted[part], **near)
            if "running" not in name:
                np.testing.assert_allclose(-LR * velocity[part], wanted[part], **near)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
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
        trainer, flat = Trainer(network, target=target), start.copy()
        outcome = trainer.evaluate(flat, x, y, order)
        assert outcome.loss_sum == pytest.approx(loss, rel=1e-4, abs=1e-4)
        assert abs(outcome.num_correct - int((logits.argmax(1).numpy() == y[order]).sum())) <= int((top[:, 0] - top[:, 1] < 1e-4).sum())
        np.testing.assert_allclose(trainer.predict(flat, x, order), torch.softmax(logits, 1).numpy(), rtol=1e-3, atol=1e-5)
        assert np.array_equal(flat, start)


def parts_of(network: Network) -> list[tuple[str, slice]]:
    """Where each tensor lies in the flat vector."""
    ends = np.cumsum([0, *(prod(s) for s in network.shapes.values())])
    return [(name, slice(a, b)) for name, (a, b) in zip(network.shapes, pairwise(ends), strict=True)]


@pytest.fixture
def har() -> tuple[Classifier, Network, Any, Any]:
    """The default model for windows of 3 x 20, and 75 examples."""
    torch.manual_seed(0)
    model = classifier([*conv_stack(1, (3, 32, 64), 5, padding=2, kind="batch")], 3, 20, 4)
    return model, network_of(model, (3, 20)), *examples(3, 20, 4, 75)


@pytest.mark.parametrize("sizes", [[32, 32, 11], [75], [1, 2, 72]])
def test_several_steps_with_momentum_and_a_partial_last_batch(har: tuple[Classifier, Network, Any, Any], sizes: list[int]) -> None:
    model, network, x, y = har
    start = flat_of(model, network)
    order, bounds, batches = batches_of(sizes)
    expected = train_in_torch(model, x, y, batches)
    for target in available_targets():
        flat, again, velocity = start.copy(), start.copy(), np.zeros_like(start)
        trainer = Trainer(network, target=target)
        outcome = trainer.train(flat, None, x, y, order, bounds, LR, MOMENTUM)
        assert outcome.loss_sum == pytest.approx(expected.loss_sum, rel=1e-4)
        assert outcome.num_correct == expected.num_correct
        np.testing.assert_allclose(flat, flat_of(model, network), rtol=0, atol=2e-5)
        # batch by batch, with the momentum handed from call to call: the same bits
        for chosen in batches:
            trainer.train(again, velocity, x, y, chosen, np.array([0, len(chosen)]), LR, MOMENTUM)
        assert np.array_equal(again, flat)
        assert velocity.any()


def test_tensors_may_come_in_another_order(har: tuple[Classifier, Network, Any, Any]) -> None:
    model, network, x, y = har
    names = sorted(network.shapes, reverse=True)
    state = model.state_dict()
    order, bounds, _ = batches_of([32, 32, 11])
    flat, other = flat_of(model, network), np.concatenate([state[n].numpy().ravel() for n in names])
    Trainer(network).train(flat, None, x, y, order, bounds, LR, MOMENTUM)
    Trainer(network, names).train(other, None, x, y, order, bounds, LR, MOMENTUM)
    given = {n: flat[part] for n, part in parts_of(network)}
    assert np.array_equal(other, np.concatenate([given[n] for n in names]))
    with pytest.raises(ConfigError, match=r"head\.bias not once"):
        Trainer(network, [n for n in names if n != "head.bias"])


def test_gradients_are_corrected(har: tuple[Classifier, Network, Any, Any]) -> None:
    """One step of scale * (g + mu * (w - anchor) + offset) from the gradient of a step without; statistics are no part of it."""
    model, network, x, y = har
    start = flat_of(model, network)
    order, bounds, _ = batches_of([75])
    rng = np.random.default_rng(0)
    anchor, offset = rng.standard_normal((2, len(start)), np.float32)
    scale = rng.integers(0, 3, len(start)).astype(np.float32)
    is_statistic = np.zeros(len(start), bool)
    for name, part in parts_of(network):
        is_statistic[part] = "running" in name
    for target in available_targets():
        trainer = Trainer(network, target=target)
        plain, gradient = start.copy(), np.zeros_like(start)
        trainer.train(plain, gradient, x, y, order, bounds, LR, 0.0)
        flat, velocity = start.copy(), np.ones_like(start)
        trainer.train(flat, velocity, x, y, order, bounds, LR, MOMENTUM, anchor=anchor, mu=0.1, offset=offset, scale=scale)
        moved = MOMENTUM + scale * (gradient + np.float32(0.1) * (start - anchor) + offset)
        moved[scale == 0] = 1
        np.testing.assert_allclose(velocity[~is_statistic], moved[~is_statistic], rtol=1e-5, atol=1e-6)
        wanted = np.where(scale == 0, start, start - LR * moved)
        np.testing.assert_allclose(flat[~is_statistic], wanted[~is_statistic], rtol=1e-5, atol=1e-6)
        assert np.array_equal(flat[is_statistic], plain[is_statistic])
        assert np.array_equal(flat[scale == 0][~is_statistic[scale == 0]], start[scale == 0][~is_statistic[scale == 0]])


@pytest.mark.parametrize("trained", ["head", "extractor"])
def test_only_a_part_is_trained(har: tuple[Classifier, Network, Any, Any], trained: str) -> None:
    model, network, x, y = har
    start = flat_of(model, network)
    order, bounds, batches = batches_of([32, 32, 11])
    scale = np.zeros_like(start)
    for name, part in parts_of(network):
        scale[part] = name.startswith(trained)
    train_in_torch(model, x, y, batches, frozen=tuple(n for n, _ in model.named_parameters() if not n.startswith(trained)))
    for target in available_targets():
        flat, still = start.copy(), start.copy()
        Trainer(network, target=target).train(flat, None, x, y, order, bounds, LR, MOMENTUM, scale=scale)
        np.testing.assert_allclose(flat, flat_of(model, network), rtol=0, atol=2e-5)
        Trainer(network, target=target).train(still, None, x, y, order, bounds, LR, MOMENTUM, scale=scale, move_statistics=False)
        for name, part in parts_of(network):
            assert np.array_equal(still[part], start[part] if "running" in name else flat[part]), name


def test_threads_give_the_same_bits(har: tuple[Classifier, Network, Any, Any]) -> None:
    model, network, x, y = har
    start = flat_of(model, network)
    trainer = Trainer(network)
    jobs = [batches_of(sizes)[:2] for sizes in ([32, 32, 11], [16] * 4, [75], [5] * 15)] * 4

    def run(order: Any, bounds: Any) -> Floats:
        flat = start.copy()
        trainer.train(flat, None, x, y, order, bounds, LR, MOMENTUM)
        return np.append(flat, trainer.predict(flat, x))

    alone = [run(*job) for job in jobs]
    assert all(np.array_equal(alone[i], alone[i + 4]) for i in range(12))  # the same again
    together: dict[int, Floats] = {}

    def work(first: int) -> None:
        for i in range(first, len(jobs), 2):
            together[i] = run(*jobs[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(alone[i], together[i]) for i in range(len(jobs)))


def test_batch_norm_stands_a_large_mean() -> None:
    """Signals of spread 1 around 3,000: the variance is right, also where the first example lies far from the others."""
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
        Trainer(network, target=target).train(flat, None, x, y, order, np.array([0, 40]), LR, MOMENTUM)
        np.testing.assert_allclose(flat[variance], flat_of(model, network)[variance], rtol=1e-4)
        np.testing.assert_allclose(flat, flat_of(model, network), rtol=1e-3, atol=1e-3)


def test_equal_maxima_send_their_gradient_to_the_first() -> None:
    """Signals that are constant over every pool, through ReLU at exactly 0 too: torch's float32 gradients."""
    torch.manual_seed(0)
    model = classifier(
        [nn.Conv1d(2, 3, 1, bias=False), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(3, 4, 3), nn.MaxPool1d(3), nn.Flatten()], 2, 22, 3
    )
    network = network_of(model, (2, 22))
    x, y = examples(2, 11, 3, 8)
    x = np.repeat(x, 2, axis=2)
    x[:, :, 4:12] = 0
    start = flat_of(model, network)
    train_in_torch(model, x, y, [np.arange(8)])
    for target in available_targets():
        flat = start.copy()
        Trainer(network, target=target).train(flat, None, x, y, np.arange(8), np.array([0, 8]), LR, MOMENTUM)
        np.testing.assert_allclose(flat, flat_of(model, network), rtol=0, atol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_show(har: tuple[Classifier, Network, Any, Any], value: float) -> None:
    model, network, x, y = har
    order, bounds, _ = batches_of([32, 32, 11])
    x[order[0], 1, 3] = value
    for target in available_targets():
        trainer, flat = Trainer(network, target=target), flat_of(model, network)
        good = flat_of(model, network)
        outcome = trainer.train(flat, None, x, y, order, bounds, LR, MOMENTUM)
        assert not np.isfinite(flat).all()
        assert not np.isfinite(outcome.loss_sum)
        assert np.isnan(trainer.predict(flat, x)).all()
        # the workspace that was used holds nothing that a later call sees
        clean = np.where(np.isfinite(x), x, 0).astype(np.float32)
        fresh = good.copy()
        Trainer(network, target=target).train(fresh, None, clean, y, order, bounds, LR, MOMENTUM)
        trainer.train(good, None, clean, y, order, bounds, LR, MOMENTUM)
        assert np.array_equal(good, fresh)


def test_arrays_are_checked(har: tuple[Classifier, Network, Any, Any]) -> None:
    model, network, x, y = har
    trainer, flat = Trainer(network), flat_of(model, network)
    order, bounds, _ = batches_of([32, 32, 11])

    def train(**changed: Any) -> None:
        given = {"flat": flat, "momentum": None, "x": x, "y": y, "order": order, "bounds": bounds} | changed
        trainer.train(**given, lr=LR, momentum_factor=MOMENTUM)

    read_only = flat.copy()
    read_only.flags.writeable = False
    for changed in (
        *({"flat": bad} for bad in (flat.astype(np.float64), flat[:-1], np.repeat(flat, 2)[::2], read_only)),
        *({"x": bad} for bad in (x.astype(np.float64), x[:, :2], x.transpose(0, 2, 1), np.asfortranarray(x))),
        *({"y": y.astype(np.int32)}, {"y": y[:-1]}, {"order": order[:-1]}, {"momentum": flat[:-1]}),
        *({"bounds": np.array(bad)} for bad in ([0, 32, 32, 75], [1, 75], [0, 80], [0, 74], [0, 80, 75])),
    ):
        with pytest.raises(ConfigError):
            train(**changed)
    for changed in ({"y": y + 1}, {"y": y - 1}, {"order": order + 1}, {"order": order - 1}):
        before = flat.copy()
        with pytest.raises(DataError):
            train(**changed)
        assert np.array_equal(flat, before)
    with pytest.raises(ConfigError, match="instruction set"):
        Trainer(network, target="mmx")
    single = classifier([nn.Flatten(), nn.BatchNorm1d(60)], 3, 20, 4)
    made = network_of(single, (3, 20))
    with pytest.raises(DataError, match="one value per channel"):
        Trainer(made).train(flat_of(single, made), None, x, y, order[:1], np.array([0, 1]), LR, MOMENTUM)


def test_no_batches_change_nothing(har: tuple[Classifier, Network, Any, Any]) -> None:
    model, network, x, y = har
    flat = flat_of(model, network)
    none = np.zeros(0, np.int64)
    assert Trainer(network).train(flat, None, x, y, none, np.zeros(1, np.int64), LR, MOMENTUM) == Outcome(0, 0, 0)
    assert Trainer(network).evaluate(flat, x, y, none) == Outcome(0, 0, 0)
    assert Trainer(network).predict(flat, x, none).shape == (0, 4)
    assert np.array_equal(flat, flat_of(model, network))
