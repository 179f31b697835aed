"""FedBABU: only the body is trained and exchanged; the whole model is fine-tuned at the end.

The head keeps its initial values until then.

J. Oh, S. Kim, S.-Y. Yun. FedBABU: Toward Enhanced Representation for Federated Image
Classification. ICLR 2022, Algorithm 1.
"""

from collections.abc import Mapping
from typing import ClassVar

from algorithms.core.contract import GraphFunction, PlainSgd, TorchTensors
from algorithms.objectives.coordinator import DefaultCoordinator
from algorithms.objectives.fedper import FedPer
from algorithms.objectives.fedrep import step_over
from algorithms.objectives.lgnet import FineTuned
from wire.arrays import names


class FedBabuServer(FineTuned):
    """Server's half: fine-tunes the whole model after the last round."""

    tuning: ClassVar[str] = "tune"


class FedBABU(FedPer):
    """Training of the body by ``step``, and of body and head by ``tune``.

    The head is private, and the same on every device until ``tune``.
    """

    name: ClassVar[str] = "fedbabu"
    citation: ClassVar[str] = "Oh et al., ICLR 2022, Algorithm 1"
    in_sums = "cannot"
    wrapped_by: ClassVar[tuple[str, ...]] = ("mr",)
    server: ClassVar[type[DefaultCoordinator]] = FedBabuServer
    follows_task: ClassVar[bool] = True
    sgd_graphs: ClassVar[Mapping[str, PlainSgd]] = {
        "step": PlainSgd(frozenset((names.SHARED,))),
        "tune": PlainSgd(),
    }

    def graphs(self) -> Mapping[str, GraphFunction]:
        return {**super().graphs(), "tune": super().step}

    def step(self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors) -> TorchTensors:
        """Take a step of the body."""
        return step_over(
            self,
            [key for key in self.trained(tensors) if names.role_of(key) == names.SHARED],
            tensors,
            batch,
            hyper,
        )
