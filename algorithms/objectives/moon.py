"""MOON: contrasts the representation of a batch under the local model with those under the received and the device's previous model.

Q. Li, B. He, D. Song. Model-Contrastive Federated Learning. CVPR 2021, Eq. 3 and 4. Legend: mu the term's weight, tau its temperature.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from algorithms.contract import Context, GraphFunction, TorchTensors, Work, exchanged
from algorithms.objectives.coordinator import Plain
from algorithms.objectives.fedprox import start_copies
from algorithms.objectives.supervised import LR, MOMENTUM, Pass, Supervised
from wire.messages import Apply, Verb


class Moon(Supervised):
    """loss + mu * -log(exp(sim(z, z_received) / tau) / (exp(sim(z, z_received) / tau) + exp(sim(z, z_previous) / tau)))."""

    name: ClassVar[str] = "moon"
    citation: ClassVar[str] = "Li et al., CVPR 2021, Eq. 3 and 4"
    hyper: Mapping[str, float] = {"lr": LR, "momentum": MOMENTUM, "mu": 1.0, "tau": 1.0}

    def initial(self) -> TorchTensors:
        tensors = super().initial()
        previous = {f"private/previous.{k.split('/', 1)[1]}": v.clone() for k, v in exchanged(tensors).items()}
        return tensors | start_copies(tensors) | previous

    def graphs(self) -> Mapping[str, GraphFunction]:
        return {**super().graphs(), "remember": self.remember}

    def other(self, tensors: TorchTensors, prefix: str) -> TorchTensors:
        """The tensors of another model of the same structure, under this one's names."""
        renamed = {k: tensors.get(f"{prefix}{k.split('/', 1)[1]}", v).detach() for k, v in exchanged(tensors).items()}
        return {**tensors, **renamed}

    def loss(self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors) -> tuple[Tensor, Pass]:
        loss, made = super().loss(tensors, batch, hyper)
        received = self.forward(self.other(tensors, "received/start."), batch, training=True).features.detach()
        previous = self.forward(self.other(tensors, "private/previous."), batch, training=True).features.detach()
        near = F.cosine_similarity(made.features, received, dim=1) / hyper["tau"]
        far = F.cosine_similarity(made.features, previous, dim=1) / hyper["tau"]
        return loss + hyper["mu"] * F.softplus(far - near).mean(), made

    def remember(self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors) -> TorchTensors:
        """The model after its training becomes the previous one."""
        prefix = "private/previous."
        held = {k.removeprefix(prefix) for k in tensors if k.startswith(prefix)}
        return {
            f"next/{prefix}{key.split('/', 1)[1]}": torch.clone(value)
            for key, value in exchanged(tensors).items()
            if key.split("/", 1)[1] in held
        }


class MoonServer(Plain):
    """A device remembers its model after its training."""

    def training(self, context: Context, work: Work) -> tuple[Verb, ...]:
        return (*super().training(context, work), Apply("remember"))
