"""Multi-label classification: each name applies to a window or does not, independently.

The loss of a window is the mean over names of the binary cross-entropy. Each name has a logistic
regression of its own on the model's features. M.-L. Zhang, Z.-H. Zhou. A Review on Multi-Label
Learning Algorithms. IEEE TKDE 26(8), 2014: binary relevance, section 3.1.1. The mean keeps the loss
independent of the number of names.

A name is predicted if its probability is at least a half. A window is correct if all of its names
are: subset accuracy (section 2.2.2), the strictest of the usual rules, and the only one of them
that counts windows.
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
        """Return the mean over names of the binary cross-entropy, log(1 + exp(z)) - z t."""
        return (F.softplus(logits) - logits * target).mean(1)

    def measured(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss (batch,); 0 for a window without labels."""
        return torch.where(target[:, 0] < 0, 0.0, self.losses(logits, target))

    def right(self, logits: Tensor, target: Tensor) -> Tensor:
        return ((logits >= 0) == (target > 0)).all(1).to(torch.float32)

    def answer(self, logits: Tensor, scaled: Tensor) -> Tensor:
        """Return the probability of each name (batch, names)."""
        return torch.sigmoid(logits)
