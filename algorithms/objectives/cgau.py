"""CGAU: gated units on a frozen extractor, shifted by two vectors that a device learns and keeps to
itself.

L. Rieger, R. M. Th. Høegh, L. K. Hansen. Client Adaptation improves Federated Learning with
Simulated Non-IID Clients. FL-ICML workshop 2020, section 3.2 and appendix A. The units are in
`algorithms.models.gated`. The paper conditions on a one-hot client number: each client then uses
one column of Vf and Vg, which is what a device has here. Half of the units of each layer are
dropped in training, by random numbers that come in with the batch.
"""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from algorithms.core.contract import TorchTensors
from algorithms.models.adoption.dropout import keep
from algorithms.models.classifier import Classifier
from algorithms.models.gated import (
    EXPRESSION,
    MODULATION,
    GatedClassifier,
    OnFrozen,
    PlainClassifier,
)
from algorithms.objectives.supervised import MOMENTUM, Pass, Supervised
from algorithms.spec import AT_LEAST_ONE, PART, Limits
from wire.arrays import names


class Cgau(Supervised):
    """FedAvg of the units' weights and the head; the conditioning is private. Without gates it is
    the paper's baseline."""

    name: ClassVar[str] = "cgau"
    citation: ClassVar[str] = "Rieger et al., FL-ICML 2020, Eq. 1"
    follows_task: ClassVar[bool] = True
    model: OnFrozen
    hyper: Mapping[str, float] = {"lr": 0.01, "momentum": MOMENTUM, "dropout": 0.5}
    limits: ClassVar[Mapping[str, Limits]] = {
        "units": AT_LEAST_ONE,
        "layers": AT_LEAST_ONE,
        "dropout": PART,
    }

    def __init__(
        self,
        model: Classifier,
        units: int = 64,
        layers: int = 2,
        gated: bool = True,
        conditioned: bool = True,
    ) -> None:
        """Freezes the extractor of `model` as it is, pre-trained by whoever made it, unless `model`
        stands on a frozen one already. `gated`: gated units, else ReLU; `conditioned`: whether the
        device has vectors of its own."""
        if not isinstance(model, OnFrozen):
            classes = model.num_classes
            model = (
                GatedClassifier(model, classes, units, layers, conditioned)
                if gated
                else PlainClassifier(model, classes, units, layers)
            )
        super().__init__(model)
        steps = (model.steps,) if model.steps else ()
        self.random: Mapping[str, tuple[int, ...]] = {
            names.uniform(name): (*steps, width) for name, width in model.units.items()
        }

    def role(self, name: str) -> str:
        return names.PRIVATE if name.endswith((MODULATION, EXPRESSION)) else super().role(name)

    def loss(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> tuple[Tensor, Pass]:
        factors = {
            f"keep/{n}": keep(batch[names.uniform(n)], hyper["dropout"]) for n in self.model.units
        }
        return super().loss(tensors, {**batch, **factors}, hyper)

    def factors(self, batch: TorchTensors) -> TorchTensors:
        return {
            f"extractor.{key.removeprefix('keep/')}": factor
            for key, factor in batch.items()
            if key.startswith("keep/")
        }
