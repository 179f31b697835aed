"""FedROD: a generic head learns all classes equally, and a private head corrects it for the device.

The private head does not influence the representation.

H.-Y. Chen, W.-L. Chao. On Bridging Generic and Personalized Federated Learning for Image
Classification. ICLR 2022, section 4 (with the linear personal head). Legend: G the generic head
(the model's), H the personal one (``private/personal.head``), n_c the device's examples of class c
(as a share, ``private/share``; counted in every round, it never leaves the device).

The losses are the cross-entropy of G(f(x)) + log n_c, and the cross-entropy of G(f(x)) + H(f(x)),
which moves only H. The device predicts with the sum. H starts at zero, that is with the generic
prediction.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from algorithms.core.contract import GraphFunction, TorchTensors
from algorithms.objectives.coordinator import DefaultCoordinator
from algorithms.objectives.supervised import (
    Pass,
    Supervised,
    following_values,
)
from wire.arrays import names
from wire.messages import Apply, Evaluate

SMALLEST_SHARE = 1e-8
"""Minimum share of a class: the logit of a missing class is lowered by 18, a finite number."""

_WEIGHT, _BIAS = names.private("personal.head.weight"), names.private("personal.head.bias")
_SHARE, _COUNTED = names.private("share"), names.response("labels", "share")


class FedRodServer(DefaultCoordinator):
    """Server's half: a device counts its labels before it trains, and does not report them."""

    before = (Evaluate("train", "labels", report=False), Apply("keep"))


class FedRod(Supervised):
    """Balanced softmax on the generic head, cross-entropy on the sum of both heads."""

    name: ClassVar[str] = "fedrod"
    citation: ClassVar[str] = "Chen & Chao, ICLR 2022, section 4"
    in_sums = "cannot"
    wrapped_by: ClassVar[tuple[str, ...]] = ("mr",)
    server: ClassVar[type[DefaultCoordinator]] = FedRodServer
    model_answers: ClassVar[bool] = False

    def initial(self) -> TorchTensors:
        tensors = super().initial()
        head = self.model.linear_head("fedrod puts a linear head on top of the model's")
        zeros = {_WEIGHT: torch.zeros(head.weight.shape), _BIAS: torch.zeros(head.out_features)}
        return (
            tensors
            | zeros
            | self.slots(zeros, zeros)
            | {_SHARE: torch.full((head.out_features,), 1 / head.out_features)}
        )

    def trained(self, tensors: TorchTensors) -> list[str]:
        return [*super().trained(tensors), *(key for key in (_WEIGHT, _BIAS) if key in tensors)]

    def graphs(self) -> Mapping[str, GraphFunction]:
        return {**super().graphs(), "labels": self.labels, "keep": self.keep}

    def keep(self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors) -> TorchTensors:
        """Store the shares of classes that `labels` counted."""
        return following_values({_SHARE: torch.clone(tensors[_COUNTED])})

    def personal_logits(self, tensors: TorchTensors, forward: Pass) -> Tensor:
        """Return the logits of both heads, as constants to all but the personal head."""
        return forward.logits.detach() + F.linear(
            forward.features.detach(), tensors[_WEIGHT], tensors[_BIAS]
        )

    def loss(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> tuple[Tensor, Pass]:
        forward_pass = self.forward(tensors, batch, training=True)
        generic = self.mean_loss(
            forward_pass.logits + tensors[_SHARE].clamp(min=SMALLEST_SHARE).log(), tensors, batch
        )
        logits = self.personal_logits(tensors, forward_pass)
        return generic + self.mean_loss(logits, tensors, batch), Pass(
            logits, forward_pass.features, forward_pass.following
        )

    def answer(self, tensors: TorchTensors, x: Tensor) -> Pass:
        forward_pass = super().answer(tensors, x)
        return Pass(self.personal_logits(tensors, forward_pass), forward_pass.features)
