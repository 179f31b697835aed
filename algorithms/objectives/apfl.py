"""APFL: a device uses a mixture of the exchanged model and a personal one, and learns their shares.

Y. Deng, M. M. Kamani, M. Mahdavi. Adaptive Personalized Federated Learning. arXiv:2003.13461, 2020,
Algorithm 1. Legend: w the exchanged model, v the device's (``private/personal.NAME``), a the share
of v (``private/alpha``), m = a * v + (1 - a) * w the mixture.

w <- w - lr * gradient at w; v <- v - lr * a * gradient at m; a <- a - alpha_lr * <v - w, gradient
at m>, within [0, 1]. All three gradients are of the same batch, at the values before the step; w
and v have momentum. The running statistics of m are stored beside v.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from algorithms.core.contract import TorchTensors
from algorithms.objectives.other_models import (
    as_model,
    as_personal_model,
    copy_as_personal_model,
    personal_key,
    personal_parameters,
)
from algorithms.objectives.supervised import (
    LR,
    Pass,
    Supervised,
    differentiate,
    following_values,
)
from algorithms.spec import option
from wire.arrays import names

_ALPHA = names.private("alpha")


class Apfl(Supervised):
    """SGD on the exchanged model, the personal model and the share; metrics are the mixture's."""

    name: ClassVar[str] = "apfl"
    citation: ClassVar[str] = "Deng et al., arXiv:2003.13461, Algorithm 1"
    in_sums = "cannot"
    wrapped_by: ClassVar[tuple[str, ...]] = ("mr",)
    follows_task: ClassVar[bool] = True
    model_answers: ClassVar[bool] = False
    hyper: Mapping[str, Any] = {
        **Supervised.hyper,
        "alpha_lr": option(LR, "learning rate of the share", low=0),
    }
    alpha: float = option(
        0.5, "share of the device's own model before the first round", low=0, high=1
    )

    def initial(self) -> TorchTensors:
        tensors = super().initial()
        personal = copy_as_personal_model(tensors)
        return (
            tensors
            | personal
            | self.slots(personal, personal_parameters(tensors))
            | {_ALPHA: torch.tensor(float(self.alpha))}
        )

    def mixed(self, tensors: TorchTensors) -> TorchTensors:
        """Return tensors with the mixture in place of the exchanged model."""
        alpha = tensors[_ALPHA]
        shared = names.of_role(tensors, names.SHARED)
        mixture = {
            key: alpha * tensors[personal_key(key)] + (1 - alpha) * tensors[key] for key in shared
        }
        return {**as_model(tensors), **mixture}

    def step(self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors) -> TorchTensors:
        def mixture(
            tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
        ) -> tuple[Tensor, Pass]:
            forward_pass = self.forward(self.mixed(tensors), batch, training=True)
            return self.mean_loss(forward_pass.logits, tensors, batch), forward_pass

        gradients, _, exchanged = differentiate(
            self.loss, self.trained(tensors), tensors, batch, hyper
        )
        personal_gradients, loss, forward_pass = differentiate(
            mixture, [*personal_parameters(tensors), _ALPHA], tensors, batch, hyper
        )
        alpha = (tensors[_ALPHA] - hyper["alpha_lr"] * personal_gradients.pop(_ALPHA)).clamp(
            0.0, 1.0
        )
        moved = self.descend(gradients | personal_gradients, tensors, hyper) | {_ALPHA: alpha}
        following = exchanged.following | as_personal_model(forward_pass.following)
        return following_values(following | moved) | self.metrics(
            forward_pass.logits, batch, loss * batch["x"].shape[0]
        )

    def answer(self, tensors: TorchTensors, x: Tensor) -> Pass:
        return super().answer(self.mixed(tensors), x)
