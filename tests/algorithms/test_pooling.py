"""Channels and places of representations, read from what models do."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from algorithms.models.adoption.adopt import adopt
from algorithms.models.classifier import Classifier
from algorithms.models.registry import make_model
from algorithms.personalisation.pooling import grid_of, pooled
from wire.bundle import Window

SERIES, IMAGE = (6, 32), (3, 16, 16)


class Steps(nn.Module):
    """Outputs of a layer for each of 8 steps, flattened in the given order of dimensions."""

    def __init__(self, layer: nn.Module, width: int, order: tuple[int, ...]) -> None:
        super().__init__()
        self.layer, self.order, self.head = layer, order, nn.Linear(8 * width, 4)

    def forward(self, x: Tensor) -> Tensor:
        steps = self.layer(x.permute(0, 2, 1)[:, ::4])
        steps = steps[0] if isinstance(steps, tuple) else steps
        answer: Tensor = self.head(torch.relu(steps).permute(self.order).flatten(1))
        return answer


class Convolved(nn.Module):
    """A convolution whose output is turned to (batch, steps, channels) and flattened."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Conv1d(6, 5, 3, padding=1), nn.Linear(5 * 32, 4)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.head(self.layer(x).transpose(1, 2).reshape(len(x), -1))
        return answer


def layers(*more: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv1d(6, 12, 5), nn.BatchNorm1d(12), nn.ReLU(), *more)


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], tuple[int, int, int]]] = {
    "a convolution": (
        lambda: layers(nn.MaxPool1d(4), nn.Flatten(), nn.Linear(84, 4)),
        SERIES,
        (1, 12, 7),
    ),
    "dropout behind it": (
        lambda: layers(nn.Flatten(), nn.Dropout(0.5), nn.Linear(336, 4)),
        SERIES,
        (1, 12, 28),
    ),
    "a mean over time": (
        lambda: layers(nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(12, 4)),
        SERIES,
        (1, 12, 1),
    ),
    "a hidden layer": (
        lambda: layers(nn.Flatten(), nn.Linear(336, 20), nn.ReLU(), nn.Linear(20, 4)),
        SERIES,
        (1, 20, 1),
    ),
    "an image": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(392, 4)),
        IMAGE,
        (1, 8, 49),
    ),
    "steps of a linear layer": (lambda: Steps(nn.Linear(6, 10), 10, (0, 1, 2)), SERIES, (8, 10, 1)),
    "the same, turned": (lambda: Steps(nn.Linear(6, 10), 10, (0, 2, 1)), SERIES, (1, 10, 8)),
    "steps of a GRU": (
        lambda: Steps(nn.GRU(6, 10, batch_first=True), 10, (0, 1, 2)),
        SERIES,
        (8, 10, 1),
    ),
    "the example itself": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 4)),
        SERIES,
        (1, 6, 32),
    ),
    "a convolution, turned": (Convolved, SERIES, (32, 5, 1)),
}


@pytest.mark.parametrize("name", CASES)
def test_channels_are_those_of_the_layer_whose_output_became_the_vector(name: str) -> None:
    make, shape, grid = CASES[name]
    model = adopt("mine", make(), shape, 4, nn.Identity())
    assert grid_of(model) == grid
    before, channels, after = grid
    features = torch.randn(3, before * channels * after)
    expected = features.reshape(3, before, channels, after).mean((1, 3))
    torch.testing.assert_close(pooled(features, grid), expected)


@pytest.mark.parametrize(
    ("name", "window", "grid"),
    [
        ("har-cnn", Window(tuple("abcdefghi"), 128, 64), (1, 64, 32)),
        ("mlp", Window(tuple("abcdefghi"), 128, 64), (1, 200, 1)),
    ],
)
def test_models_of_the_product_have_theirs(
    name: str, window: Window, grid: tuple[int, int, int]
) -> None:
    model: Classifier = make_model(name, window, 6, torch.ones(9))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    assert grid_of(model) == grid
    assert model.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
