"""Answers and labels in a device's memory, as rows that can be mixed. Pure torch.

A row is an answer with a weight. Mixing adds rows up, and the rest of the weight 1 goes to the
model's answer. Class probabilities add up to their weight. For multi-label and regression tasks a
row has one more column with its weight, because a row of zeros would be an answer too.
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
"""Minimum probability for the loss of the personal model: a smaller one counts as this one."""


class Answers:
    """Rows (n, width) of answers of a regression task, and the base of the other tasks' rules.

    The last column is the weight. Quantities are in the fleet's units, as a model predicts them.
    """

    by_class: ClassVar[bool] = False
    """True if a window has exactly one class, so that a device may lack labels of some classes."""
    columns: ClassVar[int] = 1
    """Number of columns of a row besides the model's outputs."""

    def guess(self, logits: Tensor) -> Tensor:
        """Return the rows of a model's outputs (n, outputs)."""
        return with_weight(logits)

    def labels(self, target: Tensor, num_outputs: int) -> Tensor:
        """Return the rows of labels from `Task.target`; zeros for a window without a label."""
        has_label = (target == target).all(1, keepdim=True)  # NaN means no label
        return torch.where(has_label, with_weight(target), 0.0)

    def weight(self, rows: Tensor) -> Tensor:
        """Return the weight (n,) of each row: 1 for a whole answer, 0 for none."""
        return rows[:, -1]

    def losses(self, rows: Tensor, labels: Tensor) -> Tensor:
        """Return the loss (n,) of answers as rows: the mean squared error."""
        return (rows - labels)[:, :-1].square().mean(1)

    def told(self, rows: Tensor, task: Task, scaled: Tensor) -> Tensor:
        """Return the answers in rows in the form of `Task.answer`."""
        return task.answer(rows[:, :-1], scaled)

    def metrics(self, rows: Tensor, task: Task, target: Tensor) -> TorchTensors:
        """Return ``metric/loss_sum`` and ``metric/num_correct`` of answers as rows."""
        answers = rows[:, :-1]
        return {
            names.LOSS_SUM: task.measured(answers, target).sum(),
            names.NUM_CORRECT: task.right(answers, target).sum(),
        }


class OfClasses(Answers):
    """Class probabilities, which add up to their weight; the label row is 1 for the class."""

    by_class: ClassVar[bool] = True
    columns: ClassVar[int] = 0

    def guess(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits, dim=1)

    def labels(self, target: Tensor, num_outputs: int) -> Tensor:
        return (target.unsqueeze(1) == torch.arange(num_outputs)).to(torch.float32)

    def weight(self, rows: Tensor) -> Tensor:
        return rows.sum(1)

    def losses(self, rows: Tensor, labels: Tensor) -> Tensor:
        """Return the cross-entropy (n,)."""
        return -(rows * labels).sum(1).clamp(min=LEAST).log()

    def told(self, rows: Tensor, task: Task, scaled: Tensor) -> Tensor:
        return rows

    def metrics(self, rows: Tensor, task: Task, target: Tensor) -> TorchTensors:
        return metrics_of_answers(rows, target, LEAST_MEASURED)


class OfNames(Answers):
    """Independent probabilities of names, for multi-label tasks."""

    def guess(self, logits: Tensor) -> Tensor:
        return with_weight(torch.sigmoid(logits))

    def labels(self, target: Tensor, num_outputs: int) -> Tensor:
        has_label = (target[:, :1] >= 0).to(target.dtype)
        return with_weight(target) * has_label

    def losses(self, rows: Tensor, labels: Tensor) -> Tensor:
        """Return the mean binary cross-entropy (n,)."""
        return _of_names(rows[:, :-1], labels[:, :-1], LEAST)

    def told(self, rows: Tensor, task: Task, scaled: Tensor) -> Tensor:
        return rows[:, :-1]

    def metrics(self, rows: Tensor, task: Task, target: Tensor) -> TorchTensors:
        answers = rows[:, :-1]
        right = ((answers >= PRESENT) == (target > 0)).all(1).to(torch.float32)
        return {
            names.LOSS_SUM: _of_names(answers, target, LEAST_MEASURED).sum(),
            names.NUM_CORRECT: right.sum(),
        }


CLASSES = OfClasses()
ANSWERS: dict[TaskName, Answers] = {
    CLASSIFICATION: CLASSES,
    MULTI_LABEL: OfNames(),
    REGRESSION: Answers(),
}
"""Rules of the tasks with neighbours: each window has one representation and one label."""


def with_weight(values: Tensor) -> Tensor:
    """Return rows of values (n, outputs), each with the weight 1."""
    return torch.cat([values, torch.ones_like(values[:, :1])], dim=1)


def _of_names(labels: Tensor, there: Tensor, least: float) -> Tensor:
    """Return the mean binary cross-entropy (n,) of probabilities (n, names).

    `there` is 1 for a name that is present, or 0. Probabilities below `least` count as `least`.
    """
    chosen = there * labels + (1 - there) * (1 - labels)
    return -chosen.clamp(min=least).log().mean(1)
