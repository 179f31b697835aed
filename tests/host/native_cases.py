"""Classifiers, examples, and the steps in torch that the native engine is compared with."""

import copy
from collections.abc import Callable
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume
from hypothesis import strategies as st
from torch import Tensor, nn

from algorithms.models.classifier import Classifier, Scale
from algorithms.models.reading.network import Network, extractor_of, network_of
from host.native.passes import Passes
from host.native.plan import Floats, available_targets
from host.native.trainer import NativeTrainer
from tests.support.known import known
from wire.messages import Metrics

LR, MOMENTUM = 0.05, 0.9


def classifier(layers: list[nn.Module], channels: int, time: int, classes: int) -> Classifier:
    """`classifier_of`, for time windows."""
    return classifier_of(layers, (channels, time), classes)


class Calls(nn.Module):
    """A function as a layer."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def classifier_of(layers: list[nn.Module], window: tuple[int, ...], classes: int) -> Classifier:
    """A classifier of these layers with parameters and statistics away from their usual start."""
    extractor = nn.Sequential(*layers)
    extractor.eval()
    features = extractor(torch.zeros(2, *window)).shape[1]
    model = Classifier(
        Scale(torch.rand(window[0]) + 0.5, len(window) - 1), extractor, nn.Linear(features, classes)
    )
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            known(module.running_mean).normal_()
            known(module.running_var).uniform_(0.5, 2)
            if module.affine:
                nn.init.normal_(module.weight, 0.7, 0.5)
                nn.init.normal_(module.bias, 0, 0.3)
    return model


def flat_of(model: Classifier, network: Network) -> Floats:
    state = model.state_dict()
    return np.concatenate([state[n].numpy().ravel() for n in network.shapes]).astype(np.float32)


def examples(channels: int, time: int, classes: int, n: int, seed: int = 0) -> tuple[Any, Any]:
    return examples_of((channels, time), classes, n, seed)


def examples_of(window: tuple[int, ...], classes: int, n: int, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, *window)).astype(np.float32), rng.integers(0, classes, n)


def train_in_torch(
    model: Classifier, x: Any, y: Any, batches: list[Any], frozen: tuple[str, ...] = ()
) -> Metrics:
    """Yield the outcome before each step of the same steps in torch, in double precision; `model`
    becomes the trained one."""
    model.double().train()
    optimizer = torch.optim.SGD(
        [p for n, p in model.named_parameters() if n not in frozen], LR, MOMENTUM
    )
    loss_sum, correct = 0.0, 0
    for chosen in batches:
        logits = model(torch.from_numpy(x[chosen]).double())
        loss = F.cross_entropy(logits, torch.from_numpy(y[chosen]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss_sum += loss.item() * len(chosen)
        correct += int((logits.argmax(1).numpy() == y[chosen]).sum())
    return Metrics(sum(map(len, batches)), loss_sum, correct)


def batches_of(sizes: list[int]) -> tuple[Any, Any, list[Any]]:
    """A shuffled order of sum(sizes) examples, its bounds, and the batches that they describe."""
    order, bounds = np.random.default_rng(1).permutation(sum(sizes)), np.cumsum([0, *sizes])
    return order, bounds, [order[a:b] for a, b in pairwise(bounds)]


def parts_of(network: Network) -> list[tuple[str, slice]]:
    """Return the position of each tensor in the flat vector."""
    ends = np.cumsum([0, *(prod(s) for s in network.shapes.values())])
    return [
        (name, slice(a, b)) for name, (a, b) in zip(network.shapes, pairwise(ends), strict=True)
    ]


class Residual(nn.Module):
    """Layers of x, plus x or another layer's output."""

    def __init__(self, layers: list[nn.Module], other: nn.Module | None = None) -> None:
        super().__init__()
        self.layers, self.other = nn.Sequential(*layers), nn.Identity() if other is None else other

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.layers(x) + self.other(x)
        return made


@st.composite
def stacks(draw: st.DrawFn) -> tuple[list[nn.Module], int, int]:
    """Known layers in any order that fits (channels, time): in time first, then flat."""
    channels, time = draw(st.sampled_from([1, 3, 9, 17])), draw(st.integers(1, 45))
    inputs, length, layers = channels, time, list[nn.Module]()
    for _ in range(draw(st.integers(0, 6))):
        kind = draw(st.sampled_from(["conv", "conv", "norm", "relu", "max", "mean", "identity"]))
        if kind == "conv":
            kernel, padding, stride = (
                draw(st.integers(1, 7)),
                draw(st.integers(0, 4)),
                draw(st.sampled_from([1, 1, 1, 2, 3])),
            )
            after = (length + 2 * padding - kernel) // stride + 1
            if after < 1:
                continue
            outputs = draw(st.sampled_from([1, 2, 5, 16, 20, 33, 50, 70]))
            layers.append(
                nn.Conv1d(inputs, outputs, kernel, stride, padding, bias=draw(st.booleans()))
            )
            inputs, length = outputs, after
        elif kind in ("max", "mean"):
            pool = draw(st.integers(1, 4))
            if length // pool:
                layers.append(nn.MaxPool1d(pool) if kind == "max" else nn.AvgPool1d(pool))
                length //= pool
        else:
            layers.append(
                {"norm": nn.BatchNorm1d(inputs, affine=draw(st.booleans())), "relu": nn.ReLU()}.get(
                    kind, nn.Identity()
                )
            )
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


def _two(size: int | tuple[int, ...]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def settled(model: Classifier, x: Any, batches: list[Any]) -> bool:
    """Return True if float32 decides as float64 does: no activation is near a jump, and no channel
    is without any spread.

    A max-pool of equal values, a ReLU at 0 and a BatchNorm of a constant make the gradient jump
    with the last bit.
    """
    seen = [True]

    def watch(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        z = inputs[0].detach()
        if isinstance(module, nn.ReLU):
            seen[0] &= bool(((z == 0) | (z.abs() > 5e-6)).all())
        elif isinstance(module, nn.MaxPool1d):
            size = module.kernel_size
            assert isinstance(size, int)
            top = z[..., : z.shape[-1] // size * size].unfold(-1, size, size)
            if top.shape[-1] > 1:
                first, second = top.topk(2).values.unbind(-1)
                seen[0] &= bool(
                    ((first - second > 5e-6) | ((first == second) & (first == 0))).all()
                )
        elif isinstance(module, nn.MaxPool2d):
            (lines, columns), (height, width) = _two(module.kernel_size), z.shape[2:]
            top = (
                z[:, :, : height // lines * lines, : width // columns * columns]
                .unfold(2, lines, lines)
                .unfold(3, columns, columns)
            )
            if lines * columns > 1:
                first, second = top.flatten(4).topk(2).values.unbind(-1)
                seen[0] &= bool(
                    ((first - second > 5e-6) | ((first == second) & (first == 0))).all()
                )
        elif isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            seen[0] &= bool((z.transpose(0, 1).flatten(1).var(1) > 1e-2).all())

    hooks = [m.register_forward_pre_hook(watch) for m in model.modules()]
    for chosen in batches:
        model(torch.from_numpy(x[chosen]).double())
    for hook in hooks:
        hook.remove()
    return seen[0]


def check_all(model: Any, window: tuple[int, ...], size: int, seed: int) -> None:
    """A step, predictions, and passes under autograd, with every instruction set, against torch in
    double precision."""
    network = network_of(model, window)
    start = flat_of(model, network)
    x, y = examples_of(window, 3, size, seed)
    order, bounds, batches = batches_of([size])
    exact = copy.deepcopy(model).double().train()
    try:
        assume(settled(copy.deepcopy(exact), x, batches))
    except ValueError:  # one value per channel
        assume(False)
    expected = train_in_torch(exact, x, y, batches)
    wanted = flat_of(exact, network) - start
    for target in available_targets():
        trainer, flat = NativeTrainer(network, target=target), start.copy()
        for again in range(2):  # a second time in the same workspace
            flat = start.copy()
            outcome = trainer.train(flat, None, x, y, order, bounds, LR, MOMENTUM)
            assert outcome.loss_sum == pytest.approx(expected.loss_sum, rel=1e-4, abs=1e-4)
            for name, part in parts_of(network):
                near = {
                    "rtol": 0,
                    "atol": 2e-3 * np.abs(wanted[part]).max(initial=0) + 2e-6,
                    "err_msg": f"{name} {target} {again}",
                }
                np.testing.assert_allclose(flat[part] - start[part], wanted[part], **near)
        model.eval()
        with torch.no_grad():
            answers = torch.softmax(model(torch.from_numpy(x)), 1).numpy()
        np.testing.assert_allclose(trainer.predict(start, x), answers, rtol=1e-3, atol=1e-5)
    check_passes(model, window, x)


def check_passes(model: Any, window: tuple[int, ...], x: Any) -> None:
    """Results and gradients of the extractor as under autograd."""
    model.scale = nn.Identity()
    if not any(True for _ in model.extractor.parameters()):
        return
    exact = copy.deepcopy(model).double().train()
    expected = exact.extractor(torch.from_numpy(x).double())
    d_y = torch.randn(expected.shape, generator=torch.Generator().manual_seed(0))
    expected.backward(d_y.double())
    if not settled(copy.deepcopy(model).double().train(), x, [np.arange(len(x))]):
        return
    for target in available_targets():
        passes = Passes(extractor_of(model, window), target=target)
        flat = np.concatenate(
            [model.state_dict()[name].numpy().ravel() for name in passes.names]
        ).astype(np.float32)
        made = passes.forward(flat, x, training=True)
        scale = float(expected.detach().abs().max())
        np.testing.assert_allclose(
            made.y, expected.detach().numpy(), rtol=1e-3, atol=1e-3 * scale + 1e-6
        )
        found, at = passes.backward(made, d_y.numpy()), 0
        parameters = dict(exact.named_parameters())
        longest = max(
            float(known(p.grad).abs().max()) for n, p in parameters.items() if n in passes.names
        )
        for name, shape in passes.network.shapes.items():
            part = slice(at, at := at + int(np.prod(shape)))
            if name in parameters:
                theirs = known(parameters[name].grad).numpy()
                np.testing.assert_allclose(
                    found[part].reshape(shape),
                    theirs,
                    rtol=2e-3,
                    atol=2e-3 * longest + 1e-5,
                    err_msg=name,
                )
