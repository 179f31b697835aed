"""FedALA: a device starts a round between its last layer and the received one, by learned weights.

J. Zhang, Y. Hua, H. Wang, T. Song, Z. Xue, R. Ma, H. Guan. FedALA: Adaptive Local Aggregation for
Personalized Federated Learning. AAAI 2023, Eq. 4 to 6 and Algorithm 1. Legend: Theta the received
model, Theta_i the device's of the round before (its last layer: ``private/before.NAME``), W_i as
many weights from 0 to 1 as the last layer has (``private/toward.NAME``).

The start is Theta in the lower layers and Theta_i + (Theta - Theta_i) * W_i in the last layer, the
paper's p = 1. W_i moves against the gradient of the loss at that start with the rate `toward_lr`,
and is limited to [0, 1]. Then the round's usual steps follow from there.

Different from the paper: W_i is learned on all windows of the device, not on 80 % of them drawn in
each round; and by the same number of passes in every round, where the paper's second round
continues until the loss converges.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from algorithms.core.contract import (
    GraphFunction,
    ObjectiveMemory,
    PlainSgd,
    Programs,
    TorchTensors,
    Work,
    exchanged,
)
from algorithms.objectives.coordinator import DefaultCoordinator
from algorithms.objectives.supervised import (
    Pass,
    Supervised,
    differentiate,
    following_values,
)
from algorithms.spec import option
from wire.arrays import names
from wire.messages import MOST_EPOCHS, Apply, Evaluate, Verb

_BEFORE, _TOWARD = names.private("before."), names.private("toward.")


class FedAlaServer(DefaultCoordinator):
    """Server's half: devices train W, set the start, evaluate it, and train as usual.

    A round has `toward_epochs` passes of W over the device's windows. In the first round all
    devices have the same last layer, and W does not change.
    """

    toward_epochs: int = option(1, "passes of W in a round", low=1, high=MOST_EPOCHS)
    after = (Apply("remember"),)

    def programs(self, context: ObjectiveMemory, work: Work) -> Programs:
        return {"": (*self._to_start(work), Evaluate(), *self.training(context, work))}

    def closing(self, context: ObjectiveMemory, work: Work) -> tuple[Verb, ...]:
        return (*self._to_start(work), Evaluate())

    def _to_start(self, work: Work) -> tuple[Verb, ...]:
        return work.train("toward", epochs=self.toward_epochs, report=False), Apply(
            "start", report=False
        )


class FedAla(Supervised):
    """SGD from a learned start in the last layer.

    ``toward`` moves W, ``start`` sets the start, ``step`` is local SGD, ``remember`` stores the
    last layer.
    """

    name: ClassVar[str] = "fedala"
    citation: ClassVar[str] = "Zhang et al., AAAI 2023, Algorithm 1"
    in_sums = "cannot"
    server: ClassVar[type[DefaultCoordinator]] = FedAlaServer
    hyper: Mapping[str, Any] = {
        **Supervised.hyper,
        "toward_lr": option(1.0, "learning rate of the way to the received layer", low=0),
    }
    sgd_graphs: ClassVar[Mapping[str, PlainSgd]] = {"step": PlainSgd()}
    sends_more: ClassVar[bool] = True

    def initial(self) -> TorchTensors:
        tensors = super().initial()
        adapted_tensors = {key: tensors[key] for key in self.adapted(tensors)}
        before = {
            _BEFORE + names.name_of(key): value.clone() for key, value in adapted_tensors.items()
        }
        return (
            tensors
            | before
            | {
                _TOWARD + names.name_of(key): torch.ones_like(value)
                for key, value in adapted_tensors.items()
            }
        )

    def adapted(self, tensors: TorchTensors) -> list[str]:
        """Return the keys of the last layer's parameters."""
        layer = f"{self.model.last_layer}."
        return [
            key
            for key in names.of_role(tensors, names.SHARED)
            if names.name_of(key).startswith(layer)
        ]

    def graphs(self) -> Mapping[str, GraphFunction]:
        return {
            **super().graphs(),
            "toward": self.toward,
            "start": self.start,
            "remember": self.remember,
        }

    def started(self, tensors: TorchTensors) -> TorchTensors:
        """Return tensors with the start in place of the received model (Eq. 4)."""
        apart = {
            key: tensors[key] - tensors[_BEFORE + names.name_of(key)]
            for key in self.adapted(tensors)
        }
        return {
            **tensors,
            **{
                key: tensors[_BEFORE + names.name_of(key)]
                + value * tensors[_TOWARD + names.name_of(key)]
                for key, value in apart.items()
            },
        }

    def toward(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> TorchTensors:
        """Take a step of W (Eq. 5); the model and its running statistics do not move."""

        def at_start(
            tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
        ) -> tuple[Tensor, Pass]:
            return self.loss(self.started(tensors), batch, hyper)

        weights = [_TOWARD + names.name_of(key) for key in self.adapted(tensors)]
        gradients, loss, forward_pass = differentiate(at_start, weights, tensors, batch, hyper)
        moved = {
            key: (tensors[key] - hyper["toward_lr"] * value).clamp(0.0, 1.0)
            for key, value in gradients.items()
        }
        return following_values(moved) | self.metrics(
            forward_pass.logits, batch, loss * batch["x"].shape[0]
        )

    def start(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> TorchTensors:
        """Set the model to the start."""
        start_model = self.started(tensors)
        return following_values({key: torch.clone(start_model[key]) for key in exchanged(tensors)})

    def remember(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> TorchTensors:
        """Store the trained last layer, from which the next round begins."""
        return following_values(
            {
                _BEFORE + names.name_of(key): torch.clone(tensors[key])
                for key in self.adapted(tensors)
            }
        )
