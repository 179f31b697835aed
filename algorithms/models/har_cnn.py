"""A two-layer convolutional network for windows of sensor data, the size that DistFL's HAR experiments use.

B. Liu et al., DistFL, IMWUT 2021, section 5.1 ('a simple 2-layer CNN'); BatchNorm after each convolution.
"""

import torch
from torch import Tensor, nn

from wire.errors import ConfigError


class Scale(nn.Module):
    """x / size per channel, with fixed values, so that a device feeds raw sensor units and cannot scale them wrongly."""

    size: Tensor

    def __init__(self, size: Tensor) -> None:
        """`size`: (channels,) float32, positive, in the sensor's units."""
        super().__init__()
        self.register_buffer("size", size.reshape(-1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x / self.size


class HarCnn(nn.Module):
    """Two times (convolution of 5 samples, BatchNorm, ReLU, max-pool 2), then one linear layer.

    `extractor` maps x (batch, channels, time) to a representation (batch, 64 * (time // 4)), `head` maps that to logits.
    """

    def __init__(self, num_channels: int, num_samples: int, num_classes: int, size: Tensor | None = None) -> None:
        super().__init__()
        if num_samples < 4:
            raise ConfigError(f"windows of {num_samples} samples: this network halves them twice and needs at least 4")
        self.scale = Scale(torch.ones(num_channels) if size is None else size)
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
