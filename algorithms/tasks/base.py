"""What tasks have in common in which a model gives a number for each name of the data."""

from typing import ClassVar, Self

from algorithms.core.keys import Units
from wire.tasks import Label, TaskName, label_of


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
