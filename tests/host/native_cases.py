"""Classifiers, examples, and the steps in torch that the native engine is compared with."""

from collections.abc import Callable
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from algorithms.models.classifier import Classifier, Scale
from algorithms.models.reading.network import Network
from host.native.plan import Floats
from host.native.trainer import Outcome
from tests.support.known import known

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
) -> Outcome:
    """The same steps in torch, double precision: the outcome before each step; `model` becomes the
    trained one."""
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
    return Outcome(loss_sum, correct, sum(map(len, batches)))


def batches_of(sizes: list[int]) -> tuple[Any, Any, list[Any]]:
    """A shuffled order of sum(sizes) examples, its bounds, and the batches that they describe."""
    order, bounds = np.random.default_rng(1).permutation(sum(sizes)), np.cumsum([0, *sizes])
    return order, bounds, [order[a:b] for a, b in pairwise(bounds)]


def parts_of(network: Network) -> list[tuple[str, slice]]:
    """Where each tensor lies in the flat vector."""
    ends = np.cumsum([0, *(prod(s) for s in network.shapes.values())])
    return [
        (name, slice(a, b)) for name, (a, b) in zip(network.shapes, pairwise(ends), strict=True)
    ]


class Residual(nn.Module):
    """What layers make of x, plus x, or plus what another layer makes of it."""

    def __init__(self, layers: list[nn.Module], other: nn.Module | None = None) -> None:
        super().__init__()
        self.layers, self.other = nn.Sequential(*layers), nn.Identity() if other is None else other

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.layers(x) + self.other(x)
        return made
