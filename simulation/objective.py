"""The objective of an algorithm for the data of a fleet."""

import torch

from algorithms.build import build_objective
from algorithms.core.contract import Objective
from algorithms.registry import AlgorithmSpec
from simulation.datasets.windows import FleetData
from simulation.pretrain import pretrained_extractor


def objective_for_fleet(data: FleetData, algorithm: AlgorithmSpec, seed: int, model: str = "", pretrain: str = "") -> Objective:
    """`algorithms.build.build_objective` for the examples of a fleet. `pretrain` names other data that the extractor is trained on first.

    Raises:
        ConfigError: an unknown algorithm or model, or one that does not fit the data.
        DataError: the data to pre-train on cannot be read, or have another shape.
    """
    size = torch.from_numpy(data.channel_size())
    pretrained = (lambda name: pretrained_extractor(name, data.window, pretrain, seed)) if pretrain else None
    return build_objective(algorithm, data.window, len(data.classes), size, seed=seed, model=model, pretrained=pretrained)
