"""FedRep: the private head is trained first, with a frozen body; then the body, with a frozen head.

L. Collins, H. Hassani, A. Mokhtari, S. Shakkottai. Exploiting Shared Representations for
Personalized Federated Learning. ICML 2021, Algorithm 1.

While the head is trained, BatchNorm normalises by the batch, and its running statistics do not
move.
"""

from collections.abc import Mapping
from typing import ClassVar

from algorithms.core.contract import GraphFunction, ObjectiveMemory, PlainSgd, TorchTensors, Work
from algorithms.objectives.coordinator import DefaultCoordinator
from algorithms.objectives.fedper import FedPer
from algorithms.objectives.supervised import Supervised, differentiate, following_values
from algorithms.spec import option
from wire.arrays import names
from wire.messages import MOST_EPOCHS, Verb


def step_over(
    objective: Supervised,
    trained: list[str],
    tensors: TorchTensors,
    batch: TorchTensors,
    hyper: TorchTensors,
    *,
    body: bool = True,
) -> TorchTensors:
    """Take a step of SGD that moves only the tensors `trained`.

    If `body` is True, tensors that a pass changes (running statistics) move too.
    """
    gradients, loss, forward_pass = differentiate(objective.loss, trained, tensors, batch, hyper)
    directions, others = objective.correct(gradients, tensors, hyper)
    moved = objective.descend(directions, tensors, hyper)
    changed = forward_pass.following if body else {}
    return following_values(changed | others | moved) | objective.metrics(
        forward_pass.logits, batch, loss * batch["x"].shape[0]
    )


class FedRepServer(DefaultCoordinator):
    """Server's half: devices train the head for `head_epochs` epochs, then the body as usual."""

    head_epochs: int = option(1, "passes of the head", low=1, high=MOST_EPOCHS)

    def training(self, context: ObjectiveMemory, work: Work) -> tuple[Verb, ...]:
        return (
            work.train("head", epochs=self.head_epochs, report=False),
            *super().training(context, work),
        )


class FedRep(FedPer):
    """Training of the private head by ``head``, and of the shared body by ``step``."""

    name: ClassVar[str] = "fedrep"
    citation: ClassVar[str] = "Collins et al., ICML 2021, Algorithm 1"
    in_sums = "cannot"
    wrapped_by: ClassVar[tuple[str, ...]] = ("mr",)
    server: ClassVar[type[DefaultCoordinator]] = FedRepServer
    follows_task: ClassVar[bool] = True
    sgd_graphs: ClassVar[Mapping[str, PlainSgd]] = {
        "step": PlainSgd(frozenset((names.SHARED,))),
        "head": PlainSgd(frozenset((names.PRIVATE,)), moves_statistics=False),
    }

    def graphs(self) -> Mapping[str, GraphFunction]:
        return {**super().graphs(), "head": self.head}

    def head(self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors) -> TorchTensors:
        """Take a step of the head."""
        private = [key for key in self.trained(tensors) if names.role_of(key) == names.PRIVATE]
        return step_over(self, private, tensors, batch, hyper, body=False)

    def step(self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors) -> TorchTensors:
        """Take a step of the body."""
        return step_over(
            self,
            [key for key in self.trained(tensors) if names.role_of(key) == names.SHARED],
            tensors,
            batch,
            hyper,
        )
