"""The models and examples of `benchmarks.usual_speed`. Needs numpy and torch only: it is imported
in other systems' environments."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.peers.workload import CHANNELS, SAMPLES, make_model
from benchmarks.usual_images import MobileNetV2
from benchmarks.usual_models import USUAL

CLASSES, EXAMPLES, BATCH, DEVICES = 6, 256, 32, 20
RATE, MOMENTUM = 0.01, 0.9


class Gru(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.gru, self.out = nn.GRU(9, 64, layers, batch_first=True), nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.out(self.gru(x.transpose(1, 2))[0][:, -1])
        return made


class Dilated(nn.Module):
    """The layers of the registered `tcn`, written apart from it."""

    def __init__(self, dilation: int) -> None:
        super().__init__()
        wide = nn.Conv1d(32, 32, 3, padding=dilation, dilation=dilation, bias=False)
        self.layers = nn.Sequential(wide, nn.BatchNorm1d(32), nn.ReLU(), nn.Conv1d(32, 32, 1))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = x + self.layers(x)
        return made


def cnn(
    channels: int, features: int, widths: tuple[int, int] = (32, 64), kernel: int = 5
) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in ((channels, widths[0]), widths):
        layers += [
            nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, CLASSES))


class Transformer(nn.Module):
    """Torch's encoder as it is, of two layers, without dropout."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, activation="gelu", batch_first=True)
        self.embed, self.encoder, self.out = (
            nn.Linear(9, 32),
            nn.TransformerEncoder(layer, 2),
            nn.Linear(32, CLASSES),
        )

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.out(self.encoder(self.embed(x.transpose(1, 2))).mean(1))
        return made


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "HAR CNN, 9 x 128": (make_model, (CHANNELS, SAMPLES)),
    "2-D CNN, 1 x 28 x 28": (lambda: cnn(1, 64 * 49), (1, 28, 28)),
    "2-D CNN, 3 x 32 x 32": (lambda: cnn(3, 64 * 64), (3, 32, 32)),
    "TCN, 9 x 128": (
        lambda: nn.Sequential(
            nn.Conv1d(9, 32, 1),
            *(Dilated(2**n) for n in range(6)),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
            nn.Linear(32, CLASSES),
        ),
        (9, 128),
    ),
    "GRU of 64, 9 x 128": (lambda: Gru(1), (9, 128)),
    "2 GRUs of 64, 9 x 128": (lambda: Gru(2), (9, 128)),
    "Transformer, 9 x 128": (Transformer, (9, 128)),
    **{
        f"{name}, 9 x 128": (partial(USUAL[name].make, (9, 128), CLASSES), (9, 128))
        for name in ("deepconvlstm", "tinyhar", "tinierhar", "inceptiontime", "lora, encoder")
    },
    "mobilenetv2, 1 x 28 x 28": (partial(MobileNetV2, (1, 28, 28), CLASSES), (1, 28, 28)),
}
"""Models with the shape of an example: some that the engine in C++ can train, then some that it
cannot."""


def device(number: int, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Examples x (256, \\*shape) float32 and classes y (256,) int64 of one device."""
    generator = np.random.default_rng(number)
    return generator.standard_normal((EXAMPLES, *shape)).astype(np.float32), generator.integers(
        0, CLASSES, EXAMPLES
    )


def train_plainly(model: nn.Module, data: Sequence[tuple[Tensor, Tensor]], rounds: int) -> None:
    """Federated averaging as a plain loop: one device after the other, on the model's device."""
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    for _ in range(rounds):
        total = {
            key: torch.zeros_like(value, dtype=torch.float32) for key, value in weights.items()
        }
        for x, y in data:
            model.load_state_dict(weights)
            optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
            for at in torch.randperm(EXAMPLES, device=x.device).split(BATCH):
                optimizer.zero_grad()
                F.cross_entropy(model(x[at]), y[at]).backward()
                optimizer.step()
            for key, value in model.state_dict().items():
                total[key] += value / len(data)
        weights = {key: value.to(weights[key].dtype) for key, value in total.items()}
