"""Two-layer convolutional network for windows of sensor data, of the size of DistFL's HAR network.

B. Liu et al., DistFL, IMWUT 2021, section 5.1 ('a simple 2-layer CNN'); BatchNorm after each
convolution. With GroupNorm instead (Y. Wu, K. He, ECCV 2018) no batch statistics are exchanged.
"""

import torch
from torch import Tensor, nn

from algorithms.models.blocks import Norm, conv_stack
from algorithms.models.classifier import Classifier, Scale
from wire.errors import ConfigError


class HarCnn(Classifier):
    """Two times (convolution of 5 samples, normalisation, ReLU, max-pool 2), then one linear layer.

    `extractor` maps x (batch, channels, time) to a representation (batch, 64 * (time // 4)). `head`
    maps the representation to logits.
    """

    head: nn.Linear

    def __init__(
        self,
        num_channels: int,
        num_samples: int,
        num_classes: int,
        size: Tensor | None = None,
        kind: Norm = "batch",
    ) -> None:
        if num_samples < 4:
            raise ConfigError(
                "This network halves windows twice, and needs at least 4 samples, got "
                f"{num_samples}"
            )
        extractor = conv_stack(1, (num_channels, 32, 64), 5, padding=2, kind=kind)
        head = nn.Linear(64 * (num_samples // 4), num_classes)
        super().__init__(Scale(torch.ones(num_channels) if size is None else size), extractor, head)
