"""Gradients of single examples, and the clipped sum of them, against vmap; in ONNX against the
eager step."""

from collections.abc import Callable
from typing import Any

import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from algorithms.core.contract import TorchTensors
from algorithms.core.functional import functional
from algorithms.models.har_cnn import HarCnn
from algorithms.privacy.per_example import clipped_gradients, example_gradients
from export.capture import trace
from export.lowering.onnx_graph import to_onnx
from wire.errors import ConfigError


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


def prepared(
    make: Callable[[], tuple[nn.Module, tuple[int, ...]]], num: int, seed: int = 0
) -> tuple[nn.Module, Tensor, Tensor]:
    """A model with parameters and running statistics that are not the trivial ones, inputs and
    labels."""
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
        return F.cross_entropy(
            functional_call(model, {**weights, **buffers}, (one[None],)), label[None]
        )

    made: TorchTensors = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, y)
    return made


def norms_of(gradients: TorchTensors) -> Tensor:
    return torch.stack([g.flatten(1).square().sum(1) for g in gradients.values()]).sum(0).sqrt()


each_model = pytest.mark.parametrize("make", [har, pictures])


class TestPerExample:
    @each_model
    def test_equals_vmap_of_grad(
        self, make: Callable[[], tuple[nn.Module, tuple[int, ...]]]
    ) -> None:
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
        model = nn.Sequential(
            nn.Conv2d(2, 3, (2, 3), padding=padding), nn.Flatten(), nn.LazyLinear(3)
        )
        x, y = torch.randn(4, 2, 5, 6), torch.randint(0, 3, (4,))
        model(x)
        made, _ = example_gradients(model, losses_of(model, x, y), ["0.weight"])
        assert made["0.weight"] == pytest.approx(by_vmap(model, x, y)["0.weight"], abs=1e-6)

    @each_model
    @settings(max_examples=8)
    @given(seed=st.integers(0, 100), num=st.integers(1, 6), bound=st.floats(1e-3, 100))
    def test_no_example_counts_more_than_the_bound(
        self,
        make: Callable[[], tuple[nn.Module, tuple[int, ...]]],
        seed: int,
        num: int,
        bound: float,
    ) -> None:
        model, x, y = prepared(make, num, seed)
        names = [name for name, _ in model.named_parameters()]
        whole, _ = clipped_gradients(model, losses_of(model, x, y), names, bound)
        alone = [
            clipped_gradients(model, losses_of(model, x[i : i + 1], y[i : i + 1]), names, bound)[0]
            for i in range(num)
        ]
        raw = norms_of(by_vmap(model, x, y))
        for one, before in zip(alone, raw, strict=True):
            assert norms_of({n: g[None] for n, g in one.items()}) == pytest.approx(
                min(float(before), bound), rel=1e-4
            )
        assert float(norms_of({n: g[None] for n, g in whole.items()})) <= num * bound * (1 + 1e-5)
        for name in names:
            assert whole[name] == pytest.approx(
                sum(one[name] for one in alone), abs=1e-4 * bound, rel=1e-4
            )

    def test_an_example_without_a_gradient_adds_nothing(self) -> None:
        model, x, y = prepared(har, 4)
        weights = torch.tensor([1.0, 0.0, 1.0, 0.0])
        names = [name for name, _ in model.named_parameters()]
        half, _ = clipped_gradients(
            model, lambda: (losses_of(model, x, y)()[0] * weights, None), names, 0.5
        )
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
        first, last = nn.Linear(3, 3), nn.Linear(3, 3)
        last.weight = first.weight
        model = nn.Sequential(first, nn.Tanh(), last)
        x, y = torch.randn(4, 3), torch.randint(0, 3, (4,))
        made, _ = example_gradients(model, losses_of(model, x, y), ["0.weight"])
        for i in range(4):
            (expected,) = torch.autograd.grad(
                F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]), [first.weight]
            )
            assert made["0.weight"][i] == pytest.approx(expected.detach(), abs=1e-6)

    def test_works_where_gradients_are_off_and_leaves_no_hooks(self) -> None:
        model, x, y = prepared(har, 2)
        with torch.no_grad():
            made, rest = clipped_gradients(
                model, lambda: (losses_of(model, x, y)()[0], "kept"), ["head.bias"], 1.0
            )
        assert rest == "kept"
        assert not made["head.bias"].requires_grad
        assert not any(module._forward_hooks for module in model.modules())


class TestUnsupported:
    @pytest.mark.parametrize(
        ("layer", "shape", "message"),
        [
            (
                nn.ConvTranspose1d(2, 3, 2),
                (2, 5),
                "layer 0: a ConvTranspose1d has no gradients per example. Layers that have them: "
                "Linear, ",
            ),
            (
                nn.Conv1d(2, 4, 2, dilation=2),
                (2, 5),
                "layer 0: a Conv1d has gradients per example only with groups=1, dilation=1 and "
                r"padding_mode='zeros', got groups=1, dilation=\(2,\), padding_mode='zeros'",
            ),
            (
                nn.Conv1d(2, 4, 2, groups=2),
                (2, 5),
                r"0: a Conv1d has .*, got groups=2, dilation=\(1,\), padding_mode='zeros'",
            ),
            (
                nn.Conv1d(2, 4, 2, padding=1, padding_mode="circular"),
                (2, 5),
                r"0: a Conv1d has .*, got .* padding_mode='circular'",
            ),
            (
                nn.BatchNorm1d(2, track_running_stats=False),
                (2, 5),
                "0: BatchNorm1d mixes examples of a batch",
            ),
        ],
    )
    def test_layers_are_named(self, layer: nn.Module, shape: tuple[int, ...], message: str) -> None:
        model = nn.Sequential(layer).eval()
        names = [name for name, _ in model.named_parameters()]
        with pytest.raises(ConfigError, match=message):
            clipped_gradients(
                model, lambda: (model(torch.randn(3, *shape)).flatten(1).sum(1), None), names, 1.0
            )

    def test_batch_norm_that_trains_even_without_parameters_of_its_own(self) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False))
        with pytest.raises(
            ConfigError, match="layer 1: BatchNorm1d mixes examples of a batch in training"
        ):
            clipped_gradients(
                model, lambda: (model(torch.randn(3, 4)).sum(1), None), ["0.weight"], 1.0
            )

    def test_layers_that_do_not_keep_examples_apart(self) -> None:
        linear = nn.Linear(4, 2)
        x = torch.randn(3, 5, 4)
        with pytest.raises(ConfigError, match="the first dimension must be the example's"):
            clipped_gradients(
                linear,
                lambda: (linear(x.reshape(15, 4)).reshape(3, -1).sum(1), None),
                ["weight"],
                1.0,
            )

    def test_parameters_that_are_not_there_or_not_used(self) -> None:
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        x = torch.randn(3, 2)
        with pytest.raises(ConfigError, match="The model has no parameter 'nope'"):
            clipped_gradients(model, lambda: (model(x).sum(1), None), ["0.weight", "nope"], 1.0)
        with pytest.raises(
            ConfigError,
            match=r"parameter '1\.weight' has no gradient .*, because its layer is not called",
        ):
            clipped_gradients(
                model, lambda: (model[0](x).sum(1), None), ["0.weight", "1.weight"], 1.0
            )
        with pytest.raises(ConfigError, match="need a trained parameter, got none"):
            clipped_gradients(model, lambda: (model(x).sum(1), None), [], 1.0)


@pytest.mark.full
@each_model
def test_the_exported_step_equals_the_eager_one(
    make: Callable[[], tuple[nn.Module, tuple[int, ...]]],
) -> None:
    """With a dynamic batch, through the same capture as every other graph."""
    model, x, y = prepared(make, 8)
    names = [name for name, _ in model.named_parameters()]
    tensors = {f"shared/{n}": p.detach().clone() for n, p in model.named_parameters()}
    tensors |= {
        f"statistic/{n}": b.clone()
        for n, b in model.named_buffers()
        if n.endswith(("running_mean", "running_var"))
    }

    def step(inputs: TorchTensors) -> TorchTensors:
        def losses() -> tuple[Tensor, Tensor]:
            logits, _ = functional(model, inputs, inputs["batch/x"], training=False)
            each = F.cross_entropy(logits, inputs["batch/y"], reduction="none")
            return each, each.sum()

        gradients, loss_sum = clipped_gradients(model, losses, names, inputs["hyper/clip_norm"])
        return {f"gradient/{name}": g for name, g in gradients.items()} | {
            "metric/loss_sum": loss_sum
        }

    captured = to_onnx(
        trace(step, {**tensors, "batch/x": x, "batch/y": y, "hyper/clip_norm": torch.tensor(1.0)})
    )
    session = onnxruntime.InferenceSession(captured.onnx, providers=["CPUExecutionProvider"])
    for num, bound in ((8, 1.0), (2, 0.05), (33, 100.0)):
        _, x, y = prepared(make, num, seed=num)
        inputs = {**tensors, "batch/x": x, "batch/y": y, "hyper/clip_norm": torch.tensor(bound)}
        feeds: dict[str, Any] = {i.name: inputs[i.name].numpy() for i in session.get_inputs()}
        made = dict(zip(captured.outputs, session.run(None, feeds), strict=True))
        for key, value in step(inputs).items():
            assert made[key] == pytest.approx(value.detach().numpy(), abs=2e-6 * num, rel=1e-5), key
