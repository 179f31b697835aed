"""The native engine against torch on what is no chain of layers of time windows: images, dilation,
sums of branches."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from algorithms.models.adoption.dropout import Dropped
from algorithms.models.reading.network import extractor_of, network_of
from host.native.passes import Passes
from host.native.plan import available_targets
from host.native.trainer import NativeTrainer
from tests.host.native_cases import (
    LR,
    MOMENTUM,
    Residual,
    check_all,
    classifier_of,
    examples_of,
    flat_of,
    train_in_torch,
)


def residual(draw: st.DrawFn, dims: int, channels: int) -> nn.Module:
    """A block as those of ResNet or of a temporal convolutional network: x, or a convolution of it,
    plus a dilated convolution of it."""
    conv, norm = (nn.Conv1d, nn.BatchNorm1d) if dims == 1 else (nn.Conv2d, nn.BatchNorm2d)
    dilation = draw(st.sampled_from([1, 2, 5]))
    layers: list[nn.Module] = [
        conv(channels, channels, 3, padding="same", dilation=dilation),
        nn.ReLU(),
        conv(channels, channels, 1),
    ]
    if draw(st.booleans()):
        layers.insert(draw(st.integers(0, 2)), norm(channels))
    return Residual(layers, conv(channels, channels, 1) if draw(st.booleans()) else None)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[nn.Module], tuple[int, ...]]:
    """Known layers in any order that fits the window, which is a window of time or an image."""
    dims = draw(st.sampled_from([1, 2, 2]))
    sizes = tuple(draw(st.integers(1, 40 if dims == 1 else 13)) for _ in range(dims))
    channels = draw(st.sampled_from([1, 3, 17]))
    window, layers = (channels, *sizes), list[nn.Module]()
    conv, norm = (nn.Conv1d, nn.BatchNorm1d) if dims == 1 else (nn.Conv2d, nn.BatchNorm2d)

    def pair(low: int, high: int) -> Any:
        return tuple(draw(st.integers(low, high)) for _ in range(dims))

    for _ in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["conv", "conv", "norm", "relu", "max", "mean", "residual"]))
        if kind == "conv":
            kernel, padding, stride, dilation = pair(1, 5), pair(0, 3), pair(1, 2), pair(1, 2)
            outputs = draw(st.sampled_from([1, 5, 16, 33, 70]))
            made: nn.Module = conv(
                channels, outputs, kernel, stride, padding, dilation, bias=draw(st.booleans())
            )
            after = tuple(
                (n + 2 * p - d * (k - 1) - 1) // s + 1
                for n, p, d, k, s in zip(sizes, padding, dilation, kernel, stride, strict=True)
            )
        elif kind in ("max", "mean"):
            pool, outputs = pair(1, 3), channels
            made = {"max": (nn.MaxPool1d, nn.MaxPool2d), "mean": (nn.AvgPool1d, nn.AvgPool2d)}[
                kind
            ][dims - 1](pool if dims == 2 else pool[0])
            after = tuple(n // k for n, k in zip(sizes, pool, strict=True))
        else:
            made = {"norm": norm(channels), "relu": nn.ReLU()}.get(kind) or residual(
                draw, dims, channels
            )
            after, outputs = sizes, channels
        if min(after) > 0:
            layers.append(made)
            sizes, channels = after, outputs
    if draw(st.booleans()):
        layers.append(nn.AdaptiveAvgPool1d(1) if dims == 1 else nn.AdaptiveAvgPool2d(1))
    layers.append(nn.Flatten())
    return layers, window


@settings(suppress_health_check=list(HealthCheck))
@given(graphs(), st.sampled_from([1, 2, 5]), st.integers(0, 10**6))
@example(
    ([nn.Conv2d(1, 5, 3, 2, 1), nn.Flatten()], (1, 7, 6)), 2, 0
)  # rows of the gradient lie apart
@example(
    (
        [
            Residual([nn.AvgPool1d(1), nn.Conv1d(3, 3, 1)]),
            Residual([nn.ReLU()], nn.ReLU()),
            nn.Flatten(),
        ],
        (3, 5),
    ),
    2,
    0,
)
@example(
    (
        [
            nn.Conv1d(3, 4, 1),
            Residual([nn.Conv1d(4, 4, 2), nn.AvgPool1d(9)], nn.AvgPool1d(10)),
            nn.Flatten(),
        ],
        (3, 11),
    ),
    5,
    0,
)  # left over
def test_steps_and_passes_equal_those_of_torch(
    stack: tuple[list[nn.Module], tuple[int, ...]], size: int, seed: int
) -> None:
    layers, window = stack
    torch.manual_seed(seed)
    check_all(classifier_of(layers, window, 3), window, size, seed)


class Sums(nn.Module):
    """A sum, or sums, of x and of up to three convolutions that keep its shape."""

    def __init__(self, add: Callable[..., Tensor], branches: int) -> None:
        super().__init__()
        self.add = add
        self.branches = nn.ModuleList(nn.Conv1d(5, 5, 1) for _ in range(branches))

    def forward(self, x: Tensor) -> Tensor:
        return self.add(x, *self.branches)


def _let(y: Tensor, add: Callable[[Tensor], Tensor]) -> Tensor:
    """Return `add(y)`: it names y inside an expression."""
    return add(y)


SUMS: dict[str, tuple[Callable[..., Tensor], int]] = {
    "of two branches": (lambda x, a, b: a(x) + b(x), 2),
    "of three branches": (lambda x, a, b, c: a(x) + b(x) + c(x), 3),
    "of a branch and a sum": (lambda x, a, b: a(x) + (b(x) + x), 2),
    "of a sum and what it adds": (lambda x, a: (x + a(x)) + x, 1),
    "of two sums of the same": (lambda x, a, b: (x + a(x)) + (b(x) + x), 2),
    "of a value and itself": (lambda x: x + x, 0),
    "of a layer's result and a layer of it": (lambda x, a, b: _let(a(x), lambda y: y + b(y)), 2),
    "of a chain": (lambda x, a, b: _let(x + a(x), lambda y: _let(y + b(y), F.relu)), 2),
    "whose part is read before": (lambda x, a, b, c: _let(a(x), lambda y: b(y) + (c(x) + y)), 3),
    "whose part is read after": (lambda x, a, b: _let(a(x), lambda y: (x + y) + b(y)), 2),
    "whose earlier part is read in between": (
        lambda x, a, b, c: _let(
            a(x), lambda y: _let(c(x), lambda z: _let(b(y), lambda w: (z + y) + w))
        ),
        3,
    ),
    "whose later part is read in between": (
        lambda x, a, b, c: _let(
            c(x), lambda z: _let(a(x), lambda y: _let(b(y), lambda w: (y + z) + w))
        ),
        3,
    ),
    "of a sum and what is read in between": (
        lambda x, a, b, c: _let(
            a(x), lambda y: _let(c(x), lambda z: _let(b(y), lambda w: (z + w) + y))
        ),
        3,
    ),
    "whose sum is read twice": (lambda x, a, b: _let(a(x) + x, lambda y: b(y) + F.relu(y)), 2),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_that_share_their_gradient_equal_those_of_torch(name: str) -> None:
    torch.manual_seed(0)
    layers = [nn.Conv1d(3, 5, 1), Sums(*SUMS[name]), nn.ReLU(), nn.Conv1d(5, 4, 1)]
    check_all(classifier_of([*layers, nn.Flatten()], (3, 6), 3), (3, 6), 4, 0)


def test_equal_maxima_of_an_image_send_their_gradient_to_the_first() -> None:
    torch.manual_seed(0)
    model = classifier_of(
        [
            nn.Conv2d(2, 3, 1, bias=False),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(3, 4, 3),
            nn.Flatten(),
        ],
        (2, 9, 8),
        3,
    )
    network = network_of(model, (2, 9, 8))
    x, y = examples_of((2, 5, 4), 3, 8)
    x = np.repeat(np.repeat(x, 2, axis=2), 2, axis=3)[:, :, :9].copy()
    x[:, :, 2:5] = 0
    start = flat_of(model, network)
    train_in_torch(model, x, y, [np.arange(8)])
    for target in available_targets():
        flat = start.copy()
        NativeTrainer(network, target=target).train(
            flat, None, x, y, np.arange(8), np.array([0, 8]), LR, MOMENTUM
        )
        np.testing.assert_allclose(flat, flat_of(model, network), rtol=0, atol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_of_an_image_that_are_not_finite_show(value: float) -> None:
    torch.manual_seed(0)
    window = (3, 9, 9)
    layers = [
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        Residual([nn.Conv2d(8, 8, 3, padding=1)]),
    ]
    model = classifier_of([*layers, nn.Flatten()], window, 3)
    network = network_of(model, window)
    x, y = examples_of(window, 3, 4)
    clean = x.copy()
    x[1, 2, 3, 4] = value
    for target in available_targets():
        trainer, flat = NativeTrainer(network, target=target), flat_of(model, network)
        assert not np.isfinite(
            trainer.train(flat, None, x, y, np.arange(4), np.array([0, 4]), LR, MOMENTUM).loss_sum
        )
        assert not np.isfinite(flat).all()
        good, fresh = flat_of(model, network), flat_of(model, network)
        trainer.train(
            good, None, clean, y, np.arange(4), np.array([0, 4]), LR, MOMENTUM
        )  # the used workspace holds nothing of it
        NativeTrainer(network, target=target).train(
            fresh, None, clean, y, np.arange(4), np.array([0, 4]), LR, MOMENTUM
        )
        np.testing.assert_array_equal(good, fresh)


def _narrow_sum() -> list[nn.Module]:
    """Layers whose rows end in padding: five channels."""
    return [nn.Conv1d(3, 5, 1), Residual([nn.ReLU(), nn.Conv1d(5, 5, 1)])]


def test_a_pass_of_what_is_not_finite_leaves_nothing_in_the_padding_of_rows() -> None:
    torch.manual_seed(0)
    model = classifier_of([*_narrow_sum(), nn.Flatten()], (3, 6), 3)
    model.scale = nn.Identity()
    x, _ = examples_of((3, 6), 3, 4)
    bad, state = x.copy(), model.state_dict()
    bad[1] = np.nan
    for target in available_targets():
        passes = Passes(extractor_of(model, (3, 6)), target=target)
        flat = np.concatenate([state[name].numpy().ravel() for name in passes.names])

        def gradient(x: Any, passes: Passes = passes, flat: Any = flat) -> Any:
            d_y = np.where(np.isnan(x).any((1, 2)), np.nan, 1.0)[:, None] * np.ones((4, 30))
            return passes.backward(passes.forward(flat.copy(), x, True), d_y.astype(np.float32))

        clean = gradient(x)
        assert np.isnan(gradient(bad)).any()
        np.testing.assert_array_equal(gradient(x), clean)


def test_a_dropout_of_what_is_not_finite_leaves_nothing_in_the_padding_of_rows() -> None:
    torch.manual_seed(0)
    layers = [*_narrow_sum(), Dropped(0.3, (5, 6)), nn.Flatten()]
    model = classifier_of(layers, (3, 6), 3)
    network = network_of(model, (3, 6))
    x, y = examples_of((3, 6), 3, 4)
    bad = x.copy()
    bad[1, 2, 3] = np.nan
    order, bounds = np.arange(4), np.array([0, 4])
    drawn = [np.random.default_rng(0).random((4, 5, 6), np.float32)]
    for target in available_targets():
        trainer = NativeTrainer(network, target=target)
        flat, good, fresh = (flat_of(model, network) for _ in range(3))
        trainer.train(flat, None, bad, y, order, bounds, LR, MOMENTUM, drawn=drawn)
        assert np.isnan(flat).any()
        trainer.train(good, None, x, y, order, bounds, LR, MOMENTUM, drawn=drawn)
        again = NativeTrainer(network, target=target)
        again.train(fresh, None, x, y, order, bounds, LR, MOMENTUM, drawn=drawn)
        np.testing.assert_array_equal(good, fresh)


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Conv2d(1, 4, 1), nn.GELU(), nn.Conv2d(4, 4, 3, padding=1)],
        [nn.Conv2d(1, 4, 3), nn.GELU()],
        [nn.Conv2d(1, 4, 1, 2), nn.GELU()],
    ],
    ids=["padding around it", "a wide kernel before it", "a stride before it"],
)
def test_gelu_of_an_image_equals_that_of_torch(layers: list[nn.Module]) -> None:
    torch.manual_seed(0)
    check_all(classifier_of([*layers, nn.Flatten()], (1, 5, 4), 3), (1, 5, 4), 4, 0)
