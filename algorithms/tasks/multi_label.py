"""Several labels: each of so many names is there in a window, or it is not; any number of them,
also none.

The loss of a window is the mean over names of the binary cross-entropy, each name by itself: every
name is told by a logistic regression on what the model makes of the window. M.-L. Zhang, Z.-H.
Zhou. A Review on Multi-Label Learning Algorithms. IEEE TKDE 26(8), 2014: binary relevance, section
3.1.1. In the mean, a loss does not grow with the number of names.

A name is told to be there where its probability is at least a half. A window is right where every
name of it is told rightly: the strictest of the usual rules (subset accuracy, section 2.2.2), and
the only one of them that counts windows.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from algorithms.tasks.base import Task
from wire.tasks import MULTI_LABEL, TaskName


class MultiLabel(Task):
    """The mean binary cross-entropy over names."""

    name: ClassVar[str] = "multi-label"
    citation: ClassVar[str] = "Zhang and Zhou, IEEE TKDE 2014"
    of: ClassVar[TaskName] = MULTI_LABEL
    accuracy = "windows of which every label is told rightly"

    def target(self, scaled: Tensor, y: Tensor) -> Tensor:
        return y.to(scaled.dtype)

    def losses(self, logits: Tensor, target: Tensor) -> Tensor:
        """log(1 + exp(z)) - z t of each name, which is its binary cross-entropy."""
        return (F.softplus(logits) - logits * target).mean(1)

    def measured(self, logits: Tensor, target: Tensor) -> Tensor:
        """One without labels has none."""
        return torch.where(target[:, 0] < 0, 0.0, self.losses(logits, target))

    def right(self, logits: Tensor, target: Tensor) -> Tensor:
        return ((logits >= 0) == (target > 0)).all(1).to(torch.float32)

    def answer(self, logits: Tensor, scaled: Tensor) -> Tensor:
        """The probability of each name."""
        return torch.sigmoid(logits)
