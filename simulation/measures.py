"""Quality measures of a device's predictions other than accuracy. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wire.arrays.tensors import Array
from wire.tasks import (
    CLASSIFICATION,
    MULTI_LABEL,
    NO_LABEL,
    PRESENT,
    RECONSTRUCTION,
    REGRESSION,
    SEQUENCE,
    TaskName,
)


@dataclass(frozen=True)
class Measures:
    """Measures of a device's predictions; None if a measure has no meaning in the task."""

    macro_f1: float | None = None
    auc: float | None = None
    mae: tuple[float, ...] | None = None
    """Mean absolute error of each quantity, in the user's units."""

    def named(self, quantities: Sequence[str]) -> dict[str, float]:
        """Return the available measures by name; the error of a quantity is ``mae/NAME``."""
        errors = (
            {}
            if self.mae is None
            else {f"mae/{name}": error for name, error in zip(quantities, self.mae, strict=True)}
        )
        shares = {"macro_f1": self.macro_f1, "auc": self.auc}
        return {name: value for name, value in shares.items() if value is not None} | errors


def measured_in(task: TaskName, quantities: Sequence[str]) -> tuple[str, ...]:
    """Return the names that `Measures.named` may contain in a task."""
    if task == REGRESSION:
        return tuple(f"mae/{name}" for name in quantities)
    return {
        CLASSIFICATION: ("macro_f1",),
        SEQUENCE: ("macro_f1",),
        MULTI_LABEL: ("macro_f1", "auc"),
        RECONSTRUCTION: ("auc",),
    }[task]


def measure(task: TaskName, labels: Array, answers: Array) -> Measures:
    """Return the measures of answers to at least one example.

    Answers are (n, answers), or (n, steps, answers), as
    `edge_client.work.executor.Executor.predict` returns them. Labels are (n, \\*label); in a
    reconstruction they are 1 for an anomalous window and 0 otherwise.
    """
    if task == CLASSIFICATION:
        return Measures(macro_f1(labels, answers.argmax(1)))
    if task == SEQUENCE:
        labelled = labels != NO_LABEL
        return Measures(macro_f1(labels[labelled], answers.argmax(2)[labelled]))
    if task == MULTI_LABEL:
        return Measures(macro_f1_of_names(labels, answers >= PRESENT), macro_auc(labels, answers))
    if task == REGRESSION:
        return Measures(mae=tuple(np.abs(labels.astype(np.float64) - answers).mean(0).tolist()))
    if task == RECONSTRUCTION:
        return Measures(auc=macro_auc(labels[:, None], answers))
    return Measures()


def confusion(labels: Array, predicted: Array, num_classes: int) -> Array:
    """Return the confusion matrix (classes, classes) int64, with true classes as rows.

    Labels and predicted classes have the same shape. Examples without a label are not counted.
    """
    counts, labelled = np.zeros((num_classes, num_classes), np.int64), labels != NO_LABEL
    np.add.at(counts, (labels[labelled], predicted[labelled]), 1)
    return counts


def macro_f1(labels: Array, predicted: Array) -> float:
    """Return the mean of F1 over classes, for labels (n,) and predicted classes (n,), both int.

    A class counts if it occurs among the labels or the predictions. Any other class has no F1,
    since the device has no evidence of it. A class that is predicted but does not occur has F1 = 0.

    Raises:
        ValueError: there are no examples, or labels and predictions differ in number.
    """
    if not len(labels) or labels.shape != predicted.shape:
        raise ValueError(
            "labels and predictions must have the same shape and at least one value, got "
            f"{labels.shape} and {predicted.shape}"
        )
    classes, which = np.unique(np.concatenate([labels, predicted]), return_inverse=True)
    true, predictions = which[: len(labels)], which[len(labels) :]
    hits, occur, answered = (
        np.bincount(part, minlength=len(classes))
        for part in (true[true == predictions], true, predictions)
    )
    return float(np.mean(2 * hits / (occur + answered)))


def macro_f1_of_names(labels: Array, predicted: Array) -> float:
    """Return the mean of F1 over names, for labels and predictions (n, names).

    There is at least one example. Labels and predictions are 1 or true for a name that applies. A
    name counts if it is among the labels or among the predictions, as in `macro_f1`. The result is
    1 if no name counts, since there is no error.
    """
    hits, occur, num_predicted = (
        ((labels > 0) & (predicted > 0)).sum(0),
        (labels > 0).sum(0),
        (predicted > 0).sum(0),
    )
    counts = occur + num_predicted > 0
    return (
        float(np.mean(2 * hits[counts] / (occur + num_predicted)[counts])) if counts.any() else 1.0
    )


def macro_auc(labels: Array, scores: Array) -> float | None:
    """Return the mean over names of the area under the ROC curve, for labels and scores (n, names).

    The area is the probability that an example with the name has a higher score than one without
    it; ties count half. Names that apply to all examples or to none do not count. The result is
    None if no name counts.

    J. A. Hanley, B. J. McNeil. The Meaning and Use of the Area under a Receiver Operating
    Characteristic Curve. Radiology 143, 1982.
    """
    areas = []
    for there, score in zip(labels.T > 0, scores.T, strict=True):
        if 0 < (count := int(there.sum())) < len(there):
            _, which, times = np.unique(score, return_inverse=True, return_counts=True)
            # ranks count from 1; equal scores share their mean rank
            ranks = (np.cumsum(times) - (times - 1) / 2)[which]
            areas.append(
                (ranks[there].sum() - count * (count + 1) / 2) / (count * (len(there) - count))
            )
    return float(np.mean(areas)) if areas else None
