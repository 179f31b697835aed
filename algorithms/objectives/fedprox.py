"""FedProx: FedAvg with a proximal term that ties the local model to the received one.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith. Federated Optimization in
Heterogeneous Networks. MLSys 2020, Eq. 2.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from algorithms.core.contract import TorchTensors
from algorithms.objectives.supervised import Pass, Supervised
from algorithms.spec import option
from wire.arrays import names


def start_copies(tensors: TorchTensors) -> TorchTensors:
    """Return ``received/start.NAME`` for every shared tensor.

    The device fills them with the received model.
    """
    return {
        names.received_start(n): v.clone() for n, v in names.part(tensors, names.SHARED).items()
    }


class FedProx(Supervised):
    """Local SGD on loss + mu / 2 * |w - w_start|^2."""

    name: ClassVar[str] = "fedprox"
    citation: ClassVar[str] = "Li et al., MLSys 2020, Eq. 2"
    in_sums = "works"
    wrapped_by: ClassVar[tuple[str, ...]] = ("prbm", "mr")
    follows_task: ClassVar[bool] = True
    hyper: Mapping[str, Any] = {
        **Supervised.hyper,
        "mu": option(0.001, "weight of the proximal term", low=0),
    }

    def initial(self) -> TorchTensors:
        tensors = super().initial()
        return tensors | start_copies(tensors)

    def loss(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> tuple[Tensor, Pass]:
        loss, forward_pass = super().loss(tensors, batch, hyper)
        squared = torch.zeros(())
        for key, start in tensors.items():
            if names.is_start(key):
                squared = squared + (tensors[names.started_from(key)] - start).square().sum()
        return loss + hyper["mu"] / 2 * squared, forward_pass
