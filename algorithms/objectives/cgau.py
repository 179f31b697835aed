"""CGAU: gated units on a frozen extractor, shifted by two private vectors that a device learns.

L. Rieger, R. M. Th. Høegh, L. K. Hansen. Client Adaptation improves Federated Learning with
Simulated Non-IID Clients. FL-ICML workshop 2020, section 3.2 and appendix A. The units are in
`algorithms.models.gated`. The paper conditions on a one-hot client number, so that each client uses
one column of Vf and Vg; a device here has only that column. Half of the units of each layer are
dropped in training, by random numbers that come with the batch.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from algorithms.core.contract import TorchTensors
from algorithms.models.adoption.dropout import keep
from algorithms.models.classifier import Classifier
from algorithms.models.gated import EXPRESSION, MODULATION, OnFrozen
from algorithms.objectives.supervised import Pass, Supervised
from algorithms.spec import WithOptions, option
from wire.arrays import names


class Cgau(Supervised):
    """FedAvg of the units' weights and the head, with private conditioning.

    Without gates it is the paper's baseline.
    """

    name: ClassVar[str] = "cgau"
    citation: ClassVar[str] = "Rieger et al., FL-ICML 2020, Eq. 1"
    in_sums = "cannot"
    follows_task: ClassVar[bool] = True
    model: OnFrozen
    hyper: Mapping[str, Any] = {
        **Supervised.hyper,
        "lr": 0.01,
        "dropout": option(0.5, "share of the units that a step drops", low=0, below=1),
    }
    units: int = option(64, "units of a layer", low=1)
    layers: int = option(2, "layers on the frozen extractor", low=1)
    gated: bool = option(True, "gated units, else ReLU")
    conditioned: bool = option(True, "the device has vectors of its own")

    def __init__(self, model: Classifier, *values: Any, **options: Any) -> None:
        """Freeze the pre-trained extractor of `model`, unless `model` already has a frozen one."""
        WithOptions.__init__(self, *values, **options)  # OnFrozen needs these options
        if not isinstance(model, OnFrozen):
            classes = model.num_classes
            model = OnFrozen(model, classes, self.units, self.layers, self.gated, self.conditioned)
        super().__init__(model, *values, **options)
        every = (name for name, _ in model.named_parameters())
        self.private = tuple(name for name in every if name.endswith((MODULATION, EXPRESSION)))
        steps = (model.steps,) if model.steps else ()
        self.random: Mapping[str, tuple[int, ...]] = {
            names.uniform(name): (*steps, width) for name, width in model.units.items()
        }

    def loss(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> tuple[Tensor, Pass]:
        factors = {
            f"keep/{n}": keep(batch[names.uniform(n)], hyper["dropout"]) for n in self.model.units
        }
        return super().loss(tensors, {**batch, **factors}, hyper)

    def factors(self, batch: TorchTensors) -> dict[str, list[Tensor]]:
        return {
            f"extractor.{key.removeprefix('keep/')}": [factor]
            for key, factor in batch.items()
            if key.startswith("keep/")
        }
