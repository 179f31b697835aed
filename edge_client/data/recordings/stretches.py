"""Stretches of a recording: consecutive samples at one rate, without a gap; pure.

Two samples enclose a gap by the rule of live data (`edge_client.data.recordings.resampling`).
Samples that come regularly at the rate stay as they are. Others are brought onto the rate, as live
data are.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from edge_client.data.array_store import BLOCK, ArrayStore, blocks, places_of
from edge_client.data.recordings.resampling import (
    LATE_S,
    Resampler,
    Samples,
    Stretch,
    longest_interval_s,
)
from edge_client.data.tables.clock import FIRST
from wire.arrays.tensors import Array

SAME_RATE = 0.05
"""Largest difference of two rates, as a share, at which samples stay as they are."""
IRREGULAR = 0.1
"""Share of uneven intervals above which samples are brought onto the rate."""
ASSUMED_HZ = 50.0
"""Rate by which a gap in a column is judged in a recording without times."""


class TrackPiece(NamedTuple):
    """Samples x (n, channels) float32 without a gap, and their labels (n,) or (n, names).

    `start` is the place of the first sample in its recording.
    """

    x: Array
    labels: Array
    start: int


def pieces(
    t: Array | None, x: Array, labels: Array, rate_hz: float, store: ArrayStore
) -> Iterator[TrackPiece]:
    """Yield the stretches of a recording.

    Args:
        t: times (n,) of the samples in seconds; None if they are unknown.
        x: values (n, channels), NaN if a value is missing.
        labels: classes (n,), or numbers (n, names), NaN if there is none.
        rate_hz: rate of the stretches; 0 if it is unknown.
        store: source of arrays for samples that are brought onto the rate.
    """
    if not len(x):
        return
    if t is None:
        if _is_finite(x):
            yield TrackPiece(x, labels, 0)
        else:
            at_s = np.arange(len(x)) / ASSUMED_HZ
            yield from _on_rate(at_s, x, labels, ASSUMED_HZ, store)
        return
    # the clock was set back, or began anew
    begins = places_of(t, lambda before, after: after - before < -LATE_S)
    place = 0
    for begin, end in pairwise([0, *begins, len(t)]):
        clock, samples, y = t[begin:end], x[begin:end], labels[begin:end]
        if places_of(clock, lambda before, after: after < before):
            order = np.argsort(clock, kind="stable")
            clock, samples, y = (store.selected(a, order) for a in (clock, samples, y))
        for piece in _of_clock(clock, samples, y, rate_hz, store):
            yield piece._replace(start=place + piece.start)
        place += len(clock) if not rate_hz else round((clock[-1] - clock[0]) * rate_hz) + 1


def is_regular(t: Array, rate_hz: float) -> bool:
    """Return True if samples at these times (n,) come at the rate, so that they may stay."""
    longest_s, usual, uneven, count = longest_interval_s(1 / rate_hz, rate_hz), 0.0, 0, 0
    for block in blocks(t):
        steps = np.diff(t[block.start : block.stop + 1])
        steps = steps[steps <= longest_s]
        if len(steps):
            usual = usual or float(np.median(steps))
            uneven += int((np.abs(steps - usual) > usual / 2).sum())
            count += len(steps)
    if not count:
        return True
    return bool(abs(usual * rate_hz - 1) <= SAME_RATE and uneven <= IRREGULAR * count)


def _is_finite(x: Array) -> bool:
    return all(np.isfinite(x[block]).all() for block in blocks(x))


def _of_clock(
    t: Array, x: Array, labels: Array, rate_hz: float, store: ArrayStore
) -> Iterator[TrackPiece]:
    if not rate_hz:
        yield TrackPiece(x, labels, 0)
        return
    if not _is_finite(x) or not is_regular(t, rate_hz):
        yield from _on_rate(t, x, labels, rate_hz, store)
        return
    longest_s = longest_interval_s(1 / rate_hz, rate_hz)
    breaks = places_of(t, lambda before, after: after - before > longest_s)
    for begin, end in pairwise([0, *breaks, len(t)]):
        yield TrackPiece(x[begin:end], labels[begin:end], round((t[begin] - t[0]) * rate_hz))


def _on_rate(
    t: Array, x: Array, labels: Array, rate_hz: float, store: ArrayStore
) -> Iterator[TrackPiece]:
    """Yield the stretches that live data would have of these samples, in order of time."""
    resampler = Resampler(x.shape[1], rate_hz)
    first = x[:FIRST]
    resampler.expect([_usual_s(t[: len(first)][np.isfinite(column)]) for column in first.T])

    def stretches() -> Iterator[Stretch]:
        for block in blocks(x):
            yield from resampler.push(Samples(t[block], x[block].astype(np.float64)))
        yield from resampler.flush()

    run, stored = list[Array](), list[Array]()
    begin_s = 0.0
    for stretch in stretches():
        if stretch.begins and run + stored:
            yield _labelled(store.joined(stored + run), begin_s, t, labels, rate_hz, store)
            run, stored = [], []
        begin_s = begin_s if run + stored else stretch.t0_s
        run.append(stretch.x)
        if sum(part.nbytes for part in run[:1]) * len(run) > BLOCK:
            stored, run = [*stored, store.joined(run)], []
    if run + stored:
        yield _labelled(store.joined(stored + run), begin_s, t, labels, rate_hz, store)


def _usual_s(t: Array) -> float:
    return float(np.median(np.diff(t))) if len(t) > 1 else 0.0


def _labelled(
    x: Array, begin_s: float, t: Array, labels: Array, rate_hz: float, store: ArrayStore
) -> TrackPiece:
    """Return a stretch with the class of the nearest sample, or with each number at its step."""
    start = round((begin_s - t[0]) * rate_hz)
    mine = store.empty((len(x), *labels.shape[1:]), labels.dtype)
    if labels.ndim == 1:
        for block in blocks(mine):
            at_s = begin_s + np.arange(block.start, block.stop) / rate_hz
            after = np.clip(np.searchsorted(t, at_s), 1, max(1, len(t) - 1))
            nearest = after - (at_s - t[after - 1] <= t[np.minimum(after, len(t) - 1)] - at_s)
            mine[block] = labels[np.minimum(nearest, len(t) - 1)]
        return TrackPiece(x, mine, start)
    mine[:] = np.nan
    for block in blocks(labels):
        step = np.rint((t[block] - begin_s) * rate_hz).astype(np.int64)
        here = (step >= 0) & (step < len(x))
        for column in range(labels.shape[1]):
            has_value = here & ~np.isnan(labels[block, column])
            mine[step[has_value], column] = labels[block, column][has_value]
    return TrackPiece(x, mine, start)
