"""What is said of a model's answer to one window."""

from collections.abc import Sequence
from typing import Any

from wire.arrays.tensors import Array
from wire.tasks import CLASSIFICATION, MULTI_LABEL, PRESENT, REGRESSION, SEQUENCE, TaskName


def told(task: TaskName, names: Sequence[str], answer: Array) -> dict[str, Any]:
    """The class and the probability of each class; of steps the class of each, and by class its
    probability in each; of several labels those that are there, and the probability of each name;
    else the numbers by their names. `answer` is a row of `Model.predict`."""
    if task == SEQUENCE:
        of_steps = {
            name: [round(float(value), 6) for value in column]
            for name, column in zip(names, answer.T, strict=True)
        }
        return {"classes": [names[at] for at in answer.argmax(1)], "probabilities": of_steps}
    numbers = {name: round(float(value), 6) for name, value in zip(names, answer, strict=True)}
    if task == CLASSIFICATION:
        return {"class": max(numbers, key=numbers.__getitem__), "probabilities": numbers}
    if task == MULTI_LABEL:
        return {
            "labels": [name for name, value in numbers.items() if value >= PRESENT],
            "probabilities": numbers,
        }
    if task == REGRESSION:  # to seven digits, which float32 has, however small the unit
        return {
            name: float(f"{float(value):.7g}") for name, value in zip(names, answer, strict=True)
        }
    return numbers
