"""Windows of a stretch of a recording, and their parts for training and testing; pure."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from edge_client.data.array_store import blocks, places_of, release
from edge_client.data.labels import TARGET, classes_of_steps, of_samples
from edge_client.data.recordings.stretches import TrackPiece
from wire.arrays.tensors import Array
from wire.tasks import NO_LABEL

TEST_SHARE = 0.25
EVERY = 4
"""One of so many runs of a class that are too short for both parts is for testing."""


TRAIN, TEST, NEITHER = 0, 1, 2
"""Parts of a recording's windows."""


def parts_of_run(count: int, length: int, stride: int, place: int) -> Array:
    """Return the parts (count,) of the windows of consecutive samples of one class.

    The last quarter is for testing, or less in a short run, so that more windows are for training.
    Between the last training window and the first test window lies a window's length. Of runs that
    are too short for both parts, one of `EVERY` is for testing, and the others are for training.

    Args:
        count: number of windows of the run.
        length: number of samples of a window.
        stride: number of samples between the starts of two windows.
        place: number of runs of this class before it that are too short.
    """
    tested = max(1, round(TEST_SHARE * count))
    between = -(-2 * length // stride) - 1
    if (used := count - between) <= tested:
        return np.full(count, TEST if place % EVERY == EVERY - 1 else TRAIN)
    tested = max(1, min(tested, (used - 1) // 2))
    return np.repeat([TRAIN, NEITHER, TEST], [used - tested, between, tested])


def cut_samples(samples: Array, length: int, stride: int) -> Array:
    """Return windows (n, channels, length) of samples (time, channels), one every `stride`.

    There are none if the samples are too few.
    """
    if len(samples) < length:
        return np.zeros((0, samples.shape[1], length), samples.dtype)
    return np.lib.stride_tricks.sliding_window_view(samples, length, axis=0)[::stride]


class SessionCut(NamedTuple):
    """Windows x (n, channels, time), labels y (n, \\*label), and their parts and places (n,).

    The windows are views of their samples.
    """

    x: Array
    y: Array
    labelled: Array
    part: Array
    start: Array


def cuts_of(
    piece: TrackPiece,
    names: Sequence[str],
    length: int,
    stride: int,
    steps: int,
    short: dict[int, int],
    runs: list[int],
) -> Iterator[SessionCut]:
    """Yield the windows of each run of a stretch.

    `short` counts short runs by class. `runs` gets the number of samples of each run.
    """
    labels = piece.labels
    edges = [0, len(piece.x)]
    if not names and not steps:
        edges = [0, *places_of(labels, np.not_equal), len(labels)]
    for begin, end in pairwise(edges):
        runs.append(end - begin)
        x = cut_samples(piece.x[begin:end], length, stride)
        if not len(x):
            continue
        if names:
            values = cut_samples(labels[begin:end], length, stride)
            y = np.concatenate(
                [of_samples(values[at], names[0].startswith(TARGET)) for at in blocks(values)]
            )
            labelled = np.concatenate(
                [(~np.isnan(values[at])).sum(2).min(1) > 0 for at in blocks(values)]
            )
        elif steps:
            values = cut_samples(labels[begin:end, None], length, stride)[:, 0]
            y = np.concatenate([classes_of_steps(values[at], steps) for at in blocks(values)])
            labelled = (y != NO_LABEL).any(1)
        else:
            y = np.full(len(x), labels[begin], np.int64)
            labelled = y != NO_LABEL
        number = NO_LABEL if names or steps else int(labels[begin])
        part = parts_of_run(len(x), length, stride, short.get(number, 0))
        if not (part == NEITHER).any() and len(set(part.tolist())) == 1:
            short[number] = short.get(number, 0) + 1
        release(labels)
        yield SessionCut(x, y, labelled, part, piece.start + begin + stride * np.arange(len(x)))
