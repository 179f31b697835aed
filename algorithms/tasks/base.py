"""Base class of tasks, which say what a model is to learn; traced into training graphs."""

from abc import ABC, abstractmethod
from typing import ClassVar, Self

from torch import Tensor

from algorithms.core.keys import Units
from algorithms.spec import WithOptions
from wire.tasks import TaskName


class Task(WithOptions, ABC):
    """The loss of an example, what is measured, and what a device answers.

    `scaled` are a batch's examples (batch, \\*window) as the model's first layer gets them:
    measurements in units of their channel's root mean square over the fleet.
    """

    name: ClassVar[str]
    citation: ClassVar[str]
    of: ClassVar[TaskName]
    """The task of the wire that it is a loss of: what devices do with labels and answers."""
    accuracy: str
    """Words for the examples whose share is the accuracy."""
    plain: bool = False
    """True if its loss is the cross-entropy and nothing else, which every backend has."""
    balanced: bool = False
    """True if the classes of a device are to count alike, by the device's own counts
    (`algorithms.tasks.balanced`)."""

    def in_units(self, units: Units | None) -> Self:
        """Return the same task, of quantities in these units; itself where it is not about
        quantities."""
        return self

    def outputs(self, window: tuple[int, ...], num_classes: int) -> int:
        """Return how many numbers a model gives for an example of this shape, or for each step of
        it, where there are so many classes."""
        return num_classes

    def answers(self, classes: tuple[str, ...]) -> tuple[str, ...]:
        """Return names for the numbers of `answer`, where these are the classes of the data."""
        return classes

    def check(self, num_outputs: int, steps: int) -> None:
        """Check that it goes with a model of so many outputs, and of so many steps; 0 where it
        answers an example as a whole.

        Raises:
            ConfigError: it does not.
        """

    def target(self, scaled: Tensor, y: Tensor) -> Tensor:
        """Return what a model's outputs are held against, of examples and their labels (batch,
        \\*label)."""
        return y

    @abstractmethod
    def losses(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss (batch,) of each example that training minimises, of a model's outputs
        (batch, outputs) float32, or (batch, steps, outputs), and their target."""

    def measured(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss (batch,) of each example that is reported: without what only helps
        training."""
        return self.losses(logits, target)

    @abstractmethod
    def right(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return 1 for each example (batch,) float32 that was answered rightly, else 0; of steps,
        their share. Accuracy is the mean."""

    @abstractmethod
    def answer(self, logits: Tensor, scaled: Tensor) -> Tensor:
        """Return what a device is told of its examples (batch, answers) float32, or (batch, steps,
        answers)."""
