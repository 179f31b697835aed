"""Models for neither images nor sequences: a multi-layer perceptron and an autoencoder."""

from torch import Tensor, nn

from algorithms.models.blocks import assemble, conv, count_features, dimensions, norm
from algorithms.models.classifier import Classifier, Scale
from wire.bundle import Window

WIDTHS = (32, 64)
"""Channels of the two convolutions."""
HIDDEN = 256
"""Number of units between the bottleneck and the window."""


def mlp(window: Window, num_classes: int, size: Tensor, hidden: int = 200) -> Classifier:
    """Return a perceptron: flatten, one linear layer of `hidden` units, ReLU, then the classes.

    B. McMahan et al., AISTATS 2017, have two such layers; libraries call this one FedAvg's MLP.
    """
    values = len(window.channels) * window.length * max(1, window.height)
    return assemble(
        "mlp",
        window,
        num_classes,
        size,
        nn.Sequential(nn.Flatten(), nn.Linear(values, hidden), nn.ReLU()),
    )


def autoencoder(window: Window, num_outputs: int, size: Tensor, units: int = 16) -> Classifier:
    """Return a convolutional autoencoder: window -> `units` values -> `num_outputs` values.

    M. Sakurada, T. Yairi. Anomaly Detection Using Autoencoders with Nonlinear Dimensionality
    Reduction. MLSDA 2014: a bottleneck of a few units prevents the reproduction of every window.
    """
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
