"""Clipping and noise to the last bit, epsilon against the library and against theory, gradients of single examples against vmap."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from opacus.accountants import RDPAccountant
from scipy.stats import norm
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from algorithms.core.contract import LocalModel, Privacy, TorchTensors, Work, functional
from algorithms.models.har_cnn import HarCnn
from algorithms.privacy.dp_sgd import DpSgd
from algorithms.privacy.gaussian import CentralGaussian, LocalGaussian, spent
from algorithms.privacy.none import NoPrivacy
from algorithms.privacy.per_example import clipped_gradients, example_gradients
from export.onnx_graph import capture_onnx
from wire.errors import ConfigError
from wire.messages import Protect
from wire.privacy import add_noise, clip
from wire.tensors import Array

many = settings(deadline=None, max_examples=100)
floats32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
updates = arrays(np.float32, st.integers(0, 40), elements=floats32)
norms = st.floats(1e-300, 1e38) | st.sampled_from([1.0, 1e-45, 1e-40, 1e-38, 0.5, 3.4e38])


def length(update: Array) -> float:
    return math.sqrt(math.fsum(float(value) ** 2 for value in update))


class TestClip:
    @many
    @given(update=updates, limit=norms)
    def test_result_is_never_longer(self, update: Array, limit: float) -> None:
        clipped = clip(update, limit)
        assert clipped.dtype == np.float32
        assert length(clipped) <= limit
        assert np.linalg.norm(clipped.astype(np.float64)) <= limit
        assert np.array_equal(clip(clipped, limit), clipped), "a second time it changes nothing: the server may clip again"

    @many
    @given(update=updates, limit=norms)
    def test_unchanged_when_within_and_in_the_same_direction_otherwise(self, update: Array, limit: float) -> None:
        clipped, before = clip(update, limit), length(update)
        if before <= limit * (1 - 1e-12):
            assert np.array_equal(clipped, update)
        elif before > limit > 1e-30:
            expected = update.astype(np.float64) * (limit / before)
            assert clipped == pytest.approx(expected, rel=2e-7, abs=2e-45)

    @many
    @given(seed=st.integers(0, 1000), limit=st.floats(1e-3, 1e3), size=st.integers(1, 60_000))
    def test_of_models(self, seed: int, limit: float, size: int) -> None:
        update = np.random.default_rng(seed).normal(size=size).astype(np.float32)
        assert min(length(update), limit) * (1 - 1e-6) <= length(clip(update, limit)) <= limit

    def test_does_not_change_its_input(self) -> None:
        update = np.ones(4, np.float32)
        clip(update, 0.1)
        assert (update == 1).all()


class TestNoise:
    def test_has_the_standard_deviation_asked_for(self) -> None:
        noise = add_noise(np.full(200_000, 3, np.float32), 0.5, np.random.default_rng(0)) - 3
        assert noise.dtype == np.float32
        assert noise.std() == pytest.approx(0.5, rel=0.01)
        assert abs(noise.mean()) < 0.005

    def test_without_a_deviation_nothing_happens(self) -> None:
        update = np.ones(3, np.float32)
        assert np.array_equal(add_noise(update, 0.0, np.random.default_rng(0)), update)


def model_of(num_examples: int, num_steps: int) -> LocalModel:
    return LocalModel("d", num_examples, num_steps, "1", {})


def by_library(noise_multiplier: float, rate: float, steps: int, delta: float) -> float:
    accountant = RDPAccountant()
    for _ in range(steps):
        accountant.step(noise_multiplier=noise_multiplier, sample_rate=rate)
    return float(accountant.get_epsilon(delta=delta))


def least_epsilon(noise_multiplier: float, steps: int, delta: float) -> float:
    """The smallest true epsilon of Gaussian mechanisms in a row (Balle and Wang, ICML 2018, Theorem 8): no bound may be below it."""
    mu, low, high = math.sqrt(steps) / noise_multiplier, 0.0, 1000.0
    for _ in range(100):
        middle = (low + high) / 2
        # the second term as exp(log): e^epsilon alone overflows
        chance = norm.cdf(mu / 2 - middle / mu) - math.exp(middle + norm.logcdf(-mu / 2 - middle / mu))
        low, high = (middle, high) if chance > delta else (low, middle)
    return high


class TestEpsilon:
    work = Work(32, 1)

    @pytest.mark.parametrize(("noise_multiplier", "rounds", "delta"), [(1.0, 1, 1e-5), (0.7, 20, 1e-6), (4.0, 50, 1e-3), (10.0, 200, 1e-5)])
    def test_of_devices_equals_the_library(self, noise_multiplier: float, rounds: int, delta: float) -> None:
        options = {"noise_multiplier": noise_multiplier, "delta": delta, "clip_norm": 3.0}
        central = CentralGaussian(**options).epsilon(rounds, [], self.work)
        local = LocalGaussian(**options).epsilon(rounds, [], self.work)
        assert central == pytest.approx(by_library(noise_multiplier, 1.0, rounds, delta))
        assert local == pytest.approx(by_library(noise_multiplier / 2, 1.0, rounds, delta)), "two clipped updates can be 2 C apart"

    @pytest.mark.parametrize(("noise_multiplier", "rounds", "delta"), [(1.0, 1, 1e-5), (0.7, 20, 1e-6), (4.0, 50, 1e-3), (10.0, 200, 1e-5)])
    def test_of_devices_is_above_the_true_one_and_not_far(self, noise_multiplier: float, rounds: int, delta: float) -> None:
        true = least_epsilon(noise_multiplier, rounds, delta)
        assert true <= spent(noise_multiplier, 1.0, rounds, delta) <= 1.3 * true

    def test_of_examples_is_that_of_the_worst_device(self) -> None:
        private = DpSgd(noise_multiplier=1.1, delta=1e-4)
        few, many_steps, neither = model_of(100, 4), model_of(1000, 60), model_of(1000, 32)
        rounds = 5
        expected = [by_library(1.1, 32 / m.num_examples, m.num_steps * rounds, 1e-4) for m in (few, many_steps, neither)]
        assert private.epsilon(rounds, [few, many_steps, neither], self.work) == pytest.approx(max(expected))
        assert private.epsilon(rounds, [many_steps, neither], self.work) == pytest.approx(expected[1])

    def test_of_fewer_examples_than_a_batch_has_no_sampling(self) -> None:
        assert DpSgd().epsilon(3, [model_of(10, 2)], self.work) == pytest.approx(by_library(1.0, 1.0, 6, 1e-5))

    @pytest.mark.parametrize("kind", [LocalGaussian, CentralGaussian, DpSgd])
    def test_grows_with_rounds_and_is_infinite_without_noise(self, kind: type[LocalGaussian | CentralGaussian | DpSgd]) -> None:
        models = [model_of(64, 2)]
        values = [kind().epsilon(rounds, models, self.work) for rounds in (0, 1, 2, 10)]
        assert values[0] == 0
        assert values == sorted(values)
        assert kind(noise_multiplier=0).epsilon(1, models, self.work) == math.inf

    def test_without_a_mechanism_is_none(self) -> None:
        assert NoPrivacy().epsilon(1, [model_of(64, 2)], self.work) is None


class TestMechanisms:
    def test_who_clips_and_who_adds_noise(self) -> None:
        update = np.full(100, 1, np.float32)
        local, central = LocalGaussian(clip_norm=2.0, noise_multiplier=1.5), CentralGaussian(clip_norm=2.0, noise_multiplier=1.5)
        assert local.verbs() == (Protect(2.0, 3.0),)
        assert local.clip(update) is update
        assert local.noise(update, 7, 0) is update
        assert central.verbs() == (Protect(2.0, 0.0),)
        assert length(central.clip(update)) == pytest.approx(2, rel=1e-6)
        for private in (NoPrivacy(), DpSgd()):
            assert private.verbs() == ()
            assert private.clip(update) is update
            assert private.noise(update, 7, 0) is update

    def test_the_aggregators_noise_covers_one_device_of_the_mean(self) -> None:
        private: Privacy = CentralGaussian(clip_norm=2.0, noise_multiplier=1.5)
        mean = np.zeros(100_000, np.float32)
        made = private.noise(mean, 10, seed=3)
        assert made.std() == pytest.approx(1.5 * 2.0 / 10, rel=0.02)
        assert np.array_equal(made, private.noise(mean, 10, seed=3))
        assert not np.array_equal(made, private.noise(mean, 10, seed=4))

    @pytest.mark.parametrize("kind", [LocalGaussian, CentralGaussian, DpSgd])
    @pytest.mark.parametrize(
        ("option", "value"),
        [("clip_norm", 0.0), ("clip_norm", math.inf), ("clip_norm", math.nan), ("noise_multiplier", -1.0), ("delta", 0.0), ("delta", 1.0)],
    )
    def test_refuse_impossible_options(self, kind: type[LocalGaussian], option: str, value: float) -> None:
        with pytest.raises(ConfigError, match=f"{option} {value}: expected"):
            kind(**{option: value})


# Gradients per example


class Pictures(nn.Module):
    """Everything that is supported and not in `HarCnn`; `shared` is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, (3, 2), stride=(2, 1), padding=(1, 0), bias=False)
        self.group = nn.GroupNorm(2, 4)
        self.same = nn.Conv2d(4, 4, 3, padding="same")
        self.norm = nn.BatchNorm2d(4)
        self.valid = nn.Conv2d(4, 3, 2)
        self.layer = nn.LayerNorm((3, 4))
        self.shared = nn.Linear(4, 4)
        self.last = nn.LayerNorm(4, bias=False)
        self.head = nn.Linear(36, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu_(self.group(self.first(x)))
        x = self.valid(torch.relu_(self.norm(self.same(x))))
        x = self.layer(x.movedim(1, 2))
        x = self.last(self.shared(torch.tanh(self.shared(x))))
        logits: Tensor = self.head(x.flatten(1))
        return logits


def har() -> tuple[nn.Module, tuple[int, ...]]:
    return HarCnn(3, 16, 3), (3, 16)


def pictures() -> tuple[nn.Module, tuple[int, ...]]:
    return Pictures(), (2, 7, 6)


def prepared(make: Callable[[], tuple[nn.Module, tuple[int, ...]]], num: int, seed: int = 0) -> tuple[nn.Module, Tensor, Tensor]:
    """A model with parameters and running statistics that are not the trivial ones, inputs and labels."""
    torch.manual_seed(seed)
    model, shape = make()
    with torch.no_grad():
        for name, value in (*model.named_parameters(), *model.named_buffers()):
            if "norm" in name or "group" in name or "layer" in name:
                value.copy_(torch.rand_like(value.float()) + 0.5)
    return model.eval(), torch.randn(num, *shape), torch.randint(0, 3, (num,))


def losses_of(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], tuple[Tensor, None]]:
    return lambda: (F.cross_entropy(model(x), y, reduction="none"), None)


def by_vmap(model: nn.Module, x: Tensor, y: Tensor) -> TorchTensors:
    parameters = {n: p.detach() for n, p in model.named_parameters()}
    buffers = dict(model.named_buffers())

    def loss(weights: TorchTensors, one: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, {**weights, **buffers}, (one[None],)), label[None])

    made: TorchTensors = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, y)
    return made


def norms_of(gradients: TorchTensors) -> Tensor:
    return torch.stack([g.flatten(1).square().sum(1) for g in gradients.values()]).sum(0).sqrt()


each_model = pytest.mark.parametrize("make", [har, pictures])


class TestPerExample:
    @each_model
    def test_equals_vmap_of_grad(self, make: Callable[[], tuple[nn.Module, tuple[int, ...]]]) -> None:
        model, x, y = prepared(make, 6)
        names = [name for name, _ in model.named_parameters()]
        made, _ = example_gradients(model, losses_of(model, x, y), names)
        expected = by_vmap(model, x, y)
        assert list(made) == names
        for name in names:
            assert made[name].shape == expected[name].shape
            assert made[name] == pytest.approx(expected[name], abs=1e-5), name

    @pytest.mark.parametrize("padding", ["same", "valid"])
    @pytest.mark.filterwarnings("ignore:Using padding='same'")
    def test_padding_by_name(self, padding: str) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(2, 3, (2, 3), padding=padding), nn.Flatten(), nn.LazyLinear(3))
        x, y = torch.randn(4, 2, 5, 6), torch.randint(0, 3, (4,))
        model(x)
        made, _ = example_gradients(model, losses_of(model, x, y), ["0.weight"])
        assert made["0.weight"] == pytest.approx(by_vmap(model, x, y)["0.weight"], abs=1e-6)

    @each_model
    @settings(deadline=None, max_examples=8)
    @given(seed=st.integers(0, 100), num=st.integers(1, 6), bound=st.floats(1e-3, 100))
    def test_no_example_counts_more_than_the_bound(
        self, make: Callable[[], tuple[nn.Module, tuple[int, ...]]], seed: int, num: int, bound: float
    ) -> None:
        model, x, y = prepared(make, num, seed)
        names = [name for name, _ in model.named_parameters()]
        whole, _ = clipped_gradients(model, losses_of(model, x, y), names, bound)
        alone = [clipped_gradients(model, losses_of(model, x[i : i + 1], y[i : i + 1]), names, bound)[0] for i in range(num)]
        raw = norms_of(by_vmap(model, x, y))
        for one, before in zip(alone, raw, strict=True):
            assert norms_of({n: g[None] for n, g in one.items()}) == pytest.approx(min(float(before), bound), rel=1e-4)
        assert float(norms_of({n: g[None] for n, g in whole.items()})) <= num * bound * (1 + 1e-5)
        for name in names:
            assert whole[name] == pytest.approx(sum(one[name] for one in alone), abs=1e-4 * bound, rel=1e-4)

    def test_an_example_without_a_gradient_adds_nothing(self) -> None:
        model, x, y = prepared(har, 4)
        weights = torch.tensor([1.0, 0.0, 1.0, 0.0])
        names = [name for name, _ in model.named_parameters()]
        half, _ = clipped_gradients(model, lambda: (losses_of(model, x, y)()[0] * weights, None), names, 0.5)
        expected, _ = clipped_gradients(model, losses_of(model, x[::2], y[::2]), names, 0.5)
        for name in names:
            assert half[name] == pytest.approx(expected[name], abs=1e-6)

    def test_only_the_parameters_asked_for_count(self) -> None:
        model, x, y = prepared(har, 3)
        made, _ = clipped_gradients(model, losses_of(model, x, y), ["head.weight"], 1e-2)
        raw = by_vmap(model, x, y)["head.weight"]
        factors = (1e-2 / norms_of({"w": raw})).clamp(max=1)
        assert list(made) == ["head.weight"]
        assert made["head.weight"] == pytest.approx((factors[:, None, None] * raw).sum(0), abs=1e-7)

    def test_parameters_that_two_layers_share(self) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
        model[2].weight = model[0].weight
        x, y = torch.randn(4, 3), torch.randint(0, 3, (4,))
        made, _ = example_gradients(model, losses_of(model, x, y), ["0.weight"])
        for i in range(4):
            (expected,) = torch.autograd.grad(F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]), [model[0].weight])
            assert made["0.weight"][i] == pytest.approx(expected.detach(), abs=1e-6)

    def test_works_where_gradients_are_off_and_leaves_no_hooks(self) -> None:
        model, x, y = prepared(har, 2)
        with torch.no_grad():
            made, rest = clipped_gradients(model, lambda: (losses_of(model, x, y)()[0], "kept"), ["head.bias"], 1.0)
        assert rest == "kept"
        assert not made["head.bias"].requires_grad
        assert not any(module._forward_hooks for module in model.modules())


class TestUnsupported:
    @pytest.mark.parametrize(
        ("layer", "shape", "message"),
        [
            (nn.ConvTranspose1d(2, 3, 2), (2, 5), "0: gradients per example of a ConvTranspose1d are not known, expected one of Linear, "),
            (nn.Conv1d(2, 4, 2, dilation=2), (2, 5), r"0: .* Conv1d with groups=1, dilation=\(2,\)"),
            (nn.Conv1d(2, 4, 2, groups=2), (2, 5), r"0: .* Conv1d with groups=2"),
            (nn.Conv1d(2, 4, 2, padding=1, padding_mode="circular"), (2, 5), r"0: .* padding_mode='circular'"),
            (nn.BatchNorm1d(2, track_running_stats=False), (2, 5), "0: BatchNorm1d mixes examples of a batch"),
        ],
    )
    def test_layers_are_named(self, layer: nn.Module, shape: tuple[int, ...], message: str) -> None:
        model = nn.Sequential(layer).eval()
        names = [name for name, _ in model.named_parameters()]
        with pytest.raises(ConfigError, match=message):
            clipped_gradients(model, lambda: (model(torch.randn(3, *shape)).flatten(1).sum(1), None), names, 1.0)

    def test_batch_norm_that_trains_even_without_parameters_of_its_own(self) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False))
        with pytest.raises(ConfigError, match="1: BatchNorm1d mixes examples of a batch while it trains"):
            clipped_gradients(model, lambda: (model(torch.randn(3, 4)).sum(1), None), ["0.weight"], 1.0)

    def test_layers_that_do_not_keep_examples_apart(self) -> None:
        linear = nn.Linear(4, 2)
        x = torch.randn(3, 5, 4)
        with pytest.raises(ConfigError, match="its first dimension is not the example's"):
            clipped_gradients(linear, lambda: (linear(x.reshape(15, 4)).reshape(3, -1).sum(1), None), ["weight"], 1.0)

    def test_parameters_that_are_not_there_or_not_used(self) -> None:
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        x = torch.randn(3, 2)
        with pytest.raises(ConfigError, match="parameter 'nope': the model has no such parameter"):
            clipped_gradients(model, lambda: (model(x).sum(1), None), ["0.weight", "nope"], 1.0)
        with pytest.raises(ConfigError, match=r"parameter '1\.weight': expected its layer to be called"):
            clipped_gradients(model, lambda: (model[0](x).sum(1), None), ["0.weight", "1.weight"], 1.0)
        with pytest.raises(ConfigError, match="of no parameters"):
            clipped_gradients(model, lambda: (model(x).sum(1), None), [], 1.0)


@each_model
def test_the_exported_step_equals_the_eager_one(make: Callable[[], tuple[nn.Module, tuple[int, ...]]]) -> None:
    """With a dynamic batch, through the same capture as every other graph."""
    model, x, y = prepared(make, 8)
    names = [name for name, _ in model.named_parameters()]
    tensors = {f"shared/{n}": p.detach().clone() for n, p in model.named_parameters()}
    tensors |= {f"statistic/{n}": b.clone() for n, b in model.named_buffers() if n.endswith(("running_mean", "running_var"))}

    def step(inputs: TorchTensors) -> TorchTensors:
        def losses() -> tuple[Tensor, Tensor]:
            logits, _ = functional(model, inputs, inputs["batch/x"], training=False)
            each = F.cross_entropy(logits, inputs["batch/y"], reduction="none")
            return each, each.sum()

        gradients, loss_sum = clipped_gradients(model, losses, names, inputs["hyper/clip_norm"])
        return {f"gradient/{name}": g for name, g in gradients.items()} | {"metric/loss_sum": loss_sum}

    captured = capture_onnx(step, {**tensors, "batch/x": x, "batch/y": y, "hyper/clip_norm": torch.tensor(1.0)})
    session = onnxruntime.InferenceSession(captured.onnx, providers=["CPUExecutionProvider"])
    for num, bound in ((8, 1.0), (2, 0.05), (33, 100.0)):
        _, x, y = prepared(make, num, seed=num)
        inputs = {**tensors, "batch/x": x, "batch/y": y, "hyper/clip_norm": torch.tensor(bound)}
        feeds: dict[str, Any] = {i.name: inputs[i.name].numpy() for i in session.get_inputs()}
        made = dict(zip(captured.outputs, session.run(None, feeds), strict=True))
        for key, value in step(inputs).items():
            assert made[key] == pytest.approx(value.detach().numpy(), abs=2e-6 * num, rel=1e-5), key
