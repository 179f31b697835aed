"""What can be learned, and what a window's label is in each task (SPEC.md, 'Labels')."""

from typing import Literal, NamedTuple

TaskName = Literal["classification", "sequence", "multi-label", "regression", "reconstruction"]
CLASSIFICATION: TaskName = "classification"
SEQUENCE: TaskName = "sequence"
MULTI_LABEL: TaskName = "multi-label"
REGRESSION: TaskName = "regression"
RECONSTRUCTION: TaskName = "reconstruction"
NO_LABEL = -1
"""The class of a window that nobody has labelled, and of a step; where a label is several numbers,
each of them. Quantities are then no numbers (NaN)."""
PRESENT = 0.5
"""Of several labels, one whose probability is at least so much is told to be there."""


class Label(NamedTuple):
    """The label of one window: the type of its numbers, and their shape."""

    dtype: Literal["int64", "float32"]
    shape: tuple[int, ...]


def label_of(task: TaskName, num_names: int, steps: int) -> Label:
    """What a window's label is in a task with so many names, and windows of so many steps: its
    class; the class of each step; of each name 1 where it is there and 0 where it is not; or its
    quantities."""
    if task == REGRESSION:
        return Label("float32", (num_names,))
    if task == SEQUENCE:
        return Label("int64", (steps,))
    return Label("int64", (num_names,) if task == MULTI_LABEL else ())


def answer_of(task: TaskName, num_names: int, steps: int) -> tuple[int, ...]:
    """The shape of the answer to a window: a number for each name, or for each name of each
    step."""
    return (steps, num_names) if task == SEQUENCE else (num_names,)


def split_unlabelled(num_train: int, num_test: int, num_unlabelled: int) -> tuple[int, int]:
    """How many windows a device trains on and how many it tests on, in a task that needs no labels:
    those without a label come after those with one, and where none was set apart for testing, the
    last quarter of all is."""
    count = num_train + num_unlabelled
    held_back = 0 if num_test or not num_unlabelled else count // 4
    return count - held_back, num_test or held_back
