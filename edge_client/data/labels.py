"""DataReading and checking of labels, for devices and simulations alike.

The dtype and shape of an array say which labels it has. Whole numbers or names y (n,) are classes.
y (n, names) of 0 and 1 are several labels of a window, each present or absent. Other whole numbers
or names y (n, steps) are the classes of a window's steps. Floating-point numbers y (n, quantities)
are quantities. Each task accepts its kind of labels and no other.
"""

from collections.abc import Sequence

import numpy as np

from edge_client.core.ports import Windows
from wire.arrays.tensors import Array
from wire.bundle import Manifest
from wire.errors import DataError
from wire.tasks import (
    CLASSIFICATION,
    MULTI_LABEL,
    NO_LABEL,
    PRESENT,
    REGRESSION,
    SEQUENCE,
    Label,
    TaskName,
    label_of,
)

NAMED, TARGET = "label.", "target."
"""Prefixes of the columns of a recording, or channels of live data, with a label or a quantity."""
PARTS = {"train_y": "train", "test_y": "test"}
"""Names of the label arrays in error messages."""


def classes_of_steps(labels: Array, steps: int) -> Array:
    """Return the class (n, steps) int64 of each step, from labels (n, length) of the samples.

    A step has the class that all of its samples have, otherwise `NO_LABEL`. Steps are equal parts
    of a window.
    """
    parts = labels.reshape(len(labels), steps, labels.shape[1] // steps)
    return np.where((parts == parts[:, :, :1]).all(2), parts[:, :, 0], NO_LABEL).astype(np.int64)


def is_said(column: str) -> bool:
    """Return True if a column is a label or a quantity instead of a channel."""
    return column.startswith((NAMED, TARGET))


def of_samples(labels: Array, are_quantities: bool) -> Array:
    """Return the labels (n, names) of windows, from the labels of their samples.

    A quantity becomes its mean, float32. A name becomes 1 if it is present in at least half of the
    labelled samples, otherwise 0, int64. A window without a labelled sample gets 0.

    Args:
        said: labels (n, names, time) of the samples, NaN where a sample has none.
        are_quantities: True for quantities, False for names.
    """
    has_label: Array = ~np.isnan(labels)
    means: Array = np.where(has_label, labels, 0).sum(2) / np.maximum(has_label.sum(2), 1)
    return means.astype(np.float32) if are_quantities else (means >= PRESENT).astype(np.int64)


def check_labels(y: Array, count: int, origin: str) -> None:
    """Raise DataError if y are not the labels of `count` examples.

    Each example has a whole number or a name, a row of them, a quantity, or a row of quantities.
    The error starts with `origin` and suggests what is likely meant.

    Raises:
        DataError: y has another shape or dtype, or an impossible value.
    """
    description = f"{origin}: y is {y.dtype}{list(y.shape)}"
    if y.ndim == 2 and y.shape == (count, 1) and y.dtype.kind in "iub":
        raise DataError(f"{description}, expected int[{count}]: use y[:, 0]")
    fits, kind = y.ndim in (1, 2) and len(y) == count, y.dtype.kind
    several = (
        fits
        and y.ndim == 2
        and (kind == "b" or (kind in "iu" and (not y.size or int(y.min()) >= NO_LABEL)))
    )
    if fits and kind == "f":
        _check_finite(y, origin)
    elif fits and kind in "US":
        _check_names(y, origin)
    elif not several and not (fits and y.ndim == 1 and kind in "iu"):
        rows = (
            f"int[{count}, names] of 0 and 1, int[{count}, steps] from {NO_LABEL}, or "
            f"float[{count}, quantities]"
        )
        way = {"b": "y.astype(int)", "O": "y.astype(str)"}.get(kind, "") if y.ndim == 1 else ""
        hint = f": use {way}" if way else ""
        raise DataError(f"{description}, expected int[{count}], {rows}{hint}")


def are_steps(y: Array, names: Sequence[str]) -> bool:
    """Return True if labels y (n, \\*label) are the classes of steps.

    They are if they are rows of names, or of numbers that are not all 0 or 1. Rows of 0 and 1 are
    steps if there are two `names` and more columns than that.
    """
    if y.ndim != 2 or y.dtype.kind == "f":
        return False
    return (
        y.dtype.kind in "US" or len(names) == 2 < y.shape[1] or not bool(np.isin(y, (0, 1)).all())
    )


def are_one_hot(y: Array) -> bool:
    """Return True if labels y have a column for each class, with a single 1 in each row."""
    has_columns = y.ndim == 2 and y.shape[1] > 1
    return has_columns and bool(np.isin(y, (0, 1)).all() and (y.sum(1) == 1).all())


def _check_names(y: Array, origin: str) -> None:
    """Raise DataError if a name is empty or has blanks around it.

    Blanks would make it another name. Only a step may have an empty name: it has no label.
    """
    names, number = np.unique(y, return_inverse=True)
    for place, name in enumerate(map(str, names)):
        if y.ndim == 2 and not name:
            continue
        if not name.strip() or name != name.strip():
            index = int(np.argwhere(number.reshape(y.shape) == place)[0][0])
            hint = "no label" if not name.strip() else f"likely {name.strip()!r}"
            raise DataError(
                f"{origin}: y must hold names, got {name!r} at window {index} ({hint}); windows "
                "without a label belong in unlabelled.npz of the device's folder"
            )


def as_held(y: Array) -> Array:
    """Return labels that are numbers in their stored dtype.

    Quantities become (n, quantities) float32, all others int64.
    """
    if y.dtype.kind == "f":
        return np.ascontiguousarray(y if y.ndim > 1 else y[:, None], np.float32)
    return np.ascontiguousarray(y, np.int64)


def column_names(y: Array, names: Sequence[str], origin: str) -> tuple[str, ...]:
    """Return the names of the columns of labels y (n, names).

    Without `names` the columns are called by their numbers, a single quantity ``value``.

    Raises:
        DataError: the number of names is not the number of columns.
    """
    count = y.shape[1]
    if names and len(names) != count:
        raise DataError(f"{origin}: there are {len(names)} names for {count} labels of a window")
    return tuple(names) or (tuple(map(str, range(count))) if count > 1 else ("value",))


def class_numbers(y: Array, count: int, origin: str) -> Array:
    """Return labels that are numbers in their stored dtype (see `as_held`).

    Raises:
        DataError: they are names, or not the labels of `count` examples.
    """
    check_labels(y, count, origin)
    if y.dtype.kind in "US":
        raise DataError(
            f"{origin}: y holds names such as {str(y.ravel()[0])!r}, and no classes are listed; "
            "list them in classes.txt, one on each line, in the bundle's order"
        )
    return as_held(y)


def named_classes(y: Array, classes: Sequence[str], origin: str) -> Array:
    """Return labels y, (n,) or (n, steps), as numbers of `classes`, int64.

    A step without a name gets `NO_LABEL`.

    Raises:
        DataError: a name is not in `classes`.
    """
    number = {name: i for i, name in enumerate(classes)} | ({"": NO_LABEL} if y.ndim == 2 else {})
    flat_names = [str(name) for name in y.ravel().tolist()]
    if unknown := sorted(set(flat_names) - number.keys()):
        raise DataError(f"{origin}: no class {unknown[0]!r}. Known classes: {', '.join(classes)}.")
    return np.array([number[name] for name in flat_names], np.int64).reshape(y.shape)


def has_classes(y: Array) -> bool:
    """Return True if labels are classes, one for each example."""
    return y.ndim == 1


def strata(y: Array) -> Array:
    """Return the class (n,) int64 of each example, for a stratified split.

    All examples get the same class if the labels are not classes.
    """
    return y if has_classes(y) else np.zeros(len(y), np.int64)


def last_share_of_each_class(y: Array, share: float = 0.25) -> Array:
    """Return a boolean mask (n,) of the last `share` of each class's windows, in their order.

    A class with two or more windows has at least one in the mask and one outside it. If labels are
    not classes, the share is of all windows.
    """
    mask, classes = np.zeros(len(y), bool), strata(y)
    for label in np.unique(classes):
        at = np.flatnonzero(classes == label)
        count = min(len(at) - 1, max(1, round(share * len(at))) if len(at) > 3 else 1)
        mask[at[len(at) - count :]] = True
    return mask


def fit_labels(y: Array, task: TaskName, num_names: int, steps: int, origin: str) -> Array:
    """Return labels as a task expects them (`wire.tasks.label_of`).

    Without examples, labels of any kind are accepted. The error starts with `origin` and suggests
    what is likely meant.

    Args:
        y: labels (n, \\*label).
        task: the task.
        num_names: number of classes, names or quantities.
        steps: number of steps of a window.
        origin: source of the labels, for the error.

    Raises:
        DataError: the labels belong to another task, or to another number of names.
    """
    label = label_of(task, num_names, steps)
    if not len(y):
        return np.zeros((0, *label.shape), label.dtype)
    if y.dtype != label.dtype or y.shape[1:] != label.shape:
        expected = f"{label.dtype}{[len(y), *label.shape]} for {task}"
        raise DataError(
            f"{origin}: y must be {expected}, got {y.dtype}{list(y.shape)}{_likely(y, task)}"
        )
    if task == MULTI_LABEL and not np.isin(y, (0, 1)).all():
        at, column = (int(i) for i in np.argwhere(~np.isin(y, (0, 1)))[0])
        raise DataError(
            f"{origin}: y must be 1 where a name applies, else 0, for {task}, got {y[at, column]} "
            f"at window {at}, name {column}"
        )
    if task == SEQUENCE:
        _check_steps(y, num_names, origin)
    if task == REGRESSION:
        _check_finite(y, origin)
    return y


def _check_steps(y: Array, num_classes: int, origin: str) -> None:
    wrong = np.argwhere((y < NO_LABEL) | (y >= num_classes))
    if len(wrong):
        at, step = (int(i) for i in wrong[0])
        expected = (
            f"class numbers from 0 to {num_classes - 1}, or {NO_LABEL} for a step without a "
            f"label, for {SEQUENCE}"
        )
        raise DataError(
            f"{origin}: y must hold {expected}, got {y[at, step]} at window {at}, step {step}"
        )
    empty = np.flatnonzero((y == NO_LABEL).all(1))
    if len(empty):
        raise DataError(
            f"{origin}: no step of window {int(empty[0])} has a label; windows without a label "
            "belong in unlabelled.npz of the device's folder"
        )


def fit_labels_of(windows: Windows, manifest: Manifest) -> Windows:
    """Return a device's windows with the labels that a bundle's task expects.

    Windows that fit are returned unchanged.

    Raises:
        DataError: the labels belong to another task, or have a class or name that the bundle lacks.
    """
    labels = {"train_y": windows.train_y, "test_y": windows.test_y}
    if manifest.task in (MULTI_LABEL, REGRESSION) and windows.names not in ((), manifest.classes):
        others = f"the bundle's are {', '.join(manifest.classes)}"
        labels = {
            part: in_order(y, windows.names, manifest.classes, PARTS[part], others)
            for part, y in labels.items()
        }
    targets = {
        part: fit_labels(
            y, manifest.task, len(manifest.classes), manifest.window.steps, PARTS[part]
        )
        for part, y in labels.items()
    }
    for part, y in targets.items():
        if (
            manifest.task == CLASSIFICATION
            and len(y)
            and not 0 <= int(y.min()) <= int(y.max()) < len(manifest.classes)
        ):
            expected = (
                f"from 0 to {len(manifest.classes) - 1}, the classes of bundle {manifest.name} "
                f"({', '.join(manifest.classes[:8])})"
            )
            raise DataError(
                f"{PARTS[part]} labels must be {expected}, got {int(y.min())} to {int(y.max())}"
            )
    if targets["train_y"] is windows.train_y and targets["test_y"] is windows.test_y:
        return windows
    return Windows(
        windows.train_x,
        targets["train_y"],
        windows.test_x,
        targets["test_y"],
        windows.unlabelled_x,
        test_begins_s=windows.test_begins_s,
    )


def in_order(
    y: Array, names: Sequence[str], expected: Sequence[str], origin: str, others: str
) -> Array:
    """Return the columns of labels y (n, names) in the order of `expected`.

    Raises:
        DataError: `names` and `expected` differ. The error starts with `origin` and ends with
            `others`, which says what was expected.
    """
    if sorted(names) != sorted(expected):
        raise DataError(f"{origin}: labels are called {', '.join(names)}, and {others}")
    return np.ascontiguousarray(y[:, [list(names).index(name) for name in expected]])


def no_labels(count: int, label: Label) -> Array:
    """Return the placeholder (count, \\*label.shape) for the labels of unlabelled windows."""
    return np.full(
        (count, *label.shape), np.nan if label.dtype == "float32" else NO_LABEL, label.dtype
    )


def _check_finite(y: Array, origin: str) -> None:
    wrong = np.argwhere(~np.isfinite(y.astype(np.float32)))
    if len(wrong):
        raise DataError(
            f"{origin}: y must hold finite numbers, got {y[tuple(wrong[0])]} at window "
            f"{int(wrong[0][0])}"
        )


def _likely(y: Array, task: TaskName) -> str:
    """Return a hint at the kind of labels y, for the end of an error."""
    if y.dtype.kind == "f":
        column = ", or a column for each class, y.argmax(1)" if are_one_hot(y) else ""
        whole = ", or classes, y.astype(int)" if bool((y == np.round(y)).all()) else ""
        return (
            ": these are quantities, of the task regression, as in fedavg+regression"
            f"{column or whole}"
        )
    if y.ndim == 1:
        quantities = ", or quantities, y.astype(float)" if task == REGRESSION else ""
        return f": these are classes, one for each window, of the task classification{quantities}"
    if are_steps(y, ()):
        return ": these are classes of steps, of the task sequence, as in fedavg+sequence"
    if task == MULTI_LABEL:
        return ""
    if task == CLASSIFICATION and are_one_hot(y):
        several = "several labels of a window, of the task multi-label, as in fedavg+multi-label"
        return f": these are a column for each class, y.argmax(1), or {several}"
    return (
        ": these are several labels of a window, of the task multi-label, as in fedavg+multi-label"
    )
