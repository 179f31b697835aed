"""A network of one hidden layer.

B. McMahan et al., AISTATS 2017, have two; one of 200 units is what libraries call FedAvg's MLP.
"""

from torch import Tensor, nn

from algorithms.models.blocks import assemble
from algorithms.models.classifier import Classifier
from wire.bundle import Window


def mlp(window: Window, num_classes: int, size: Tensor, hidden: int = 200) -> Classifier:
    """Flatten, one linear layer of `hidden` units, ReLU, then the classes."""
    values = len(window.channels) * window.length * max(1, window.height)
    return assemble(
        "mlp",
        window,
        num_classes,
        size,
        nn.Sequential(nn.Flatten(), nn.Linear(values, hidden), nn.ReLU()),
    )
