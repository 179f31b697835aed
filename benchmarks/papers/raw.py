"""Networks that are fed raw sensor units, as the papers' own code does; given to runs as a model of a user's own (``FILE.py:FUNCTION``)."""

import torch

from algorithms.models.blocks import Cut
from algorithms.models.classifier import Classifier
from algorithms.models.har_cnn import har_cnn_dbe
from wire.bundle import Window


def _har_cnn(shape: tuple[int, ...], num_classes: int, cut: Cut) -> Classifier:
    channels = tuple(f"c{i}" for i in range(shape[0]))
    return har_cnn_dbe(Window(channels, shape[1], shape[1]), num_classes, torch.ones(len(channels)), cut)


def dbe_split(shape: tuple[int, ...], num_classes: int) -> Classifier:
    """DBE's HAR-CNN, split before all of its linear layers."""
    return _har_cnn(shape, num_classes, "convolutions")


def dbe_last(shape: tuple[int, ...], num_classes: int) -> Classifier:
    """DBE's HAR-CNN, split before the last layer: for objectives that need a head of one linear layer."""
    return _har_cnn(shape, num_classes, "last")
