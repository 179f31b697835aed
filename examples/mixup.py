"""Mixup with a private head: devices train on mixtures of their windows, and only the body is
exchanged.

H. Zhang, M. Cisse, Y. Dauphin, D. Lopez-Paz. mixup: Beyond Empirical Risk Minimization. ICLR 2018.
With alpha = 1 the share of a mixture is uniform in [0, 1); here every window has its own share. The
head stays on the device as in FedPer (Arivazhagan et al., 2019).
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor

from algorithms.core.contract import TorchTensors
from algorithms.models.classifier import Classifier
from algorithms.objectives.fedper import FedPer
from algorithms.objectives.supervised import Pass
from algorithms.spec import option
from wire.arrays import names

DRAWN = names.uniform("share")


class MixupHead(FedPer):
    """FedPer on mixtures of windows. `mix` is the largest share of another window in one."""

    name: ClassVar[str] = "mixup-head"
    citation: ClassVar[str] = "Zhang et al., ICLR 2018"
    hyper: Mapping[str, Any] = {
        **FedPer.hyper,
        "mix": option(1.0, "largest share of another window in one", low=0, high=1),
    }

    def __init__(self, model: Classifier) -> None:
        super().__init__(model)
        self.random = {
            **self.random,
            DRAWN: (),
        }  # the device draws a number for each window of a batch

    def loss(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> tuple[Tensor, Pass]:
        share, x, y = hyper["mix"] * batch[DRAWN], batch["x"], batch["y"]
        other_x, other_y = (
            x.flip(0),
            y.flip(0),
        )  # batches are in random order: each window meets any other
        part = share.reshape(-1, *[1] * (x.dim() - 1))
        mixture = {**batch, "x": (1 - part) * x + part * other_x}
        result = self.forward(tensors, mixture, training=True)
        loss, other_loss = (
            F.cross_entropy(result.logits, labels, reduction="none") for labels in (y, other_y)
        )
        return ((1 - share) * loss + share * other_loss).mean(), result
