"""UCI HAR as two of the papers have it, written to files that runs read as data.

``reshaped``: DBE. The authors' library PFLlib turns each window (9, 128) over to (128, 9), and then
reshapes it to (9, 128) where it would have to turn it back: a channel of the result mixes nine
signals. A user's windows are divided at random afterwards, by the partition.

``last-quarter``: DistFL. The paper names no users and no division. The denominators of 18 of the
20 rows of its Table 4 are a quarter of a user's windows, for the users in `DISTFL_USERS`; the
totals of its Table 1 (5,408 and 1,984 windows) are not those of these users (5,091 and 1,705). The
last quarter of a user's rows, in the order of the data set, is the only one of the usual ways that
leaves its Local below its FedAvg. All standing and sitting is then in the training parts.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from simulation.datasets.catalog import find_uci_har
from simulation.datasets.uci_har import read_rows
from wire.arrays.tensors import Array

DISTFL_USERS = (1, 2, 3, 5, 6, 7, 8, 9, 11, 12, 13, 17, 19, 21, 22, 24, 26, 28, 29, 30)
TEST_SHARE = 0.25

Rows = dict[str, Array]


def reshaped(rows: Rows) -> Rows:
    """Windows (n, channels, time) turned over and reshaped to what they were."""
    x = rows["X"]
    return {**rows, "X": x.transpose(0, 2, 1).reshape(x.shape)}


def last_quarter(rows: Rows) -> Rows:
    """DistFL's users; of each one's rows the last quarter, rounded up, is for testing."""
    rows = {
        name: values[np.isin(rows["subject"], DISTFL_USERS)]
        if len(values) == len(rows["y"])
        else values
        for name, values in rows.items()
    }
    split = np.full(len(rows["y"]), "train")
    for user in DISTFL_USERS:
        at = np.flatnonzero(rows["subject"] == user)
        split[at[int((1 - TEST_SHARE) * len(at)) :]] = "test"
    return {**rows, "split": split}


FORMS: dict[str, Callable[[Rows], Rows]] = {"reshaped": reshaped, "last-quarter": last_quarter}


def write(form: str, folder: Path) -> Path:
    """Write a form of the data to its file, unless it is there. Returns its path.

    Raises:
        DataError: UCI HAR is not where SHOAL_DATA says.
    """
    path = folder / "data" / f"uci-har-{form}.npz"
    if path.exists():
        return path
    made = FORMS[form](
        {name: values for name, values in read_rows(find_uci_har()).items() if name != "split"}
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part.npz")
    np.savez(part, **made)  # type: ignore[arg-type]
    part.replace(path)
    return path
