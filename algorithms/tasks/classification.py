"""Classification: each window has one class.

The loss of a window is the cross-entropy of its class. With label smoothing it is the cross-entropy
of a target that gives the class 1 - s + s / classes, and every other class s / classes. C. Szegedy
et al. Rethinking the Inception Architecture for Computer Vision. CVPR 2016, section 7. A class
weight multiplies the loss of the windows of its class.

A step follows the mean over the windows of a batch. Unlike `torch.nn.CrossEntropyLoss`, it is not
divided by the weights of the batch. So the mean of the devices' losses, weighted by their numbers
of windows, is the mean over all windows, however classes are spread over devices. The reported loss
on test windows is the plain cross-entropy, so that campaigns can be compared.
"""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from algorithms.spec import BETWEEN, option, read_numbers
from algorithms.tasks.base import Task
from wire.errors import ConfigError
from wire.tasks import CLASSIFICATION, NO_LABEL, TaskName

BALANCED, EQUAL = "balanced", "equal"
"""Class weights that are not numbers: from the device's own counts, or all equal.

See `algorithms.tasks.balanced` for the counts.
"""


class Classification(Task):
    """Cross-entropy, optionally with smoothed labels and class weights."""

    name: ClassVar[str] = "classification"
    citation: ClassVar[str] = "Szegedy et al., CVPR 2016, section 7"
    of: ClassVar[TaskName] = CLASSIFICATION
    accuracy = "windows whose class is told rightly"
    label_smoothing: float = option(
        0.0, "share of a target that goes to all classes alike", low=0, below=1
    )
    class_weights: str = option(
        EQUAL,
        "a number for each class, joined by /, or balanced, by the device's own counts",
        choices=(EQUAL, BALANCED),
        numbers=True,
    )

    def __init__(self, *values: Any, **options: Any) -> None:
        super().__init__(*values, **options)
        self.balanced = self.class_weights == BALANCED
        self.weights = read_numbers(self.class_weights)
        self.plain = not (self.label_smoothing or self.balanced or self.weights)

    def check(self, num_outputs: int, steps: int) -> None:
        if self.weights and len(self.weights) != num_outputs:
            text = BETWEEN.join(f"{weight:g}" for weight in self.weights)
            raise ConfigError(
                f"class_weights must be one weight for each of {num_outputs} classes, got "
                f"{len(self.weights)}: {text}"
            )

    def losses(self, logits: Tensor, target: Tensor) -> Tensor:
        each = F.cross_entropy(
            logits, target, reduction="none", label_smoothing=self.label_smoothing
        )
        return each * torch.tensor(self.weights)[target] if self.weights else each

    def measured(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the plain cross-entropy (batch,); 0 for a window without a label."""
        return F.cross_entropy(logits, target, reduction="none", ignore_index=NO_LABEL)

    def right(self, logits: Tensor, target: Tensor) -> Tensor:
        return (logits.argmax(1) == target).to(torch.float32)

    def answer(self, logits: Tensor, scaled: Tensor) -> Tensor:
        """Return the class probabilities (batch, classes)."""
        return torch.softmax(logits, dim=1)
