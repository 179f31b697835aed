"""Regression: one or several quantities of a window.

The loss of a window is the mean over quantities of the squared error. Each quantity is standardised
by its mean and standard deviation over the fleet (`algorithms.core.keys`). So a step does not
depend on whether a length is in metres or in millimetres, different quantities count alike, and an
untrained model has a loss of about 1. Answers are in the user's own units. T. Hastie,
R. Tibshirani, J. Friedman. The Elements of Statistical Learning. 2nd edition, 2009, section 3.2.4,
several outputs, and section 11.5.3.

A window is correct if each of its quantities is predicted within `tolerance` standard deviations;
accuracy is the share of such windows.
"""

from copy import copy
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from algorithms.core.keys import Units
from algorithms.spec import option
from algorithms.tasks.base import Task
from wire.errors import ConfigError
from wire.tasks import REGRESSION, TaskName


class Regression(Task):
    """The mean squared error over quantities, in the fleet's units."""

    name: ClassVar[str] = "regression"
    citation: ClassVar[str] = "Hastie et al., 2009, sections 3.2.4 and 11.5.3"
    of: ClassVar[TaskName] = REGRESSION
    tolerance: float = option(
        0.5, "standard deviations by which a right answer may be off", above=0
    )
    units: Units | None = None

    def __init__(self, *values: Any, **options: Any) -> None:
        super().__init__(*values, **options)
        self.accuracy = (
            f"windows of which every quantity is told within {self.tolerance:g} of its standard "
            "deviation over the fleet"
        )

    def in_units(self, units: Units | None) -> Self:
        task = copy(self)
        task.units = units
        return task

    def check(self, num_outputs: int, steps: int) -> None:
        if self.units is not None and len(self.units.size) != num_outputs:
            raise ConfigError(
                f"regression: there are units of {len(self.units.size)} quantities, and the model "
                f"predicts {num_outputs}"
            )

    def target(self, scaled: Tensor, y: Tensor) -> Tensor:
        return (
            y
            if self.units is None
            else (y - torch.tensor(self.units.center)) / torch.tensor(self.units.size)
        )

    def losses(self, logits: Tensor, target: Tensor) -> Tensor:
        return (logits - target).square().mean(1)

    def measured(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss (batch,); 0 for a window without labels, whose quantities are NaN."""
        # only NaN differs from itself
        return torch.where(target != target, 0.0, logits - target).square().mean(1)

    def right(self, logits: Tensor, target: Tensor) -> Tensor:
        return ((logits - target).abs() <= self.tolerance).all(1).to(torch.float32)

    def answer(self, logits: Tensor, scaled: Tensor) -> Tensor:
        """Return the quantities (batch, quantities) in the user's units."""
        return (
            logits
            if self.units is None
            else logits * torch.tensor(self.units.size) + torch.tensor(self.units.center)
        )
