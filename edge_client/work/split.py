"""Which windows of a device an evaluation is over, and in which order."""

import numpy as np

from edge_client.core.policy import ranks
from edge_client.core.ports import Windows
from edge_client.data.labels import no_labels
from wire.arrays import names
from wire.arrays.tensors import Array, Tensors
from wire.held import held_out
from wire.tasks import Label


def split_of(
    windows: Windows, label: Label, name: str, holdout: float = 0.0, most: int = 0
) -> tuple[Array, Array, Tensors, Array]:
    r"""Return a split (`train test holdout windows unlabelled`), as the verb `evaluate` says the
    rest: windows x (n, \*window) and their labels y (n, \*label); by name what else is said of each
    (n,); and the order (m,) of those that are meant."""
    x, y = (
        (windows.test_x, windows.test_y) if name == "test" else (windows.train_x, windows.train_y)
    )
    places: Tensors = {}
    if name in ("windows", "unlabelled"):
        x, y, places = _every_window(windows, label, name, holdout, most)
    order = np.random.default_rng(0).permutation(
        len(y)
    )  # recordings are sorted by class; a batch should not be
    return x, y, places, order[held_out(y, holdout)[order]] if name == "holdout" else order


def _every_window(
    windows: Windows, label: Label, name: str, holdout: float, most: int
) -> tuple[Array, Array, Tensors]:
    r"""The training windows, unless only those without labels are asked for, and after them these,
    x (n, \*window) and y (n, \*label), `no_labels`; and for each its ``rank`` among all of them,
    how many take part (``count``), and whether it is ``held`` out, all float32 (n,). Without those
    whose rank is `most` or above, unless it is 0."""
    of = windows.num_train
    rank = ranks(of, windows.num_unlabelled)
    takes_part = (rank < most) if most else np.ones(len(rank), bool)
    takes_part[:of] &= name == "windows"
    labelled, others = takes_part[:of], takes_part[of:]
    x = (
        windows.train_x[labelled]
        if not others.any()
        else np.concatenate([windows.train_x[labelled], windows.unlabelled_x[others]])
    )
    y = np.concatenate([windows.train_y[labelled], no_labels(int(others.sum()), label)])
    held = np.concatenate(
        [held_out(windows.train_y, holdout)[labelled], np.zeros(int(others.sum()), bool)]
    )
    places = zip(names.PLACES, (rank[takes_part], np.full(len(y), len(y)), held), strict=True)
    return x, y, {names.batch(place): values.astype(np.float32) for place, values in places}
