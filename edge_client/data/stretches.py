"""Stretches of a recording: consecutive samples at one rate, without a gap; pure.

Two samples enclose a gap by the rule of live data (`edge_client.data.resampling`). Samples that
come regularly at the rate stay as they are. Others are brought onto the rate, as live data are.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from edge_client.data.resampling import LATE_S, Resampler, Samples, longest_interval_s
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


def pieces(t: Array | None, x: Array, labels: Array, rate_hz: float) -> Iterator[TrackPiece]:
    """Yield the stretches of a recording.

    Args:
        t: times (n,) of the samples in seconds; None if they are unknown.
        x: values (n, channels), NaN if a value is missing.
        labels: classes (n,), or numbers (n, names), NaN if there is none.
        rate_hz: rate of the stretches; 0 if it is unknown.
    """
    if not len(x):
        return
    if t is None:
        if np.isfinite(x).all():
            yield TrackPiece(x, labels, 0)
        else:
            yield from _on_rate(np.arange(len(x)) / ASSUMED_HZ, x, labels, ASSUMED_HZ)
        return
    begins = np.flatnonzero(np.diff(t) < -LATE_S) + 1  # the clock was set back, or began anew
    place = 0
    for part in np.split(np.arange(len(t)), begins):
        part = part[np.argsort(t[part], kind="stable")]
        for piece in _of_clock(t[part], x[part], labels[part], rate_hz):
            yield piece._replace(start=place + piece.start)
        place += len(part) if not rate_hz else round((t[part[-1]] - t[part[0]]) * rate_hz) + 1


def is_regular(t: Array, rate_hz: float) -> bool:
    """Return True if samples at these times (n,) come at the rate, so that they may stay."""
    steps = np.diff(t)
    steps = steps[steps <= longest_interval_s(1 / rate_hz, rate_hz)]
    if not len(steps):
        return True
    usual = float(np.median(steps))
    uneven = np.abs(steps - usual) > usual / 2
    return bool(abs(usual * rate_hz - 1) <= SAME_RATE and uneven.mean() <= IRREGULAR)


def _of_clock(t: Array, x: Array, labels: Array, rate_hz: float) -> Iterator[TrackPiece]:
    if not rate_hz:
        yield TrackPiece(x, labels, 0)
        return
    if not np.isfinite(x).all() or not is_regular(t, rate_hz):
        yield from _on_rate(t, x, labels, rate_hz)
        return
    breaks = np.flatnonzero(np.diff(t) > longest_interval_s(1 / rate_hz, rate_hz)) + 1
    for part in np.split(np.arange(len(t)), breaks):
        start = round((t[part[0]] - t[0]) * rate_hz)
        yield TrackPiece(x[part[0] : part[-1] + 1], labels[part[0] : part[-1] + 1], start)


def _on_rate(t: Array, x: Array, labels: Array, rate_hz: float) -> Iterator[TrackPiece]:
    """Yield the stretches that live data would have of these samples, in order of time."""
    resampler = Resampler(x.shape[1], rate_hz)
    resampler.expect([_usual_s(t[np.isfinite(column)]) for column in x.T])
    run: list[Array] = []
    begin_s = 0.0
    for source in (resampler.push(Samples(t, x.astype(np.float64))), resampler.flush()):
        for stretch in source:
            if stretch.begins and run:
                yield _labelled(np.concatenate(run), begin_s, t, labels, rate_hz)
                run = []
            begin_s = begin_s if run else stretch.t0_s
            run.append(stretch.x)
    if run:
        yield _labelled(np.concatenate(run), begin_s, t, labels, rate_hz)


def _usual_s(t: Array) -> float:
    return float(np.median(np.diff(t))) if len(t) > 1 else 0.0


def _labelled(x: Array, begin_s: float, t: Array, labels: Array, rate_hz: float) -> TrackPiece:
    """Return a stretch with the class of the nearest sample, or with each number at its step."""
    start = round((begin_s - t[0]) * rate_hz)
    if labels.ndim == 1:
        at_s = begin_s + np.arange(len(x)) / rate_hz
        after = np.clip(np.searchsorted(t, at_s), 1, max(1, len(t) - 1))
        nearest = after - (at_s - t[after - 1] <= t[np.minimum(after, len(t) - 1)] - at_s)
        return TrackPiece(x, labels[np.minimum(nearest, len(t) - 1)], start)
    numbers = np.full((len(x), labels.shape[1]), np.nan)
    step = np.rint((t - begin_s) * rate_hz).astype(np.int64)
    here = (step >= 0) & (step < len(x))
    for column in range(labels.shape[1]):
        has_value = here & ~np.isnan(labels[:, column])
        numbers[step[has_value], column] = labels[has_value, column]
    return TrackPiece(x, numbers, start)
