"""What the predictions of a device's model are worth, beside accuracy. Pure."""

import numpy as np

from wire.tensors import Array


def macro_f1(labels: Array, predicted: Array) -> float:
    """Mean over classes of F1, for labels (n,) and predicted classes (n,), both int, of at least one example.

    A class counts if it occurs among the labels or among the predictions. One that does neither has no F1: a device knows nothing of it.
    One that is predicted and does not occur has 0.

    Raises:
        ValueError: no examples, or not as many predictions.
    """
    if not len(labels) or labels.shape != predicted.shape:
        raise ValueError(f"labels {labels.shape} and predictions {predicted.shape}: expected the same number, at least one")
    classes, which = np.unique(np.concatenate([labels, predicted]), return_inverse=True)
    true, said = which[: len(labels)], which[len(labels) :]
    hits, occur, answered = (np.bincount(part, minlength=len(classes)) for part in (true[true == said], true, said))
    return float(np.mean(2 * hits / (occur + answered)))
