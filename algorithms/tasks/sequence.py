"""Sequence labelling: each step of a window has one class, such as the activity at that time.

The loss of a window is the mean cross-entropy over its labelled steps. A step of class `NO_LABEL`
has no label and does not count. Each window counts alike, whatever its number of labelled steps.
A. Graves. Supervised Sequence Labelling with Recurrent Neural Networks. Springer, 2012, section
2.3.1, segment classification: the segments are given, and are all of one length.

A step is correct if its class is the most probable one. A window counts by the share of its
labelled steps that are correct.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from algorithms.tasks.base import Task
from wire.errors import ConfigError
from wire.tasks import NO_LABEL, SEQUENCE, TaskName


class Sequence(Task):
    """The mean cross-entropy over the labelled steps of a window.

    Logits are (batch, steps, classes), targets (batch, steps).
    """

    name: ClassVar[str] = "sequence"
    citation: ClassVar[str] = "Graves, 2012, section 2.3.1"
    of: ClassVar[TaskName] = SEQUENCE
    accuracy = "labelled steps of a window whose class is told rightly"

    def check(self, num_outputs: int, steps: int) -> None:
        if not steps:
            raise ConfigError(
                "sequence needs windows with a label for each step, and a model that answers "
                "each step"
            )

    def losses(self, logits: Tensor, target: Tensor) -> Tensor:
        each = F.cross_entropy(
            logits.flatten(0, 1), target.flatten(), reduction="none", ignore_index=NO_LABEL
        )
        return _over_steps(each.view(-1, target.shape[1]), target)

    def right(self, logits: Tensor, target: Tensor) -> Tensor:
        return _over_steps((logits.argmax(2) == target).to(torch.float32), target)

    def answer(self, logits: Tensor, scaled: Tensor) -> Tensor:
        """Return the class probabilities of each step (batch, steps, classes)."""
        return torch.softmax(logits, dim=2)


def _over_steps(values: Tensor, target: Tensor) -> Tensor:
    """Return the mean (batch,) over labelled steps of values (batch, steps).

    It is 0 without labelled steps. `values` must be 0 at steps without a label.
    """
    return values.sum(1) / (target != NO_LABEL).to(values.dtype).sum(1).clamp(min=1)
