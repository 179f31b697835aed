"""Networks that people usually bring."""

from collections.abc import Callable

import torch
from torch import nn

from algorithms.core.contract import TorchTensors
from algorithms.models.adoption.adopt import adopt
from algorithms.models.classifier import Classifier, Scale
from algorithms.objectives.fedavg import FedAvg
from algorithms.objectives.gradients import tape
from benchmarks.usual_images import Shape
from export.describe import named, parts_of
from simulation.engine.graphs.batched import _over_devices
from simulation.engine.graphs.hybrid import HybridGraphs

CLASSES, LR, MOMENTUM = 4, 0.05, 0.9


def adopted(
    model: nn.Module, shape: Shape, outputs: int = CLASSES, vocabulary: int = 0
) -> Classifier:
    scale = nn.Identity() if vocabulary else Scale(torch.full((shape[0],), 2.0), len(shape) - 1)
    return adopt("mine", model, shape, outputs, scale, vocabulary)


def eager(objective: FedAvg, _inputs: TorchTensors) -> Callable[[TorchTensors], TorchTensors]:
    return named(objective.step)


def hybrid(objective: FedAvg, _inputs: TorchTensors) -> Callable[[TorchTensors], TorchTensors]:
    graphs = HybridGraphs(objective, objective.model.shape, ["step"])

    def run(inputs: TorchTensors) -> TorchTensors:
        with torch.no_grad(), tape():
            return graphs.call("step", inputs)

    return run


def batched(objective: FedAvg, _inputs: TorchTensors) -> Callable[[TorchTensors], TorchTensors]:
    step = _over_devices(objective.step)

    def run(inputs: TorchTensors) -> TorchTensors:
        held, batch, hyper = parts_of(inputs)
        two, of_two = (
            {key: torch.stack([value, value]) for key, value in values.items()}
            for values in (held, batch)
        )
        return {key: value[1] for key, value in step(two, of_two, hyper).items()}

    return run
