"""Selection and order of the windows that an evaluation covers."""

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
    r"""Return the windows, labels, places and order of a split.

    The windows are x (n, \*window) and their labels y (n, \*label). The places are further inputs
    per window, by name (n,), and empty for `train`, `test` and `holdout`. The order (m,) holds the
    indices of the split's windows, shuffled with a fixed seed.

    Args:
        windows: the device's windows.
        label: the label of the bundle's task.
        name: `train`, `test`, `holdout`, `windows`, `unlabelled` or `inputs`.
        holdout: fraction of the training windows that is held out, as in the verb `evaluate`.
        most: maximum number of windows for the last three, 0 for no limit.
    """
    x, y = (
        (windows.test_x, windows.test_y) if name == "test" else (windows.train_x, windows.train_y)
    )
    places: Tensors = {}
    if name in ("windows", "unlabelled", "inputs"):
        x, y, places = _every_window(windows, label, name, holdout, most)
    # recordings are sorted by class, and a batch must hold several classes
    order = np.random.default_rng(0).permutation(len(y))
    return x, y, places, order[held_out(y, holdout)[order]] if name == "holdout" else order


def _every_window(
    windows: Windows, label: Label, name: str, holdout: float, most: int
) -> tuple[Array, Array, Tensors]:
    r"""Return windows x (n, \*window), labels y (n, \*label) and places of an unlabelled split.

    In ``windows`` and ``inputs`` the unlabelled windows follow the training windows; ``unlabelled``
    has the unlabelled ones only. These have `no_labels` in place of labels. In ``inputs`` all
    windows have, and none is held out. Windows of rank `most` or above
    are left out, unless `most` is 0. The places are float32 (n,): the ``rank`` of the window among
    all windows, the ``count`` of windows in the split, and ``holdout``, which is 1 if the window
    is held out.
    """
    num_train = windows.num_train
    rank = ranks(num_train, windows.num_unlabelled)
    takes_part = (rank < most) if most else np.ones(len(rank), bool)
    takes_part[:num_train] &= name != "unlabelled"
    labelled, others = takes_part[:num_train], takes_part[num_train:]
    x = (
        windows.train_x[labelled]
        if not others.any()
        else np.concatenate([windows.train_x[labelled], windows.unlabelled_x[others]])
    )
    y = np.concatenate([windows.train_y[labelled], no_labels(int(others.sum()), label)])
    if name == "inputs":  # which windows are held out follows from their labels
        y, holdout = no_labels(len(x), label), 0.0
    is_held_out = np.concatenate(
        [held_out(windows.train_y, holdout)[labelled], np.zeros(int(others.sum()), bool)]
    )
    places = zip(
        names.PLACES, (rank[takes_part], np.full(len(y), len(y)), is_held_out), strict=True
    )
    return x, y, {names.batch(place): values.astype(np.float32) for place, values in places}
