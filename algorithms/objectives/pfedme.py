"""pFedMe: each step solves for a personal model near the local one, then moves the local one to it.

C. T. Dinh, N. H. Tran, T. D. Nguyen. Personalized Federated Learning with Moreau Envelopes. NeurIPS
2020, Algorithm 1. Legend: theta the personal model (``private/personal.NAME``), w the local one, K
inner steps, lambda the strength of the tie, lr the paper's eta.

K times theta <- theta - personal_lr * (gradient at theta + lambda * (theta - w)), on one batch;
then w <- w - lr * lambda * (w - theta). theta starts at w in every round and continues from step to
step, as in the authors' code. The device uses theta.

Different from the paper: its server moves by beta towards the mean of the devices' w; here beta is
1, so that the new model is the mean.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from algorithms.core.contract import GraphFunction, TorchTensors
from algorithms.objectives.coordinator import DefaultCoordinator
from algorithms.objectives.other_models import as_model, copy_as_personal_model, personal_key
from algorithms.objectives.supervised import LR, Pass, Supervised, differentiate, following_values
from algorithms.spec import option
from wire.messages import Apply


class PFedMeServer(DefaultCoordinator):
    """Server's half: the personal model starts at the received one in every round."""

    before = (Apply("begin"),)


class PFedMe(Supervised):
    """Training with steps w <- w - lr * lambda * (w - theta(w))."""

    name: ClassVar[str] = "pfedme"
    citation: ClassVar[str] = "Dinh et al., NeurIPS 2020, Algorithm 1"
    in_sums = "cannot"
    server: ClassVar[type[DefaultCoordinator]] = PFedMeServer
    follows_task: ClassVar[bool] = True
    model_answers: ClassVar[bool] = False
    own_rule: ClassVar[bool] = True
    hyper: Mapping[str, Any] = {
        "lr": option(10 * LR, "learning rate", low=0),
        "personal_lr": option(0.01, "learning rate of the personal model", low=0),
        "lambda": option(15.0, "strength of the tie to the local model", low=0),
    }
    inner_steps: int = option(5, "steps of the personal model in one of the local one", low=1)

    def initial(self) -> TorchTensors:
        tensors = self.parameters() | self.statistics()
        return tensors | copy_as_personal_model(tensors)

    def graphs(self) -> Mapping[str, GraphFunction]:
        return {**super().graphs(), "begin": self.begin}

    def begin(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> TorchTensors:
        """Set theta to w."""
        return following_values(copy_as_personal_model(tensors))

    def step(self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors) -> TorchTensors:
        """Find theta, then move w.

        The running statistics of w are those of the passes with theta.
        """
        keys = self.trained(tensors)
        theta = {key: tensors[personal_key(key)] for key in keys}
        following: TorchTensors = {}
        for _ in range(self.inner_steps):
            gradients, loss, forward_pass = differentiate(
                self.loss, keys, {**tensors, **following, **theta}, batch, hyper
            )
            following = {**following, **forward_pass.following}
            tie = hyper["lambda"]
            theta = {
                k: v - hyper["personal_lr"] * (gradients[k] + tie * (v - tensors[k]))
                for k, v in theta.items()
            }
        moved = {
            key: tensors[key] - hyper["lr"] * hyper["lambda"] * (tensors[key] - theta[key])
            for key in keys
        }
        personal = copy_as_personal_model(following) | {
            personal_key(key): value for key, value in theta.items()
        }
        return following_values(following | moved | personal) | self.metrics(
            forward_pass.logits, batch, loss * batch["x"].shape[0]
        )

    def answer(self, tensors: TorchTensors, x: Tensor) -> Pass:
        return super().answer(as_model(tensors), x)
