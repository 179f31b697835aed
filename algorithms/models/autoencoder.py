"""A convolutional autoencoder: two convolutions of stride 2, a bottleneck, and linear layers back
to the window.

M. Sakurada, T. Yairi. Anomaly Detection Using Autoencoders with Nonlinear Dimensionality Reduction.
MLSDA 2014: a bottleneck of a few units is what keeps the model from giving everything back.
"""

from torch import Tensor, nn

from algorithms.models.blocks import conv, count_features, dimensions, norm
from algorithms.models.classifier import Classifier, Scale
from wire.bundle import Window

WIDTHS = (32, 64)
"""Channels of the two convolutions."""
HIDDEN = 256
"""Units between the bottleneck and the window."""


def autoencoder(window: Window, num_outputs: int, size: Tensor, units: int = 16) -> Classifier:
    """Window -> `units` numbers -> `num_outputs` numbers."""
    dims, layers, channels = dimensions(window), list[nn.Module](), len(window.channels)
    for width in WIDTHS:
        layers += [
            conv(dims, channels, width, 5, stride=2, padding=2, bias=False),
            norm(dims, width),
            nn.ReLU(),
        ]
        channels = width
    encoder = nn.Sequential(*layers, nn.Flatten())
    features = count_features("autoencoder", window, encoder)
    extractor = nn.Sequential(
        *encoder, nn.Linear(features, units), nn.Linear(units, HIDDEN), nn.ReLU()
    )
    return Classifier(Scale(size, dims), extractor, nn.Linear(HIDDEN, num_outputs))
