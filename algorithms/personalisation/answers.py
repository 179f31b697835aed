"""What answers and labels are in a device's memory, by the task: rows that neighbours can be mixed
of; pure torch.

A row of the memory is an answer with a weight: mixing adds rows up, and what is left of the weight
1 is the model's. The probabilities of classes add up to their weight themselves. Where names are
there or not, and of quantities, a row has one more column, which is its weight: a row of zeros
would be an answer too.
"""

from typing import ClassVar

import torch
from torch import Tensor

from algorithms.core.contract import TorchTensors
from algorithms.objectives.supervised import metrics_of_answers
from algorithms.personalisation.kept import LEAST
from algorithms.tasks.base import Task
from wire.arrays import names
from wire.tasks import CLASSIFICATION, MULTI_LABEL, PRESENT, REGRESSION, TaskName

LEAST_MEASURED = 1e-12
"""A probability below this has the loss of this one where the answers of what is kept are
measured."""


class Answers:
    """Rule by which a task's answers are remembered and mixed: rows (n, width), of which the last
    column is the weight. Here quantities in the fleet's units, as a model gives them."""

    by_class: ClassVar[bool] = False
    """True if a window has one of the classes, so that a device may have labels of a part of them
    alone."""
    columns: ClassVar[int] = 1
    """Columns of a row besides the numbers that a model gives."""

    def guess(self, logits: Tensor) -> Tensor:
        """Return the rows of what a model answers (n, outputs)."""
        return with_weight(logits)

    def labels(self, target: Tensor, num_outputs: int) -> Tensor:
        """Return the rows of labels, as `Task.target` gives them; zeros where a window has none."""
        known = (target == target).all(1, keepdim=True)  # what differs from itself is no number
        return torch.where(known, with_weight(target), 0.0)

    def weight(self, rows: Tensor) -> Tensor:
        """Return (n,) how much there is in each row: 1 for a whole answer, 0 for none."""
        return rows[:, -1]

    def losses(self, rows: Tensor, labels: Tensor) -> Tensor:
        """Return the loss (n,) of answers as rows: the mean squared error."""
        return (rows - labels)[:, :-1].square().mean(1)

    def told(self, rows: Tensor, task: Task, scaled: Tensor) -> Tensor:
        """Return what `Task.answer` would say, by these rows."""
        return task.answer(rows[:, :-1], scaled)

    def metrics(self, rows: Tensor, task: Task, target: Tensor) -> TorchTensors:
        """Return ``metric/loss_sum`` and ``metric/num_correct`` of answers as rows."""
        told = rows[:, :-1]
        return {
            names.LOSS_SUM: task.measured(told, target).sum(),
            names.NUM_CORRECT: task.right(told, target).sum(),
        }


class OfClasses(Answers):
    """Class probabilities, which add up to their weight themselves; labels are 1 for the class."""

    by_class: ClassVar[bool] = True
    columns: ClassVar[int] = 0

    def guess(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits, dim=1)

    def labels(self, target: Tensor, num_outputs: int) -> Tensor:
        return (target.unsqueeze(1) == torch.arange(num_outputs)).to(torch.float32)

    def weight(self, rows: Tensor) -> Tensor:
        return rows.sum(1)

    def losses(self, rows: Tensor, labels: Tensor) -> Tensor:
        """The cross-entropy."""
        return -(rows * labels).sum(1).clamp(min=LEAST).log()

    def told(self, rows: Tensor, task: Task, scaled: Tensor) -> Tensor:
        return rows

    def metrics(self, rows: Tensor, task: Task, target: Tensor) -> TorchTensors:
        return metrics_of_answers(rows, target, LEAST_MEASURED)


class OfNames(Answers):
    """The probability of each name, by itself."""

    def guess(self, logits: Tensor) -> Tensor:
        return with_weight(torch.sigmoid(logits))

    def labels(self, target: Tensor, num_outputs: int) -> Tensor:
        known = (target[:, :1] >= 0).to(target.dtype)
        return with_weight(target) * known

    def losses(self, rows: Tensor, labels: Tensor) -> Tensor:
        """The mean binary cross-entropy."""
        return _of_names(rows[:, :-1], labels[:, :-1], LEAST)

    def told(self, rows: Tensor, task: Task, scaled: Tensor) -> Tensor:
        return rows[:, :-1]

    def metrics(self, rows: Tensor, task: Task, target: Tensor) -> TorchTensors:
        told = rows[:, :-1]
        right = ((told >= PRESENT) == (target > 0)).all(1).to(torch.float32)
        return {
            names.LOSS_SUM: _of_names(told, target, LEAST_MEASURED).sum(),
            names.NUM_CORRECT: right.sum(),
        }


CLASSES = OfClasses()
ANSWERS: dict[TaskName, Answers] = {
    CLASSIFICATION: CLASSES,
    MULTI_LABEL: OfNames(),
    REGRESSION: Answers(),
}
"""The tasks in which a device can look up neighbours: one representation and one label for each
window."""


def with_weight(values: Tensor) -> Tensor:
    """Rows of values (n, outputs), each with the weight 1."""
    return torch.cat([values, torch.ones_like(values[:, :1])], dim=1)


def _of_names(told: Tensor, there: Tensor, least: float) -> Tensor:
    """The mean binary cross-entropy (n,) of probabilities (n, names) by what is there, 1 or 0; one
    below `least` counts as this one."""
    chosen = there * told + (1 - there) * (1 - told)
    return -chosen.clamp(min=least).log().mean(1)
