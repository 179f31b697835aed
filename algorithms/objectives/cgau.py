"""CGAU: gated units on a frozen extractor, shifted by two vectors that a device learns and keeps to itself.

L. Rieger, R. M. Th. Høegh, L. K. Hansen. Client Adaptation improves Federated Learning with Simulated Non-IID Clients. FL-ICML
workshop 2020, section 3.2 and appendix A. The units are in `algorithms.models.gated`. The paper conditions on a one-hot client
number: each client then uses one column of Vf and Vg, which is what a device has here. Half of the units of each layer are
dropped in training, by random numbers that come in with the batch.
"""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from algorithms.core.contract import TorchTensors
from algorithms.models.classifier import Classifier
from algorithms.models.dropout import keep
from algorithms.models.gated import EXPRESSION, MODULATION, GatedClassifier, OnFrozen, PlainClassifier
from algorithms.objectives.supervised import MOMENTUM, Pass, Supervised
from algorithms.spec import AT_LEAST_ONE, PART, Limits
from wire import names
from wire.tensors import Array


class Cgau(Supervised):
    """FedAvg of the units' weights and the head; the conditioning is private. Without gates it is the paper's baseline."""

    name: ClassVar[str] = "cgau"
    citation: ClassVar[str] = "Rieger et al., FL-ICML 2020, Eq. 1"
    model: OnFrozen
    hyper: Mapping[str, float] = {"lr": 0.01, "momentum": MOMENTUM, "dropout": 0.5}
    limits: ClassVar[Mapping[str, Limits]] = {"units": AT_LEAST_ONE, "layers": AT_LEAST_ONE, "dropout": PART}

    def __init__(self, model: Classifier, units: int = 64, layers: int = 2, gated: bool = True, conditioned: bool = True) -> None:
        """Freezes the extractor of `model` as it is, pre-trained by whoever made it, unless `model` stands on a frozen one already.
        `gated`: gated units, else ReLU; `conditioned`: whether the device has vectors of its own."""
        if not isinstance(model, OnFrozen):
            classes = model.head.out_features
            model = GatedClassifier(model, classes, units, layers, conditioned) if gated else PlainClassifier(model, classes, units, layers)
        super().__init__(model)
        self.random: Mapping[str, tuple[int, ...]] = {names.uniform(name): (width,) for name, width in model.units.items()}

    def role(self, name: str) -> str:
        return names.PRIVATE if name.endswith((MODULATION, EXPRESSION)) else super().role(name)

    def loss(self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors) -> tuple[Tensor, Pass]:
        factors = {f"keep/{n}": keep(batch[names.uniform(n)], hyper["dropout"]) for n in self.model.units}
        return super().loss(tensors, {**batch, **factors}, hyper)

    def factors(self, batch: TorchTensors) -> TorchTensors:
        return {f"extractor.{key.removeprefix('keep/')}": factor for key, factor in batch.items() if key.startswith("keep/")}


def switched_off(tensors: TorchTensors, modulation: bool = True, expression: bool = True) -> TorchTensors:
    """The same tensors with a part of the conditioning at zero (appendix A, Fig. 3g and 3h)."""
    ends = (*[MODULATION] * modulation, *[EXPRESSION] * expression)
    return {k: torch.zeros_like(v) if names.role_of(k) == names.PRIVATE and k.endswith(ends) else v for k, v in tensors.items()}


def xor_clients(num_examples: int, seed: int, spread: float = 0.15) -> dict[str, tuple[Array, Array]]:
    """The two clients of appendix A, x (n, 2) float32 and y (n,) int64: four clusters around (+-1, +-1), of class 1 where the signs differ;
    ``up`` has those with positive x2, ``down`` the others."""
    rng = np.random.default_rng(seed)
    clients = {}
    for name, side in (("up", 1.0), ("down", -1.0)):
        left = np.arange(num_examples) % 2 == 0
        centres = np.stack([np.where(left, -1.0, 1.0), np.full(num_examples, side)], axis=1)
        x = centres + rng.normal(0.0, spread, centres.shape)
        clients[name] = x.astype(np.float32), (np.sign(centres[:, 0]) != side).astype(np.int64)
    return clients
