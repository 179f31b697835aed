"""Small data for the tests of Python's interface."""

from torch import nn


def small(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A small network with BatchNorm."""
    return nn.Sequential(
        nn.Conv1d(shape[0], 6, 5),
        nn.BatchNorm1d(6),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(4),
        nn.Flatten(),
        nn.Linear(24, classes),
    )
