"""Reconstruction: a model gives back the window that it was shown, through fewer numbers than the
window has.

What it has learned of usual windows it gives back well, and what it has never met badly: the error
of a window says how unusual it is. No labels are needed. M. Sakurada, T. Yairi. Anomaly Detection
Using Autoencoders with Nonlinear Dimensionality Reduction. MLSDA 2014.

The loss of a window is the mean squared error over its values, each in units of its channel's root
mean square over the fleet: an error of 0.1 is a tenth of a channel's mean power. A window is given
back rightly where its error is at most `tolerance`; accuracy is the share of such windows.
"""

from collections.abc import Mapping
from typing import ClassVar, Self

import torch
from torch import Tensor

from algorithms.core.keys import Units
from algorithms.spec import POSITIVE, Limits
from wire.tasks import RECONSTRUCTION, Label, TaskName, label_of

ERROR = "reconstruction_error"
"""What the one number is called that a device is told of a window."""


class Reconstruction:
    """The mean squared error between a window and what a model gives back of it."""

    name: ClassVar[str] = "reconstruction"
    citation: ClassVar[str] = "Sakurada and Yairi, MLSDA 2014"
    of: ClassVar[TaskName] = RECONSTRUCTION
    limits: ClassVar[Mapping[str, Limits]] = {"tolerance": POSITIVE}
    plain: ClassVar[bool] = False
    balanced: ClassVar[bool] = False

    def __init__(self, tolerance: float = 0.5) -> None:
        self.tolerance = tolerance

    @property
    def accuracy(self) -> str:
        return f"windows given back with a mean squared error of at most {self.tolerance:g}"

    def in_units(self, units: Units | None) -> Self:
        return self

    def outputs(self, window: tuple[int, ...], num_classes: int) -> int:
        return torch.Size(window).numel()

    def label(self, num_outputs: int, steps: int) -> Label:
        return label_of(self.of, num_outputs, steps)

    def answers(self, classes: tuple[str, ...]) -> tuple[str, ...]:
        return (ERROR,)

    def check(self, num_outputs: int, steps: int) -> None:
        pass  # `outputs` has said how many there are

    def target(self, scaled: Tensor, y: Tensor) -> Tensor:
        return scaled.flatten(1)

    def losses(self, logits: Tensor, target: Tensor) -> Tensor:
        return (logits - target).square().mean(1)

    def measured(self, logits: Tensor, target: Tensor) -> Tensor:
        return self.losses(logits, target)

    def right(self, logits: Tensor, target: Tensor) -> Tensor:
        return (self.losses(logits, target) <= self.tolerance).to(torch.float32)

    def answer(self, logits: Tensor, scaled: Tensor) -> Tensor:
        """The error of each window."""
        return self.losses(logits, scaled.flatten(1)).unsqueeze(1)
