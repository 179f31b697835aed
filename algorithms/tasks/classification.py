"""Classification: a window has one of the classes.

The loss of a window is the cross-entropy of its class. With label smoothing it is the cross-entropy
of a target that gives the class 1 - s + s / classes, and every other class s / classes. C. Szegedy
et al. Rethinking the Inception Architecture for Computer Vision. CVPR 2016, section 7. A class
weight multiplies the loss of the windows of its class.

A step follows the mean over the windows of a batch, and is not divided by the weights of the batch,
as `torch.nn.CrossEntropyLoss` does: so the mean of devices' losses by their numbers of windows is
that of all windows together, whichever device has which classes. What is measured on test windows
is the plain cross-entropy, so that runs can be compared.
"""

from collections.abc import Mapping
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from algorithms.core.keys import Units
from algorithms.spec import BETWEEN, PART, Limits, read_numbers
from wire.errors import ConfigError
from wire.tasks import CLASSIFICATION, NO_LABEL, Label, TaskName, label_of

BALANCED, EQUAL = "balanced", "equal"
"""Class weights that are no numbers: by the device's own counts (`algorithms.tasks.balanced`), and
none."""


class ByName:
    """A class, a label or a quantity is a name, and a model gives a number for each; tasks change
    what differs."""

    of: ClassVar[TaskName]

    def in_units(self, units: Units | None) -> Self:
        return self

    def outputs(self, window: tuple[int, ...], num_classes: int) -> int:
        return num_classes

    def label(self, num_outputs: int, steps: int) -> Label:
        return label_of(self.of, num_outputs, steps)

    def answers(self, classes: tuple[str, ...]) -> tuple[str, ...]:
        return classes


class Classification(ByName):
    """Cross-entropy, with smoothed labels and weights of classes where they are asked for."""

    name: ClassVar[str] = "classification"
    citation: ClassVar[str] = "Szegedy et al., CVPR 2016, section 7"
    of: ClassVar[TaskName] = CLASSIFICATION
    accuracy: ClassVar[str] = "windows whose class is told rightly"
    limits: ClassVar[Mapping[str, Limits]] = {
        "label_smoothing": PART,
        "class_weights": Limits(choices=(EQUAL, BALANCED), numbers=True),
    }

    def __init__(self, label_smoothing: float = 0.0, class_weights: str = EQUAL) -> None:
        """`class_weights`: a number for each class, joined by ``/``, as in ``1/2/0.5``; or
        ``balanced``, or ``equal``."""
        self.label_smoothing, self.balanced = label_smoothing, class_weights == BALANCED
        self.weights = () if class_weights in (BALANCED, EQUAL) else read_numbers(class_weights)

    @property
    def plain(self) -> bool:
        return not (self.label_smoothing or self.balanced or self.weights)

    def check(self, num_outputs: int, steps: int) -> None:
        if self.weights and len(self.weights) != num_outputs:
            given = BETWEEN.join(f"{weight:g}" for weight in self.weights)
            raise ConfigError(
                f"class_weights {given}: expected a weight for each of {num_outputs} classes, got "
                f"{len(self.weights)}"
            )

    def target(self, scaled: Tensor, y: Tensor) -> Tensor:
        return y

    def losses(self, logits: Tensor, target: Tensor) -> Tensor:
        each = F.cross_entropy(
            logits, target, reduction="none", label_smoothing=self.label_smoothing
        )
        return each * torch.tensor(self.weights)[target] if self.weights else each

    def measured(self, logits: Tensor, target: Tensor) -> Tensor:
        """One without a label has none."""
        return F.cross_entropy(logits, target, reduction="none", ignore_index=NO_LABEL)

    def right(self, logits: Tensor, target: Tensor) -> Tensor:
        return (logits.argmax(1) == target).to(torch.float32)

    def answer(self, logits: Tensor, scaled: Tensor) -> Tensor:
        """Class probabilities."""
        return torch.softmax(logits, dim=1)
