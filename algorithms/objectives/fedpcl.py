"""FedPCL: devices exchange only class prototypes (mean representations) and contrast with them.

Y. Tan, G. Long, J. Ma, L. Liu, T. Zhou, J. Jiang. Federated Learning from Pre-trained Models: A
Contrastive Learning Approach. NeurIPS 2022, Algorithm 1. Legend: z the representation, divided by
its length; C_c the prototype of class c, the mean of z over a device's examples; tau the
temperature.

L = L_g + L_p, each the cross-entropy of softmax_c(cos(z, C_c) / tau): L_g with the global
prototypes (the mean over the devices, weighted by their examples of the class), L_p the mean over
the prototype sets of M devices, in which a missing class is replaced by its global prototype. A
device predicts the class of the nearest of its own prototypes, as in the authors' code.

Different from the paper: there, frozen pre-trained networks come before a trained projection; here
the whole extractor is trained. The softmax runs over all known classes. The first prototypes come
from a preparation, under the initial model.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from algorithms.core.contract import (
    GraphFunction,
    LocalModel,
    ObjectiveMemory,
    PlainSgd,
    Programs,
    TorchTensors,
    Work,
)
from algorithms.core.keys import NEWCOMER
from algorithms.objectives.coordinator import DefaultCoordinator
from algorithms.objectives.local import Local
from algorithms.objectives.supervised import (
    Pass,
    count_labels,
    following_values,
    metrics_of_answers,
)
from algorithms.spec import option
from wire.arrays import names
from wire.arrays.tensors import Array, Tensors
from wire.messages import Apply, Evaluate

_SUM, _SHARE = names.response("prototypes", "sum"), names.response("prototypes", "share")
_OWN, _OWN_KNOWN = names.private("prototypes"), names.private("known")
_MEAN, _MEAN_KNOWN = names.received("prototypes"), names.received("known")
_OTHERS, _OTHERS_KNOWN = names.received("others.prototypes"), names.received("others.known")
_OUT = -1e4
"""Logit of a class that has no prototype."""
_SMALLEST = 1e-6


class FedPclServer(DefaultCoordinator):
    """Server's half: averages prototypes, and sends the sets of M devices of the group.

    The M devices change in every round.
    """

    after = (Evaluate("train", "prototypes"), Apply("keep"))
    responds: ClassVar[bool] = True
    absorbs: ClassVar[bool] = True

    def begin(self, initial: Tensors, seed: int) -> ObjectiveMemory:
        empty = {
            f"{NEWCOMER}/{name}": value
            for name, value in names.part(initial, names.RECEIVED).items()
        }
        return ObjectiveMemory(empty, {"round": 0})

    def preparing(self, context: ObjectiveMemory) -> bool:
        return not context.info["round"]

    def programs(self, context: ObjectiveMemory, work: Work) -> Programs:
        return {"": self.after} if self.preparing(context) else super().programs(context, work)

    def absorb(
        self,
        context: ObjectiveMemory,
        models: Sequence[LocalModel],
        membership: Mapping[str, str],
        averages: Mapping[str, Tensors],
    ) -> ObjectiveMemory:
        arrays, number = dict(context.arrays), context.info["round"]
        num_others = len(arrays[f"{NEWCOMER}/others.known"])
        for group in sorted(
            {NEWCOMER, *(membership[m.device_id] for m in models)}
        ):  # newcomers begin with the prototypes of the whole fleet
            sets = [_prototypes(m) for m in models if group in (NEWCOMER, membership[m.device_id])]
            total = np.maximum(sum(count for _, count in sets), _SMALLEST)[:, None]
            mean = sum(means.astype(np.float64) * count[:, None] for means, count in sets) / total
            first = number * num_others % len(sets)
            chosen = [*sets[first:], *sets[:first]][:num_others]
            missing = num_others - len(chosen)
            entries = {
                "prototypes": mean,
                "known": sum(count for _, count in sets) > 0,
                "others.prototypes": np.stack(
                    [*(means for means, _ in chosen), *[np.zeros_like(mean)] * missing]
                ),
                "others.known": np.stack(
                    [*(count > 0 for _, count in chosen), *[np.zeros(len(mean), bool)] * missing]
                ),
            }
            arrays |= {
                f"{group}/{name}": np.asarray(value, np.float32) for name, value in entries.items()
            }
        return ObjectiveMemory(arrays, {**context.info, "round": number + 1})

    def received(
        self, context: ObjectiveMemory, models: Mapping[str, Tensors], key: str
    ) -> Tensors:
        prefix = f"{key}/" if f"{key}/known" in context.arrays else f"{NEWCOMER}/"
        return {
            names.received(k.removeprefix(prefix)): v
            for k, v in context.arrays.items()
            if k.startswith(prefix)
        }


class FedPCL(Local):
    """Contrastive training of a private model, whose head is not used."""

    name: ClassVar[str] = "fedpcl"
    citation: ClassVar[str] = "Tan et al., NeurIPS 2022, Algorithm 1"
    in_sums = "cannot"
    server: ClassVar[type[DefaultCoordinator]] = FedPclServer
    model_answers: ClassVar[bool] = False
    sgd_graphs: ClassVar[Mapping[str, PlainSgd]] = {}

    num_others: int = option(10, "devices whose prototypes one gets", low=1)
    tau: float = option(0.07, "temperature", above=0)

    def initial(self) -> TorchTensors:
        classes, width = self.model.num_classes, self.model.num_features
        device_prototypes = {_OWN: torch.zeros(classes, width), _OWN_KNOWN: torch.zeros(classes)}
        everyone = {_MEAN: torch.zeros(classes, width), _MEAN_KNOWN: torch.zeros(classes)}
        others = {
            _OTHERS: torch.zeros(self.num_others, classes, width),
            _OTHERS_KNOWN: torch.zeros(self.num_others, classes),
        }
        return super().initial() | device_prototypes | everyone | others

    def trained(self, tensors: TorchTensors) -> list[str]:
        return [
            key for key in super().trained(tensors) if not key.startswith(names.private("head."))
        ]

    def graphs(self) -> Mapping[str, GraphFunction]:
        return {**super().graphs(), "prototypes": self.prototypes, "keep": self.keep}

    def prototypes(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> TorchTensors:
        """Return the sum of each class's representations (classes, K), and its examples.

        The numbers of examples are (classes,).
        """
        classes = self.model.num_classes
        features = F.normalize(self.forward(tensors, batch, training=False).features, dim=1)
        members = (batch["y"].unsqueeze(1) == torch.arange(classes)).to(torch.float32)
        return {
            names.metric("sum"): members.t() @ features,
            names.metric("share"): count_labels(batch["y"], classes),
        }

    def keep(self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors) -> TorchTensors:
        """Store the device's prototypes."""
        share = tensors[_SHARE]
        means = tensors[_SUM] / share.clamp(min=_SMALLEST).unsqueeze(1)
        return following_values({_OWN: means, _OWN_KNOWN: (share > 0).to(torch.float32)})

    def compare(self, features: Tensor, prototypes: Tensor, has_prototype: Tensor) -> Tensor:
        """Return cos(z, C_c) / tau, (batch, classes)."""
        cosines = F.normalize(features, dim=1) @ F.normalize(prototypes, dim=1).t()
        return torch.where(has_prototype > 0, cosines / self.tau, _OUT)

    def loss(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> tuple[Tensor, Pass]:
        forward_pass = self.forward(tensors, batch, training=True)
        mean, mean_known = tensors[_MEAN], tensors[_MEAN_KNOWN]
        logits = self.compare(forward_pass.features, mean, mean_known)
        countable = mean_known[batch["y"]]  # a class without any prototype yet has no loss
        loss = (F.cross_entropy(logits, batch["y"], reduction="none") * countable).mean()
        others, others_known = tensors[_OTHERS], tensors[_OTHERS_KNOWN]
        present = others_known.amax(1)
        sets = []
        for number in range(self.num_others):
            completed = torch.where(others_known[number].unsqueeze(1) > 0, others[number], mean)
            losses = F.cross_entropy(
                self.compare(forward_pass.features, completed, mean_known),
                batch["y"],
                reduction="none",
            )
            sets.append((losses * countable).mean() * present[number])
        loss = loss + torch.stack(sets).sum() / present.sum().clamp(min=1.0)
        return loss, Pass(logits, forward_pass.features, forward_pass.following)

    def evaluate(self, tensors: TorchTensors, batch: TorchTensors) -> TorchTensors:
        return metrics_of_answers(self.predict(tensors, batch["x"]), batch["y"], _SMALLEST)

    def answer(self, tensors: TorchTensors, x: Tensor) -> Pass:
        forward_pass = super().answer(tensors, x)
        return Pass(
            self.compare(forward_pass.features, tensors[_OWN], tensors[_OWN_KNOWN]),
            forward_pass.features,
        )


def _prototypes(model: LocalModel) -> tuple[Array, Array]:
    """Return a device's prototypes (classes, K), and the examples behind each (classes,)."""
    share = model.responses[_SHARE]
    return model.responses[_SUM] / np.maximum(share, _SMALLEST)[:, None], share.astype(
        np.float64
    ) * model.num_examples
