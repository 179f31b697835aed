"""Temporal convolutional network: residual convolutions of doubling dilation, an answer per step.

Y. Abu Farha, J. Gall. MS-TCN: Multi-Stage Temporal Convolutional Network for Action Segmentation.
CVPR 2019, section 3.1: one stage of it. A layer sees as much before a sample as after it. Here
BatchNorm follows each dilated convolution, because groupings read its statistics. There are 6
layers of 32 channels, which see 127 samples. The representation of a step is the mean over its
samples. Windows without steps, and images, have one answer for the whole.
"""

from torch import Tensor, nn

from algorithms.models.blocks import conv, dimensions, norm
from algorithms.models.classifier import Classifier, Scale
from algorithms.models.text import WIDTH, Embedded
from wire.bundle import Window
from wire.errors import ConfigError

CHANNELS, LAYERS, KERNEL = 32, 6, 3


class Dilated(nn.Module):
    """x (batch, channels, ...) -> x + conv1(relu(norm(dilated(x)))).

    `conv1` is a convolution of one sample.
    """

    def __init__(self, dims: int, channels: int, dilation: int) -> None:
        super().__init__()
        wide = conv(
            dims,
            channels,
            channels,
            KERNEL,
            padding=dilation * (KERNEL // 2),
            dilation=dilation,
            bias=False,
        )
        self.layers = nn.Sequential(
            wide, norm(dims, channels), nn.ReLU(), conv(dims, channels, channels, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = x + self.layers(x)
        return output


class Steps(nn.Module):
    """x (batch, channels, time) -> mean over the samples of each step, (batch, steps, channels).

    With 0 steps it is the mean over all samples or pixels, (batch, channels).
    """

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps

    def forward(self, x: Tensor) -> Tensor:
        return (
            x.unflatten(2, (self.steps, -1)).mean(3).transpose(1, 2)
            if self.steps
            else x.flatten(2).mean(2)
        )


def tcn(window: Window, num_classes: int, size: Tensor) -> Classifier:
    """Return a temporal convolutional network, with embeddings in front if examples are ids.

    Raises:
        ConfigError: steps are not equal parts of a window.
    """
    if window.steps and (window.height or window.length % window.steps):
        raise ConfigError(
            f"model {'text-tcn' if window.vocabulary else 'tcn'}: windows of "
            f"{' x '.join(map(str, window.shape))} cannot be divided into {window.steps} equal "
            "steps"
        )
    dims, inputs = dimensions(window), len(window.channels) * (WIDTH if window.vocabulary else 1)
    # the order of these three is the order of the random draws, and so determines the initial
    # weights
    dilated = [Dilated(dims, CHANNELS, 2**layer) for layer in range(LAYERS)]
    first = conv(dims, inputs, CHANNELS, 1)
    embedding = [Embedded(window.vocabulary, WIDTH)] if window.vocabulary else []
    layers = nn.Sequential(*embedding, first, *dilated, Steps(window.steps))
    scale = nn.Identity() if window.vocabulary else Scale(size, dims)
    return Classifier(scale, layers, nn.Linear(CHANNELS, num_classes))
