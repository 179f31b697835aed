"""A two-layer convolutional network for windows of sensor data, the size that DistFL's HAR experiments use.

B. Liu et al., DistFL, IMWUT 2021, section 5.1 ('a simple 2-layer CNN'); BatchNorm after each convolution.
"""

import torch
from torch import Tensor, nn


class Standardize(nn.Module):
    """(x - mean) / std per channel, with fixed values, so that a device feeds raw sensor units and cannot scale them wrongly."""

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        """`mean` and `std`: (channels,) float32 in the sensor's units; std > 0."""
        super().__init__()
        self.register_buffer("mean", mean.reshape(-1, 1))
        self.register_buffer("std", std.reshape(-1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


class HarCnn(nn.Module):
    """Two times (convolution of 5 samples, BatchNorm, ReLU, max-pool 2), then one linear layer.

    `extractor` maps x (batch, channels, time) to a representation (batch, 64 * (time // 4)), `head` maps that to logits.
    """

    def __init__(self, num_channels: int, num_samples: int, num_classes: int, mean: Tensor | None = None, std: Tensor | None = None) -> None:
        super().__init__()
        mean = torch.zeros(num_channels) if mean is None else mean
        std = torch.ones(num_channels) if std is None else std
        self.scale = Standardize(mean, std)
        self.extractor = nn.Sequential()
        widths = (num_channels, 32, 64)
        for i in (1, 2):
            self.extractor.add_module(f"conv{i}", nn.Conv1d(widths[i - 1], widths[i], 5, padding=2))
            self.extractor.add_module(f"norm{i}", nn.BatchNorm1d(widths[i]))
            self.extractor.add_module(f"relu{i}", nn.ReLU())
            self.extractor.add_module(f"pool{i}", nn.MaxPool1d(2))
        self.extractor.add_module("flatten", nn.Flatten())
        self.head = nn.Linear(64 * (num_samples // 4), num_classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.extractor(self.scale(x)))
        return logits
