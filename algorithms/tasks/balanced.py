"""Class weights from a device's own counts: n / (c * n_y) for a window of class y.

Legend: n windows of c classes, n_y of them of class y.

G. King, L. Zeng. Logistic Regression in Rare Events Data. Political Analysis 9(2), 2001, as in
scikit-learn's ``class_weight="balanced"``. All classes of a device count alike in its loss, and the
mean weight of its windows is 1, so that the device has the same share in the fleet's mean as
without weights. The counts never leave the device. Weights are limited to `MOST`, so that one
window of a rare class does not make a step by itself; their mean is then below 1. A class that few
devices have does not count more in the fleet: that takes weights given as numbers.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from algorithms.core.contract import (
    GraphFunction,
    ObjectiveMemory,
    PlainSgd,
    Programs,
    TorchTensors,
    Work,
)
from algorithms.objectives.coordinator import DefaultCoordinator, Wrapper
from algorithms.objectives.supervised import Supervised, following_values
from wire.arrays import names
from wire.messages import Apply, Evaluate, Train, Verb

MOST = 10.0
"""Maximum weight."""
COUNT, KEEP = "count_classes", "keep_class_shares"
_SHARES, _COUNTED = names.private("balance.shares"), names.response(COUNT, "share")


def balanced_weights(shares: Tensor) -> Tensor:
    """Return the weights (classes,), from each class's share (classes,) of a device's windows.

    The weight of a class that the device does not have is 0.
    """
    present = (shares > 0).to(shares.dtype)
    return present / (present.sum() * shares).clamp(min=1 / MOST)


class Balanced(Wrapper[Supervised]):
    """Wrapper of an objective: the device counts its classes and keeps their shares."""

    replaces = ("sgd_graphs", "initial", "graphs", "losses")
    sgd_graphs: ClassVar[Mapping[str, PlainSgd]] = {}

    def initial(self) -> TorchTensors:
        count = self.whole.model.num_classes
        return self.inner.initial() | {_SHARES: torch.full((count,), 1 / count)}

    def graphs(self) -> Mapping[str, GraphFunction]:
        return {**self.inner.graphs(), COUNT: self.whole.labels, KEEP: self.keep_class_shares}

    def keep_class_shares(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> TorchTensors:
        """Return the counted shares as the next value of the private tensor."""
        return following_values({_SHARES: torch.clone(tensors[_COUNTED])})

    def losses(self, logits: Tensor, tensors: TorchTensors, batch: TorchTensors) -> Tensor:
        weights = balanced_weights(tensors[_SHARES])[batch["y"]]
        return self.inner.losses(logits, tensors, batch) * weights


class BalancedServer(Wrapper[DefaultCoordinator]):
    """Wrapper of the coordinator: a device counts its classes before a plan that trains."""

    replaces = ("programs", "closing")

    def programs(self, context: ObjectiveMemory, work: Work) -> Programs:
        return {key: _counting(verbs) for key, verbs in self.inner.programs(context, work).items()}

    def closing(self, context: ObjectiveMemory, work: Work) -> tuple[Verb, ...]:
        return _counting(self.inner.closing(context, work))


def _counting(verbs: tuple[Verb, ...]) -> tuple[Verb, ...]:
    if not any(isinstance(verb, Train) for verb in verbs):
        return verbs
    return (Evaluate("train", COUNT, report=False), Apply(KEEP, report=False), *verbs)
