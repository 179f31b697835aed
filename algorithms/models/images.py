"""Networks for images: ResNet-18 and VGG-11.

ResNet-18 for small images: K. He, X. Zhang, S. Ren, J. Sun, CVPR 2016. DistFL and DBE use it on
images of 32 and 64 pixels. As is usual there, it begins with one convolution of 3 instead of one of
7 with stride 2 and a max-pooling.

VGG-11 with BatchNorm, and with global average pooling in place of its fully connected layers:
K. Simonyan, A. Zisserman, ICLR 2015, configuration A, with the change of B. Liu et al., DistFL,
IMWUT 2021, section 5.1, for CIFAR-10.
"""

import torch
from torch import Tensor, nn

from algorithms.models.blocks import assemble, average, conv, dimensions, norm, pool
from algorithms.models.classifier import Classifier
from wire.bundle import Window

WIDTHS = (64, 128, 256, 512)


class Residual(nn.Module):
    """relu(way(x) + norm(conv(relu(norm(conv(x)))))).

    `way` is a convolution of 1 if the shape changes, else the identity.
    """

    def __init__(self, dims: int, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv(dims, inputs, outputs, 3, stride, padding=1, bias=False),
            norm(dims, outputs),
            nn.ReLU(),
            conv(dims, outputs, outputs, 3, padding=1, bias=False),
            norm(dims, outputs),
        )
        same = stride == 1 and inputs == outputs
        self.way = (
            nn.Identity()
            if same
            else nn.Sequential(
                conv(dims, inputs, outputs, 1, stride, bias=False), norm(dims, outputs)
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.way(x) + self.body(x))


def resnet18(window: Window, num_classes: int, size: Tensor, share: float = 1.0) -> Classifier:
    """Return ResNet-18: a convolution, eight residual blocks in four stages, one linear layer.

    The mean of every channel is the input of the linear layer. Every layer has a `share` of its
    channels.
    """
    dims, inputs = dimensions(window), max(1, round(share * WIDTHS[0]))
    layers: list[nn.Module] = [
        conv(dims, len(window.channels), inputs, 3, padding=1, bias=False),
        norm(dims, inputs),
        nn.ReLU(),
    ]
    for stage, width in enumerate(WIDTHS):
        outputs = max(1, round(share * width))
        for block in range(2):
            layers.append(Residual(dims, inputs, outputs, 2 if stage and not block else 1))
            inputs = outputs
    return assemble("resnet18", window, num_classes, size, nn.Sequential(*layers, average(dims)))


VGG_BLOCKS = ((64,), (128,), (256, 256), (512, 512), (512, 512))
"""Channels of the convolutions between one max-pooling and the next."""


def vgg11(window: Window, num_classes: int, size: Tensor, share: float = 1.0) -> Classifier:
    """Return VGG-11: eight convolutions of 3 with BatchNorm and ReLU, and one linear layer.

    Max-pooling by 2 follows each block as long as the image has more than one pixel per side. The
    mean of every channel is the input of the linear layer. Every convolution has a `share` of its
    channels.
    """
    dims, inputs, smallest = dimensions(window), len(window.channels), min(window.shape[1:])
    layers: list[nn.Module] = []
    for block in VGG_BLOCKS:
        for width in block:
            outputs = max(1, round(share * width))
            layers += [conv(dims, inputs, outputs, 3, padding=1), norm(dims, outputs), nn.ReLU()]
            inputs = outputs
        if smallest > 1:
            layers.append(pool(dims))
            smallest //= 2
    return assemble("vgg11", window, num_classes, size, nn.Sequential(*layers, average(dims)))
