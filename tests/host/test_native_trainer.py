"""The native engine's trainer on one model: several steps, parts of the model, corrections,
threads, arrays that it refuses."""

import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from algorithms.models.blocks import conv_stack
from algorithms.models.classifier import Classifier
from algorithms.models.reading.network import Network, network_of
from host.native.plan import INSTRUCTIONS, CompiledNetwork, Floats, available_targets
from host.native.trainer import NativeTrainer
from tests.host.native_cases import (
    LR,
    MOMENTUM,
    batches_of,
    classifier,
    examples,
    flat_of,
    parts_of,
    train_in_torch,
)
from wire.errors import ConfigError, DataError
from wire.messages import Metrics


@pytest.fixture
def har() -> tuple[Classifier, Network, Any, Any]:
    """The default model for windows of 3 x 20, and 75 examples."""
    torch.manual_seed(0)
    model = classifier([*conv_stack(1, (3, 32, 64), 5, padding=2, kind="batch")], 3, 20, 4)
    return model, network_of(model, (3, 20)), *examples(3, 20, 4, 75)


@pytest.mark.parametrize("sizes", [[32, 32, 11], [75], [1, 2, 72]])
def test_several_steps_with_momentum_and_a_partial_last_batch(
    har: tuple[Classifier, Network, Any, Any], sizes: list[int]
) -> None:
    model, network, x, y = har
    start = flat_of(model, network)
    order, bounds, batches = batches_of(sizes)
    expected = train_in_torch(model, x, y, batches)
    for target in available_targets():
        flat, again, velocity = start.copy(), start.copy(), np.zeros_like(start)
        trainer = NativeTrainer(network, target=target)
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
    NativeTrainer(network).train(flat, None, x, y, order, bounds, LR, MOMENTUM)
    NativeTrainer(network, names).train(other, None, x, y, order, bounds, LR, MOMENTUM)
    given = {n: flat[part] for n, part in parts_of(network)}
    assert np.array_equal(other, np.concatenate([given[n] for n in names]))
    with pytest.raises(ConfigError, match=r"repeated: head\.bias"):
        NativeTrainer(network, [n for n in names if n != "head.bias"])


def test_gradients_are_scaled(har: tuple[Classifier, Network, Any, Any]) -> None:
    """One step of scale * g from the gradient of a step without; statistics are no part of it."""
    model, network, x, y = har
    start = flat_of(model, network)
    order, bounds, _ = batches_of([75])
    scale = np.random.default_rng(0).integers(0, 3, len(start)).astype(np.float32)
    is_statistic = np.zeros(len(start), bool)
    for name, part in parts_of(network):
        is_statistic[part] = "running" in name
    for target in available_targets():
        trainer = NativeTrainer(network, target=target)
        plain, gradient = start.copy(), np.zeros_like(start)
        trainer.train(plain, gradient, x, y, order, bounds, LR, 0.0)
        flat, velocity = start.copy(), np.ones_like(start)
        trainer.train(
            flat,
            velocity,
            x,
            y,
            order,
            bounds,
            LR,
            MOMENTUM,
            scale=scale,
        )
        moved = MOMENTUM + scale * gradient
        moved[scale == 0] = 1
        np.testing.assert_allclose(
            velocity[~is_statistic], moved[~is_statistic], rtol=1e-5, atol=1e-6
        )
        wanted = np.where(scale == 0, start, start - LR * moved)
        np.testing.assert_allclose(flat[~is_statistic], wanted[~is_statistic], rtol=1e-5, atol=1e-6)
        assert np.array_equal(flat[is_statistic], plain[is_statistic])
        assert np.array_equal(
            flat[scale == 0][~is_statistic[scale == 0]],
            start[scale == 0][~is_statistic[scale == 0]],
        )


@pytest.mark.parametrize("trained", ["head", "extractor"])
def test_only_a_part_is_trained(har: tuple[Classifier, Network, Any, Any], trained: str) -> None:
    model, network, x, y = har
    start = flat_of(model, network)
    order, bounds, batches = batches_of([32, 32, 11])
    scale = np.zeros_like(start)
    for name, part in parts_of(network):
        scale[part] = name.startswith(trained)
    train_in_torch(
        model,
        x,
        y,
        batches,
        frozen=tuple(n for n, _ in model.named_parameters() if not n.startswith(trained)),
    )
    for target in available_targets():
        flat, still = start.copy(), start.copy()
        NativeTrainer(network, target=target).train(
            flat, None, x, y, order, bounds, LR, MOMENTUM, scale=scale
        )
        np.testing.assert_allclose(flat, flat_of(model, network), rtol=0, atol=2e-5)
        NativeTrainer(network, target=target).train(
            still, None, x, y, order, bounds, LR, MOMENTUM, scale=scale, move_statistics=False
        )
        for name, part in parts_of(network):
            assert np.array_equal(still[part], start[part] if "running" in name else flat[part]), (
                name
            )


def test_threads_give_the_same_bits(har: tuple[Classifier, Network, Any, Any]) -> None:
    model, network, x, y = har
    start = flat_of(model, network)
    trainer = NativeTrainer(network)
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


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_show(
    har: tuple[Classifier, Network, Any, Any], value: float
) -> None:
    model, network, x, y = har
    order, bounds, _ = batches_of([32, 32, 11])
    x[order[0], 1, 3] = value
    for target in available_targets():
        trainer, flat = NativeTrainer(network, target=target), flat_of(model, network)
        good = flat_of(model, network)
        outcome = trainer.train(flat, None, x, y, order, bounds, LR, MOMENTUM)
        assert not np.isfinite(flat).all()
        assert not np.isfinite(outcome.loss_sum)
        assert np.isnan(trainer.predict(flat, x)).all()
        # the workspace that was used holds nothing that a later call sees
        clean = np.where(np.isfinite(x), x, 0).astype(np.float32)
        fresh = good.copy()
        NativeTrainer(network, target=target).train(
            fresh, None, clean, y, order, bounds, LR, MOMENTUM
        )
        trainer.train(good, None, clean, y, order, bounds, LR, MOMENTUM)
        assert np.array_equal(good, fresh)


def test_arrays_are_checked(har: tuple[Classifier, Network, Any, Any]) -> None:
    model, network, x, y = har
    trainer, flat = NativeTrainer(network), flat_of(model, network)
    order, bounds, _ = batches_of([32, 32, 11])

    def train(**changed: Any) -> None:
        given = {
            "flat": flat,
            "momentum": None,
            "x": x,
            "y": y,
            "order": order,
            "bounds": bounds,
        } | changed
        trainer.train(**given, lr=LR, momentum_factor=MOMENTUM)

    read_only = flat.copy()
    read_only.flags.writeable = False
    for changed in (
        *(
            {"flat": bad}
            for bad in (flat.astype(np.float64), flat[:-1], np.repeat(flat, 2)[::2], read_only)
        ),
        *(
            {"x": bad}
            for bad in (x.astype(np.float64), x[:, :2], x.transpose(0, 2, 1), np.asfortranarray(x))
        ),
        *({"y": y.astype(np.int32)}, {"y": y[:-1]}, {"order": order[:-1]}, {"momentum": flat[:-1]}),
        *(
            {"bounds": np.array(bad)}
            for bad in ([0, 32, 32, 75], [1, 75], [0, 80], [0, 74], [0, 80, 75])
        ),
    ):
        with pytest.raises(ConfigError):
            train(**changed)
    for changed in ({"y": y + 1}, {"y": y - 1}, {"order": order + 1}, {"order": order - 1}):
        before = flat.copy()
        with pytest.raises(DataError):
            train(**changed)
        assert np.array_equal(flat, before)
    with pytest.raises(ConfigError, match="instruction set"):
        NativeTrainer(network, target="mmx")
    single = classifier([nn.Flatten(), nn.BatchNorm1d(60)], 3, 20, 4)
    made = network_of(single, (3, 20))
    with pytest.raises(DataError, match="one value per channel"):
        NativeTrainer(made).train(
            flat_of(single, made), None, x, y, order[:1], np.array([0, 1]), LR, MOMENTUM
        )


def test_no_batches_change_nothing(har: tuple[Classifier, Network, Any, Any]) -> None:
    model, network, x, y = har
    flat = flat_of(model, network)
    none = np.zeros(0, np.int64)
    assert (
        NativeTrainer(network).train(flat, None, x, y, none, np.zeros(1, np.int64), LR, MOMENTUM)
        == Metrics()
    )
    assert NativeTrainer(network).evaluate(flat, x, y, none) == Metrics()
    assert NativeTrainer(network).predict(flat, x, none).shape == (0, 4)
    assert np.array_equal(flat, flat_of(model, network))


def test_the_environment_may_name_a_lesser_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    network = network_of(classifier([nn.Flatten()], 3, 20, 4), (3, 20))
    for target in available_targets():
        monkeypatch.setenv(INSTRUCTIONS, target)
        assert CompiledNetwork(network).target == target
    monkeypatch.setenv(INSTRUCTIONS, "mmx")
    with pytest.raises(
        ConfigError, match=r"instruction set must be one of this machine's, .*, got 'mmx'"
    ):
        CompiledNetwork(network)
