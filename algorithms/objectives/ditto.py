"""Ditto: FedAvg, and beside it a personal model that is tied to the received one.

T. Li, S. Hu, A. Beirami, V. Smith. Ditto: Fair and Robust Federated Learning Through
Personalization. ICML 2021, Algorithm 1. Legend: v the personal model (``private/personal.NAME``,
with separate BatchNorm statistics), w the received one, lambda the strength of the tie.

v <- v - lr * (gradient of the cross-entropy at v + lambda * (v - w)). The device uses v.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from algorithms.core.contract import GraphFunction, ObjectiveMemory, PlainSgd, TorchTensors, Work
from algorithms.objectives.coordinator import DefaultCoordinator
from algorithms.objectives.fedprox import start_copies
from algorithms.objectives.other_models import (
    as_model,
    as_personal_model,
    copy_as_personal_model,
    personal_key,
    personal_parameters,
)
from algorithms.objectives.supervised import (
    Pass,
    Supervised,
    differentiate,
    following_values,
)
from algorithms.spec import option
from wire.arrays import names
from wire.messages import MOST_EPOCHS, Verb


class DittoServer(DefaultCoordinator):
    """Server's half: devices train the personal model, for `personal_epochs`, then as usual."""

    personal_epochs: int = option(
        0, "passes of the personal model; 0 for as many as the run's", low=0, high=MOST_EPOCHS
    )

    def training(self, context: ObjectiveMemory, work: Work) -> tuple[Verb, ...]:
        return (
            work.train("personal", epochs=self.personal_epochs or None, report=False),
            *super().training(context, work),
        )


class Ditto(Supervised):
    """Training of two models: ``step`` moves the exchanged one, ``personal`` the personal one."""

    name: ClassVar[str] = "ditto"
    citation: ClassVar[str] = "Li et al., ICML 2021, Algorithm 1"
    in_sums = "cannot"
    wrapped_by: ClassVar[tuple[str, ...]] = ("mr",)
    server: ClassVar[type[DefaultCoordinator]] = DittoServer
    model_answers: ClassVar[bool] = False
    sgd_graphs: ClassVar[Mapping[str, PlainSgd]] = {"step": PlainSgd()}
    hyper: Mapping[str, Any] = {
        **Supervised.hyper,
        "lambda": option(1.0, "strength of the tie to the received model", low=0),
    }

    def initial(self) -> TorchTensors:
        tensors = super().initial()
        personal = copy_as_personal_model(tensors)
        return (
            tensors
            | start_copies(tensors)
            | personal
            | self.slots(personal, personal_parameters(tensors))
        )

    def graphs(self) -> Mapping[str, GraphFunction]:
        return {**super().graphs(), "personal": self.personal}

    def personal(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> TorchTensors:
        """Take a step of the personal model."""

        def tied(
            tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
        ) -> tuple[Tensor, Pass]:
            forward_pass = self.forward(as_model(tensors), batch, training=True)
            starts = {k: v for k, v in tensors.items() if names.is_start(k)}
            distances = [
                (tensors[personal_key(names.started_from(k))] - v).square().sum()
                for k, v in starts.items()
            ]
            penalty = hyper["lambda"] / 2 * torch.stack(distances).sum()
            return self.mean_loss(forward_pass.logits, tensors, batch) + penalty, forward_pass

        gradients, loss, forward_pass = differentiate(
            tied, personal_parameters(tensors), tensors, batch, hyper
        )
        moved = self.descend(gradients, tensors, hyper)
        size = batch["y"].shape[0]
        return following_values(as_personal_model(forward_pass.following) | moved) | self.metrics(
            forward_pass.logits, batch, loss * size
        )

    def answer(self, tensors: TorchTensors, x: Tensor) -> Pass:
        return super().answer(as_model(tensors), x)
