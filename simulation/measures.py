"""What the predictions of a device's model are worth, beside accuracy. Pure."""

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
    """What is measured of answers, as far as it means something in the task."""

    macro_f1: float | None = None
    auc: float | None = None
    mae: tuple[float, ...] | None = None
    """The mean absolute error of each quantity, in the user's units."""

    def named(self, quantities: Sequence[str]) -> dict[str, float]:
        """What there is of them, by name; of each quantity, ``mae/NAME``."""
        errors = (
            {}
            if self.mae is None
            else {f"mae/{name}": error for name, error in zip(quantities, self.mae, strict=True)}
        )
        shares = {"macro_f1": self.macro_f1, "auc": self.auc}
        return {name: value for name, value in shares.items() if value is not None} | errors


def measured_in(task: TaskName, quantities: Sequence[str]) -> tuple[str, ...]:
    """The names that `Measures.named` may have in a task."""
    if task == REGRESSION:
        return tuple(f"mae/{name}" for name in quantities)
    return {
        CLASSIFICATION: ("macro_f1",),
        SEQUENCE: ("macro_f1",),
        MULTI_LABEL: ("macro_f1", "auc"),
        RECONSTRUCTION: ("auc",),
    }[task]


def measure(task: TaskName, labels: Array, answers: Array) -> Measures:
    """The measures of answers (n, answers), or (n, steps, answers), of at least one example with
    its labels (n, \\*label), as `edge_client.work.executor.Executor.predict` gives them. In a
    reconstruction, labels are 1 where a window is anomalous, and 0 elsewhere."""
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
    """How often examples of a class (rows) were taken for a class (columns), (classes, classes)
    int64, for labels and predicted classes of one shape; where there is no label nothing is
    counted."""
    counts, labelled = np.zeros((num_classes, num_classes), np.int64), labels != NO_LABEL
    np.add.at(counts, (labels[labelled], predicted[labelled]), 1)
    return counts


def macro_f1(labels: Array, predicted: Array) -> float:
    """Mean over classes of F1, for labels (n,) and predicted classes (n,), both int, of at least
    one example.

    A class counts if it occurs among the labels or among the predictions. One that does neither has
    no F1: a device knows nothing of it. One that is predicted and does not occur has 0.

    Raises:
        ValueError: no examples, or not as many predictions.
    """
    if not len(labels) or labels.shape != predicted.shape:
        raise ValueError(
            f"labels {labels.shape} and predictions {predicted.shape}: expected the same number, "
            "at least one"
        )
    classes, which = np.unique(np.concatenate([labels, predicted]), return_inverse=True)
    true, said = which[: len(labels)], which[len(labels) :]
    hits, occur, answered = (
        np.bincount(part, minlength=len(classes)) for part in (true[true == said], true, said)
    )
    return float(np.mean(2 * hits / (occur + answered)))


def macro_f1_of_names(labels: Array, predicted: Array) -> float:
    """Mean over names of F1, for labels and predictions (n, names), 1 or true where a name is
    there, of at least one example.

    A name counts if it is among the labels or among the predictions, as in `macro_f1`. Where no
    name is, nothing was told wrongly: 1.
    """
    hits, occur, told = (
        ((labels > 0) & (predicted > 0)).sum(0),
        (labels > 0).sum(0),
        (predicted > 0).sum(0),
    )
    counts = occur + told > 0
    return float(np.mean(2 * hits[counts] / (occur + told)[counts])) if counts.any() else 1.0


def macro_auc(labels: Array, scores: Array) -> float | None:
    """Mean over names of the area under the ROC curve, for labels and scores (n, names): how
    probably an example that has the name has a higher score than one that has it not (ties count
    half). Names that all examples have, or none, do not count; None where no name does.

    J. A. Hanley, B. J. McNeil. The Meaning and Use of the Area under a Receiver Operating
    Characteristic Curve. Radiology 143, 1982.
    """
    areas = []
    for there, score in zip(labels.T > 0, scores.T, strict=True):
        if 0 < (count := int(there.sum())) < len(there):
            _, which, times = np.unique(score, return_inverse=True, return_counts=True)
            ranks = (np.cumsum(times) - (times - 1) / 2)[
                which
            ]  # from 1; those that tie share their mean
            areas.append(
                (ranks[there].sum() - count * (count + 1) / 2) / (count * (len(there) - count))
            )
    return float(np.mean(areas)) if areas else None
