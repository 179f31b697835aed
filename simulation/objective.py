"""The objective of an algorithm for the data of a fleet."""

from collections.abc import Callable

import torch
from torch import nn

from algorithms.build import build_objective, outputs_of
from algorithms.composition import AlgorithmSpec, make_objective, read_algorithm
from algorithms.core.functional import seeded
from algorithms.models.adoption.adopt import call_model
from algorithms.models.adoption.from_file import as_classifier
from algorithms.models.adoption.passes import copy_of
from algorithms.objectives.supervised import Supervised
from algorithms.spec import DEFAULT_ALGORITHM
from simulation.datasets.windows import FleetData, task_of_labels
from simulation.pretrain import pretrained_extractor
from wire.tasks import CLASSIFICATION

ModelMaker = Callable[[tuple[int, ...], int], nn.Module]
"""(shape of one example, number of outputs) -> a model up to these outputs.

The outputs are classes, or those of another task. A function in a model file has this type.
"""


def suited(algorithm: AlgorithmSpec, data: FleetData) -> AlgorithmSpec:
    """Return the algorithm for the task of the data's labels.

    Only the default algorithm is adapted to the task; any other one is returned as it is.
    """
    task = task_of_labels(data)
    if task == CLASSIFICATION or str(algorithm) != DEFAULT_ALGORITHM:
        return algorithm
    return read_algorithm(f"{DEFAULT_ALGORITHM}+{task}")


def objective_for_fleet(
    data: FleetData, algorithm: AlgorithmSpec, seed: int, model: str = "", pretrain: str = ""
) -> Supervised:
    """Return the objective of an algorithm for the examples of a fleet (`algorithms.build`).

    `pretrain` names other data on which the extractor is trained first; empty: none.

    Raises:
        ConfigError: the algorithm or model is unknown, or does not fit the data.
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
    """Return the objective of an algorithm on a model of the user's own.

    A module is copied, and the copy keeps its weights. `seed` decides the weights of a model that a
    function makes.

    Raises:
        ConfigError: the model is not a classifier of these examples, or does not fit the algorithm.
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
        network = (
            copy_of(name, model)
            if isinstance(model, nn.Module)
            else call_model(name, model, data.window.shape, count)
        )
        return make_objective(
            algorithm, as_classifier(name, network, data.window, count, size), data.label_units()
        )

    return seeded(make, seed)
