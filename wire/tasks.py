"""Tasks that can be learned, and the labels of windows in each (SPEC.md, 'Labels')."""

from typing import Literal, NamedTuple

TaskName = Literal["classification", "sequence", "multi-label", "regression", "reconstruction"]
CLASSIFICATION: TaskName = "classification"
SEQUENCE: TaskName = "sequence"
MULTI_LABEL: TaskName = "multi-label"
REGRESSION: TaskName = "regression"
RECONSTRUCTION: TaskName = "reconstruction"
NO_LABEL = -1
"""Class of an unlabelled window or step.

If a label has several numbers, each of them is -1. Unlabelled quantities are NaN.
"""
PRESENT = 0.5
"""Minimum probability at which one of several labels is reported as present."""


class Label(NamedTuple):
    """Form of one window's label: the dtype of its numbers, and their shape."""

    dtype: Literal["int64", "float32"]
    shape: tuple[int, ...]


def label_of(task: TaskName, num_names: int, steps: int) -> Label:
    """Return the form of a window's label in a task.

    It is the window's class; the class of each of its steps; for each name 1 if it is present, else
    0; or its quantities.
    """
    if task == REGRESSION:
        return Label("float32", (num_names,))
    if task == SEQUENCE:
        return Label("int64", (steps,))
    return Label("int64", (num_names,) if task == MULTI_LABEL else ())


def answer_of(task: TaskName, num_names: int, steps: int) -> tuple[int, ...]:
    """Return the shape of the answer to a window: a number per name, or per step and name."""
    return (steps, num_names) if task == SEQUENCE else (num_names,)


def split_unlabelled(num_train: int, num_test: int, num_unlabelled: int) -> tuple[int, int]:
    """Return the numbers of training and test windows of a device in a task without labels.

    Unlabelled windows follow the labelled ones. If no windows were reserved for testing, the last
    quarter of all windows is.
    """
    count = num_train + num_unlabelled
    held_back = 0 if num_test or not num_unlabelled else count // 4
    return count - held_back, num_test or held_back
