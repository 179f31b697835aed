"""Base class of tasks, which define what a model learns; traced into training graphs."""

from abc import ABC, abstractmethod
from typing import ClassVar, Self

from torch import Tensor

from algorithms.core.keys import Units
from algorithms.spec import WithOptions
from wire.tasks import TaskName


class Task(WithOptions, ABC):
    r"""A task: the loss of an example, the metrics, and the answers of `predict`.

    `scaled` are the examples of a batch (batch, \*window) as the model's first layer receives them:
    measurements in units of their channel's root mean square over the fleet.
    """

    name: ClassVar[str]
    citation: ClassVar[str]
    of: ClassVar[TaskName]
    """Kind of task in the protocol, which determines how devices handle labels and answers."""
    accuracy: str
    """Noun phrase for the examples whose share is the accuracy."""
    plain: bool = False
    """True if its loss is the cross-entropy and nothing else, which every backend has."""
    balanced: bool = False
    """True if a device's classes count alike, by its own counts (`algorithms.tasks.balanced`)."""

    def in_units(self, units: Units | None) -> Self:
        """Return this task for quantities in these units; itself if it has no quantities."""
        return self

    def outputs(self, window: tuple[int, ...], num_classes: int) -> int:
        """Return the number of outputs of a model for one example, or for each step of an example.

        Args:
            window: shape of an example.
            num_classes: number of classes of the data.
        """
        return num_classes

    def answers(self, classes: tuple[str, ...]) -> tuple[str, ...]:
        """Return a name for each number of `answer`, given the classes of the data."""
        return classes

    def check(self, num_outputs: int, steps: int) -> None:
        """Check that the task fits a model with these outputs and steps.

        Args:
            num_outputs: number of outputs of the model.
            steps: number of steps for which the model has outputs; 0 if it answers an example as a
                whole.

        Raises:
            ConfigError: the task does not fit the model.
        """

    def target(self, scaled: Tensor, y: Tensor) -> Tensor:
        r"""Return the targets of a model's outputs.

        `y` are the labels of the examples (batch, \*label).
        """
        return y

    @abstractmethod
    def losses(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the training loss (batch,) of each example.

        Args:
            logits: outputs of the model, (batch, outputs) or (batch, steps, outputs) float32.
            target: their targets.
        """

    def measured(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the reported loss (batch,) of each example, without terms for training only."""
        return self.losses(logits, target)

    @abstractmethod
    def right(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return 1 for each correctly answered example, else 0: (batch,) float32.

        For sequences it is the share of correct steps. Accuracy is the mean over examples.
        """

    @abstractmethod
    def answer(self, logits: Tensor, scaled: Tensor) -> Tensor:
        """Return the answers of `predict`, (batch, answers) or (batch, steps, answers) float32."""
