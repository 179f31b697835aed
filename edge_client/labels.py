"""What labels must be like, for devices and simulations alike: how they are read, and whether they are those of a task.

Labels are held as they are read, and the type of an array says what they are: whole numbers or names y (n,) are classes, and whole numbers
y (n, names) several labels of a window, each there or not. A task takes the labels that it learns, and no others.
"""

from collections.abc import Sequence

import numpy as np

from edge_client.core.ports import Windows
from wire.bundle import Manifest
from wire.errors import DataError
from wire.tasks import CLASSIFICATION, MULTI_LABEL, NO_LABEL, Label, TaskName, label_of
from wire.tensors import Array

PARTS = {"train_y": "train", "test_y": "test"}
"""What errors call the labels of a device's windows."""


def check_labels(y: Array, count: int, origin: str) -> None:
    """Check that labels are those of `count` examples: a whole number or a name for each, or a row of 0 and 1.

    Raises:
        DataError: they are not; the text says what is likely meant. `origin` begins it.
    """
    told = f"{origin}: y is {y.dtype}{list(y.shape)}"
    if y.ndim == 2 and y.shape == (count, 1):
        raise DataError(f"{told}: expected int[{count}], y[:, 0]")
    several = y.ndim == 2 and len(y) == count and y.dtype.kind in "iub" and bool(np.isin(y, (0, 1)).all())
    if several or (y.shape == (count,) and y.dtype.kind in "iuUS"):
        return
    whole = y.dtype.kind == "f" and len(y) == count and bool(np.isfinite(y).all() and (y == np.round(y)).all())
    raise DataError(f"{told}, expected int[{count}], or int[{count}, names] of 0 and 1" + (", y.astype(int)" if whole else ""))


def class_numbers(y: Array, count: int, origin: str) -> Array:
    """Labels y (n,), or (n, names), as they are held: int64.

    Raises:
        DataError: as `check_labels`, or they are names.
    """
    check_labels(y, count, origin)
    if y.dtype.kind in "US":
        raise DataError(
            f"{origin}: y holds names such as {str(y[0])!r}: list the classes in classes.txt, one a line, in the bundle's order"
        )
    return np.ascontiguousarray(y, np.int64)


def named_classes(y: Array, classes: Sequence[str], origin: str) -> Array:
    """Labels y (n,) that are names of `classes`, as class numbers, int64.

    Raises:
        DataError: a name that is no class.
    """
    number = {name: i for i, name in enumerate(classes)}
    found = [str(name) for name in y.tolist()]
    if unknown := sorted(set(found) - number.keys()):
        raise DataError(f"{origin}: y holds {unknown[0]!r}: expected one of {', '.join(classes)}")
    return np.array([number[name] for name in found], np.int64)


def has_classes(y: Array) -> bool:
    """Whether labels are classes, one for each example."""
    return y.ndim == 1


def strata(y: Array) -> Array:
    """The class (n,) int64 of each example, by which examples are divided evenly; all of one where labels are no classes."""
    return y if has_classes(y) else np.zeros(len(y), np.int64)


def fit_labels(y: Array, task: TaskName, num_names: int, origin: str) -> Array:
    """Labels as a task takes them (`wire.tasks.label_of`). Of no example there may be any.

    Raises:
        DataError: they are labels of another task, or of another number of names; the text says what is likely meant. `origin` begins it.
    """
    label = label_of(task, num_names)
    if not len(y):
        return np.zeros((0, *label.shape), label.dtype)
    if y.dtype != label.dtype or y.shape[1:] != label.shape:
        expected = f"{task} takes {label.dtype}{[len(y), *label.shape]}"
        raise DataError(f"{origin}: y is {y.dtype}{list(y.shape)}, and {expected}{_likely(y, task)}")
    if task == MULTI_LABEL and not np.isin(y, (0, 1)).all():
        at, column = (int(i) for i in np.argwhere(~np.isin(y, (0, 1)))[0])
        raise DataError(f"{origin}: y holds {y[at, column]} at window {at}, name {column}: {task} takes 1 where a name is there, else 0")
    return y


def fit_labels_of(windows: Windows, manifest: Manifest) -> Windows:
    """A device's windows with the labels that a bundle's task takes. Those that fit are returned as they are.

    Raises:
        DataError: as `fit_labels`, or a class that the bundle does not have.
    """
    held = {"train_y": windows.train_y, "test_y": windows.test_y}
    made = {part: fit_labels(y, manifest.task, len(manifest.classes), PARTS[part]) for part, y in held.items()}
    for part, y in made.items():
        if manifest.task == CLASSIFICATION and len(y) and not 0 <= int(y.min()) <= int(y.max()) < len(manifest.classes):
            known = f"bundle {manifest.name} has classes 0..{len(manifest.classes) - 1}, in the order {', '.join(manifest.classes[:8])}"
            raise DataError(f"{PARTS[part]} labels reach {int(y.min())}..{int(y.max())}, {known}")
    if all(made[part] is y for part, y in held.items()):
        return windows
    return Windows(windows.train_x, made["train_y"], windows.test_x, made["test_y"], windows.unlabelled_x)


def no_labels(count: int, label: Label) -> Array:
    """What stands for the labels of windows that nobody has labelled (count, \\*label.shape)."""
    return np.full((count, *label.shape), NO_LABEL, label.dtype)


def _likely(y: Array, task: TaskName) -> str:
    if task == CLASSIFICATION and y.ndim == 2:
        if (y.sum(1) == 1).all():
            return ": these are a column for each class, y.argmax(1)"
        return ": where a window has several labels the task is multi-label, as in fedavg+multi-label"
    if task == MULTI_LABEL and y.ndim == 1:
        return ": these are classes, one for each window: the task is classification, or give a column of 0 and 1 for each name"
    return ""
