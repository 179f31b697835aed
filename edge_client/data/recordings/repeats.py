"""Rows that repeat others, or come in bursts, and files with the same content; pure."""

import numpy as np

from edge_client.data.recordings.resampling import longest_interval_s
from wire.arrays.tensors import Array

MANY = 0.3
"""Share of repeated rows in a file above which they are not a coincidence."""
FEWEST_AGAIN = 50
"""Minimum number of repeated rows away from the rows that they repeat."""

BURST = 3.0
"""Ratio of the usual to the mean rate of rows above which rows come in bursts."""


def row_hashes(hashed: Array, numbers: Array) -> Array:
    """Return hashes (n,) uint64 of rows: those of their earlier columns, with one more column."""
    product = hashed * np.uint64(0x9E3779B97F4A7C15)
    values = numbers.astype(np.float64).view(np.uint64)
    return np.asarray((product ^ (product >> np.uint64(29))) + values)


def new_rows(t: Array, hashed: Array) -> tuple[Array, str]:
    """Return the rows to read, without repeats of the row before, and a remark or "".

    Few repeats are not left out.

    Args:
        t: times (n,) of a file's first rows.
        hashed: hashes (n,) of their times and values (`row_hashes`).
    """
    same = t[1:] == t[:-1]
    repeats = same & (hashed[1:] == hashed[:-1])
    if repeats.sum() >= max(1, MANY * len(t), 0.99 * same.sum()):
        share = f"{repeats.mean():.0%} of the rows repeat the row before them, with its time"
        return np.flatnonzero(np.append(True, ~repeats)), f"{share}, and are left out"
    num_again = len(hashed) - len(np.unique(hashed))
    is_again = num_again >= max(FEWEST_AGAIN, MANY * len(t)) and same.sum() < 0.01 * len(t)
    remark = (
        f"{num_again} rows have the time and the values of an earlier row, so the same samples are "
        "for training and for testing. Remove the rows that come again"
    )
    return np.arange(len(t)), remark if is_again else ""


def rate_without_bursts(t: Array, rate_hz: float) -> float:
    """Return the mean rate of rows between gaps if rows come in bursts, else 0.

    Args:
        t: times (n,) of the rows in seconds.
        rate_hz: rate by the usual interval.
    """
    steps = np.diff(t[np.isfinite(t)])
    steps = steps[(steps >= 0) & (steps <= longest_interval_s(1 / rate_hz, rate_hz))]
    mean_hz = 1 / steps.mean()
    return float(f"{mean_hz:.3g}") if rate_hz > BURST * mean_hz else 0.0


def copy_remark(name: str, other: str) -> str:
    """Return the remark about two recordings with the same content."""
    return (
        f"{name} and {other} have the same times and values, so the same samples are for training "
        "and for testing. Remove one of them"
    )
