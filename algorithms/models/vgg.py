"""VGG-11 with BatchNorm, and with global average pooling in place of its fully connected layers.

K. Simonyan, A. Zisserman, ICLR 2015, configuration A; as B. Liu et al., DistFL, IMWUT 2021, section
5.1, change it for CIFAR-10.
"""

from torch import Tensor, nn

from algorithms.models.blocks import assemble, average, conv, dimensions, norm, pool
from algorithms.models.classifier import Classifier
from wire.bundle import Window

BLOCKS = ((64,), (128,), (256, 256), (512, 512), (512, 512))
"""Channels of the convolutions between one max-pooling and the next."""


def vgg11(window: Window, num_classes: int, size: Tensor, share: float = 1.0) -> Classifier:
    """Eight convolutions of 3 with BatchNorm and ReLU, max-pool 2 after each block while there is
    something to halve, the mean of every channel, one linear layer. `share` of the channels makes a
    narrower one."""
    dims, inputs, smallest = dimensions(window), len(window.channels), min(window.shape[1:])
    layers: list[nn.Module] = []
    for block in BLOCKS:
        for width in block:
            outputs = max(1, round(share * width))
            layers += [conv(dims, inputs, outputs, 3, padding=1), norm(dims, outputs), nn.ReLU()]
            inputs = outputs
        if smallest > 1:
            layers.append(pool(dims))
            smallest //= 2
    return assemble("vgg11", window, num_classes, size, nn.Sequential(*layers, average(dims)))
