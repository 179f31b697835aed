"""MOON: contrast representations with those of the received model and the device's previous one.

Q. Li, B. He, D. Song. Model-Contrastive Federated Learning. CVPR 2021, Eq. 3 and 4. Legend: mu the
term's weight, tau its temperature.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from algorithms.core.contract import GraphFunction, TorchTensors, exchanged
from algorithms.objectives.coordinator import DefaultCoordinator
from algorithms.objectives.fedprox import start_copies
from algorithms.objectives.supervised import Pass, Supervised, following_values
from algorithms.spec import option
from wire.arrays import names
from wire.messages import Apply

_PREVIOUS, _RECEIVED = names.private("previous."), names.received_start("")


class MoonServer(DefaultCoordinator):
    """Server's half: a device stores its model after its training."""

    after = (Apply("remember"),)


class Moon(Supervised):
    """Local SGD on the loss with a contrastive term.

    loss + mu * -log(exp(sim(z, z_received) / tau) / (exp(sim(z, z_received) / tau) + exp(sim(z,
    z_previous) / tau)))
    """

    name: ClassVar[str] = "moon"
    citation: ClassVar[str] = "Li et al., CVPR 2021, Eq. 3 and 4"
    in_sums = "cannot"
    wrapped_by: ClassVar[tuple[str, ...]] = ("prbm", "mr")
    server: ClassVar[type[DefaultCoordinator]] = MoonServer
    follows_task: ClassVar[bool] = True
    hyper: Mapping[str, Any] = {
        **Supervised.hyper,
        "mu": option(1.0, "weight of the term", low=0),
        "tau": option(1.0, "temperature", above=0),
    }

    def initial(self) -> TorchTensors:
        tensors = super().initial()
        previous = {_PREVIOUS + names.name_of(k): v.clone() for k, v in exchanged(tensors).items()}
        return tensors | start_copies(tensors) | previous

    def graphs(self) -> Mapping[str, GraphFunction]:
        return {**super().graphs(), "remember": self.remember}

    def other(self, tensors: TorchTensors, begin: str) -> TorchTensors:
        """Return tensors with another model of the same structure in place of this one.

        `begin` is the prefix of the other model's names.
        """
        renamed = {
            k: tensors.get(begin + names.name_of(k), v).detach()
            for k, v in exchanged(tensors).items()
        }
        return {**tensors, **renamed}

    def loss(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> tuple[Tensor, Pass]:
        loss, forward_pass = super().loss(tensors, batch, hyper)
        received = self.forward(
            self.other(tensors, _RECEIVED), batch, training=True
        ).features.detach()
        previous = self.forward(
            self.other(tensors, _PREVIOUS), batch, training=True
        ).features.detach()
        near = F.cosine_similarity(forward_pass.features, received, dim=-1) / hyper["tau"]
        far = F.cosine_similarity(forward_pass.features, previous, dim=-1) / hyper["tau"]
        return loss + hyper["mu"] * F.softplus(far - near).mean(), forward_pass

    def remember(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> TorchTensors:
        """Store the trained model as the previous one of the next round."""
        previous_model = {
            _PREVIOUS + names.name_of(key): value for key, value in exchanged(tensors).items()
        }
        return following_values(
            {key: torch.clone(value) for key, value in previous_model.items() if key in tensors}
        )
