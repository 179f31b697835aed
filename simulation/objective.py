"""The objective of an algorithm for the data of a fleet."""

from collections.abc import Callable
from copy import deepcopy

import torch
from torch import nn

from algorithms.build import build_objective, outputs_of
from algorithms.composition import AlgorithmSpec, make_objective, read_algorithm
from algorithms.core.functional import seeded
from algorithms.models.adoption.from_file import as_classifier
from algorithms.objectives.supervised import Supervised
from algorithms.spec import DEFAULT_ALGORITHM
from simulation.datasets.windows import FleetData, task_of_labels
from simulation.pretrain import pretrained_extractor
from wire.tasks import CLASSIFICATION

ModelMaker = Callable[[tuple[int, ...], int], nn.Module]
"""(shape of one example, number of outputs: of classes, or what the task asks for) -> a model up to
them, as a function in a model file is."""


def suited(algorithm: AlgorithmSpec, data: FleetData) -> AlgorithmSpec:
    """The algorithm for these data: the one that stands where none is named is for the task that
    their labels are of, others are as they are."""
    task = task_of_labels(data)
    if task == CLASSIFICATION or str(algorithm) != DEFAULT_ALGORITHM:
        return algorithm
    return read_algorithm(f"{DEFAULT_ALGORITHM}+{task}")


def objective_for_fleet(
    data: FleetData, algorithm: AlgorithmSpec, seed: int, model: str = "", pretrain: str = ""
) -> Supervised:
    """`algorithms.build.build_objective` for the examples of a fleet. `pretrain` names other data
    that the extractor is trained on first.

    Raises:
        ConfigError: an unknown algorithm or model, or one that does not fit the data.
        DataError: the data to pre-train on cannot be read, or have another shape.
    """
    size = torch.from_numpy(data.channel_size())
    pretrained = (
        (lambda name: pretrained_extractor(name, data.window, pretrain, seed)) if pretrain else None
    )
    count, units = len(data.classes), data.label_units()
    return build_objective(
        algorithm,
        data.window,
        count,
        size,
        seed=seed,
        model=model,
        pretrained=pretrained,
        units=units,
    )


def objective_on(
    model: nn.Module | ModelMaker, data: FleetData, algorithm: AlgorithmSpec, seed: int
) -> Supervised:
    """The objective of an algorithm on a model of the user's own. A module is copied and starts
    from the weights that it has; those of one that a function makes are decided by the seed.

    Raises:
        ConfigError: it is no classifier of these examples, or does not go with the algorithm.
    """
    size, count = (
        torch.from_numpy(data.channel_size()),
        outputs_of(algorithm, data.window, len(data.classes)),
    )
    name = (
        type(model).__name__
        if isinstance(model, nn.Module)
        else getattr(model, "__name__", "function")
    )

    def make() -> Supervised:
        made = deepcopy(model) if isinstance(model, nn.Module) else model(data.window.shape, count)
        return make_objective(
            algorithm, as_classifier(name, made, data.window, count, size), data.label_units()
        )

    return seeded(make, seed)
