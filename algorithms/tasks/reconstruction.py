"""Reconstruction: the model reproduces a window from fewer numbers than the window has.

The model reproduces usual windows well and windows unlike its training data badly, so the error of
a window measures how unusual it is. No labels are needed. M. Sakurada, T. Yairi. Anomaly Detection
Using Autoencoders with Nonlinear Dimensionality Reduction. MLSDA 2014.

The loss of a window is the mean squared error over its values, each in units of its channel's root
mean square over the fleet: an error of 0.1 is a tenth of a channel's mean power. A window is
correct if its error is at most `tolerance`; accuracy is the share of such windows.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor

from algorithms.spec import option
from algorithms.tasks.base import Task
from wire.tasks import RECONSTRUCTION, TaskName

ERROR = "reconstruction_error"
"""Name of the only number in a device's answer for a window."""


class Reconstruction(Task):
    """The mean squared error between a window and its reconstruction."""

    name: ClassVar[str] = "reconstruction"
    citation: ClassVar[str] = "Sakurada and Yairi, MLSDA 2014"
    of: ClassVar[TaskName] = RECONSTRUCTION
    tolerance: float = option(0.5, "error up to which a window counts as given back", above=0)

    def __init__(self, *values: Any, **options: Any) -> None:
        super().__init__(*values, **options)
        most = f"{self.tolerance:g}"
        self.accuracy = f"windows given back with a mean squared error of at most {most}"

    def outputs(self, window: tuple[int, ...], num_classes: int) -> int:
        return torch.Size(window).numel()

    def answers(self, classes: tuple[str, ...]) -> tuple[str, ...]:
        return (ERROR,)

    def target(self, scaled: Tensor, y: Tensor) -> Tensor:
        return scaled.flatten(1)

    def losses(self, logits: Tensor, target: Tensor) -> Tensor:
        return (logits - target).square().mean(1)

    def right(self, logits: Tensor, target: Tensor) -> Tensor:
        return (self.losses(logits, target) <= self.tolerance).to(torch.float32)

    def answer(self, logits: Tensor, scaled: Tensor) -> Tensor:
        """Return the error of each window (batch, 1)."""
        return self.losses(logits, scaled.flatten(1)).unsqueeze(1)
