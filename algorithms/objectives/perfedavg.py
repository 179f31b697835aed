"""Per-FedAvg: train a model that is good after one step of adaptation on a device's data (MAML).

A. Fallah, A. Mokhtari, A. Ozdaglar. Personalized Federated Learning with Theoretical Guarantees: A
Model-Agnostic Meta-Learning Approach. NeurIPS 2020, Algorithm 1. Legend: a the rate of adaptation
(``inner_lr``), b that of the model (``lr``), d the distance at which ``hessian=free`` (Per-FedAvg
HF) takes differences (``delta``); ``hessian=none`` is the first-order approximation (FO).

w <- w - b * (I - a * H) g, where g is the gradient, on one half of the batch, at w - a * (gradient
on the other half); H is the Hessian on that other half. FO drops H g; HF sets it to (gradient at w
+ d * g - gradient at w - d * g) / (2 * d).

Different from the paper: it draws two or three batches, while this code uses two halves of one
(every other example). BatchNorm normalises by the whole batch in each pass, because no graph can be
captured for half of a batch of any size.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import msgspec
import torch
from torch import Tensor

from algorithms.core.contract import GraphFunction, ObjectiveMemory, TorchTensors, Work
from algorithms.objectives.coordinator import DefaultCoordinator
from algorithms.objectives.lgnet import FineTuned
from algorithms.objectives.supervised import LR, Supervised, differentiate, following_values
from algorithms.spec import option
from wire.messages import MOST_EPOCHS, Train, Verb

Hessian = Literal["none", "free"]


class PerFedAvgServer(FineTuned):
    """Server's half: devices adapt the model after the last round.

    Before that, they evaluate the model without adaptation. They adapt by `fine_tune_epochs` passes
    over their windows, or by `adapt_steps` batches. One batch, as in PFLlib, is the paper's single
    step.
    """

    tuning: ClassVar[str] = "adapt"

    fine_tune_epochs: int = option(1, "passes after the last round", low=0, high=MOST_EPOCHS)
    adapt_steps: int = option(
        0, "batches after the last round, in place of passes", low=0, high=MOST_EPOCHS
    )

    def closing(self, context: ObjectiveMemory, work: Work) -> tuple[Verb, ...]:
        verbs = super().closing(context, work)
        if not self.adapt_steps:
            return verbs
        others = tuple(verb for verb in verbs if not isinstance(verb, Train))
        return (
            msgspec.structs.replace(
                work.train(self.tuning, epochs=1, report=False), steps=self.adapt_steps
            ),
            *others,
        )


class PerFedAvg(Supervised):
    """Training of a model that adapts well by ``step``, and its adaptation by ``adapt``."""

    name: ClassVar[str] = "per-fedavg"
    citation: ClassVar[str] = "Fallah et al., NeurIPS 2020, Algorithm 1"
    in_sums = "works"
    server: ClassVar[type[DefaultCoordinator]] = PerFedAvgServer
    follows_task: ClassVar[bool] = True
    hyper: Mapping[str, Any] = {
        **Supervised.hyper,
        "lr": 10 * LR,
        "momentum": 0.0,
        "inner_lr": option(0.01, "rate of adaptation", low=0),
        "delta": option(0.001, "distance at which hessian=free takes differences", above=0),
    }
    hessian: Hessian = option("none", "approximation of the Hessian", choices=("none", "free"))

    def graphs(self) -> Mapping[str, GraphFunction]:
        return {**super().graphs(), "adapt": self.adapt}

    def step(self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors) -> TorchTensors:
        keys, y = self.trained(tensors), batch["y"]
        half = torch.remainder(torch.arange(y.shape[0]), 2).to(torch.float32)
        first, second = _only(batch, 1 - half), _only(batch, half)
        gradients, loss, first_pass = differentiate(self.loss, keys, tensors, first, hyper)
        adapted = {
            **tensors,
            **first_pass.following,
            **{k: tensors[k] - hyper["inner_lr"] * gradients[k] for k in keys},
        }
        directions, loss_after, second_pass = differentiate(self.loss, keys, adapted, second, hyper)
        if self.hessian == "free":
            ahead, behind = (
                differentiate(
                    self.loss,
                    keys,
                    {**tensors, **{k: tensors[k] + off * directions[k] for k in keys}},
                    first,
                    hyper,
                )[0]
                for off in (1.0 * hyper["delta"], -1.0 * hyper["delta"])
            )
            curvature = {k: (ahead[k] - behind[k]) / (2 * hyper["delta"]) for k in keys}
            directions = {k: directions[k] - hyper["inner_lr"] * curvature[k] for k in keys}
        moved = self.descend(directions, tensors, hyper)
        logits = torch.where(
            half.reshape(-1, *[1] * (first_pass.logits.dim() - 1)) > 0,
            second_pass.logits,
            first_pass.logits,
        )
        loss_sum = loss * (1 - half).sum() + loss_after * half.sum()
        return following_values(
            first_pass.following | second_pass.following | moved
        ) | self.metrics(logits, batch, loss_sum)

    def adapt(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> TorchTensors:
        """Take a step w <- w - alpha * gradient."""
        keys = self.trained(tensors)
        gradients, loss, forward_pass = differentiate(self.loss, keys, tensors, batch, hyper)
        moved = {key: tensors[key] - hyper["inner_lr"] * gradients[key] for key in keys}
        return following_values(forward_pass.following | moved) | self.metrics(
            forward_pass.logits, batch, loss * batch["x"].shape[0]
        )


def _only(batch: TorchTensors, half: Tensor) -> TorchTensors:
    """Return the batch with weights under which a mean over it is a mean over one half.

    `half` is 1 for the examples of that half, 0 for the others.
    """
    weight = half / half.mean()
    return {**batch, "weight": batch["weight"] * weight if "weight" in batch else weight}
