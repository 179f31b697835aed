"""FedAvg: every device minimises the cross-entropy of the shared model by SGD with momentum.

B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas. Communication-Efficient Learning of Deep Networks from
Decentralized Data. AISTATS 2017, Algorithm 1.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch.func import grad_and_value

from algorithms.contract import TorchTensors, functional
from algorithms.objectives.supervised import Supervised, batch_metrics


class FedAvg(Supervised):
    """Local SGD with momentum; the momentum is a slot: it starts at zero in every round."""

    name: ClassVar[str] = "fedavg"
    citation: ClassVar[str] = "McMahan et al., AISTATS 2017, Algorithm 1"
    hyper: ClassVar[Mapping[str, float]] = {"lr": 0.005, "momentum": 0.9}

    def initial(self) -> TorchTensors:
        tensors = super().initial()
        slots = {k.replace("shared/", "slot/momentum.", 1): torch.zeros_like(v) for k, v in tensors.items() if k.startswith("shared/")}
        return tensors | slots

    def step(self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors) -> tuple[TorchTensors, TorchTensors]:
        """v <- momentum * v + grad; w <- w - lr * v; running statistics as BatchNorm updates them."""
        shared = {k: v for k, v in tensors.items() if k.startswith("shared/")}
        x, y = batch["x"], batch["y"]

        def loss_of(weights: TorchTensors) -> tuple[torch.Tensor, tuple[torch.Tensor, TorchTensors]]:
            logits, statistics = functional(self.model, {**tensors, **weights}, x, training=True)
            return F.cross_entropy(logits, y), (logits, statistics)

        gradients, (loss, (logits, statistics)) = grad_and_value(loss_of, has_aux=True)(shared)
        following = dict(statistics)
        for key, weight in shared.items():
            slot = key.replace("shared/", "slot/momentum.", 1)
            following[slot] = hyper["momentum"] * tensors[slot] + gradients[key]
            following[key] = weight - hyper["lr"] * following[slot]
        return following, batch_metrics(logits, y, loss * y.shape[0])
