"""Small models, batches and answers that the tests of FedDisk share."""

from math import prod

import torch
from torch import Tensor, nn

from algorithms.core.contract import LocalModel, ObjectiveMemory, TorchTensors
from algorithms.core.keys import NEWCOMER
from algorithms.models.classifier import Classifier, Scale
from algorithms.objectives.example_weights import WeightedServer

SHAPE = (2, 16)
HYPER = {
    "lr": torch.tensor(0.05),
    "momentum": torch.tensor(0.9),
    "density_lr": torch.tensor(0.02),
    "ratio_lr": torch.tensor(0.1),
}


def small_model() -> Classifier:
    torch.manual_seed(3)
    return linear_model(SHAPE, torch.tensor([1.0, 2.0]))


def linear_model(shape: tuple[int, ...], size: Tensor) -> Classifier:
    model = Classifier(Scale(size), nn.Flatten(), nn.Linear(prod(shape), 3))
    model.shape = shape
    return model


def make_batch(size: int, seed: int = 0) -> TorchTensors:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, *SHAPE, generator=generator)
    return {
        "x": x,
        "y": torch.arange(size) % 3,
        "weight": torch.rand(size, generator=generator) * 2,
    }


def advance(tensors: TorchTensors, outputs: TorchTensors) -> TorchTensors:
    return tensors | {
        k.removeprefix("next/"): v.detach() for k, v in outputs.items() if k.startswith("next/")
    }


def absorb(
    server: WeightedServer, context: ObjectiveMemory, models: list[LocalModel]
) -> ObjectiveMemory:
    return server.absorb(context, models, {m.device_id: NEWCOMER for m in models}, {})
