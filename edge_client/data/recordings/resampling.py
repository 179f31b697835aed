"""Resampling of samples as they come to values of all channels at one rate; pure.

Samples may be out of order by `LATE_S`, repeated, or not finite, and each channel may have its own
rate. The output are *stretches*: all channels at each step of the rate, without a gap. Between two
samples a channel's value lies on the line between them. A channel that comes at more than `FAST`
times the rate is averaged along that line over each step, to avoid aliasing.

Two samples of a channel enclose a gap if they are farther apart than `gap_s` and than `SLOW` times
the channel's usual interval. The sender determines the usual interval, so that limit is itself at
most `LONGEST_S`, or `LONGEST_STEPS` steps of a slow rate. So a sample adds no more steps than fit
there, and they leave in parts of at most `MOST_STEPS`. A gap of one channel is a gap of all.

A clock that is set forward looks like a gap. If a clock is set back, `STREAK` samples in a row come
too late, and time starts anew with them. Fewer late samples are lost, and counted.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from wire.arrays.tensors import Array

LATE_S = 0.5
"""Maximum delay of a sample behind newer ones; the output is delayed by the same time."""
STREAK = 8
FAST, SLOW = 1.6, 3.0
LONGEST_S, LONGEST_STEPS = 5.0, 8
"""Longest interval that a slow channel may have without a gap (seconds, steps).

A larger `gap_s` still counts.
"""
GAP_S = 0.5
"""Interval that is never a gap, in seconds."""
MOST_STEPS = 4096
"""Maximum number of steps in a stretch."""
AT_ONCE = 256
"""Number of samples that are processed at once."""
MOST_HELD = 2**18
"""Maximum number of unused samples of a channel; beyond it the older half is dropped."""
LARGEST = float(np.finfo(np.float32).max)
"""Largest value that counts as finite, since the output is float32."""
USUAL = 64
"""Number of intervals whose median is a channel's usual interval."""
FEWEST = 8


def longest_interval_s(usual_s: float, rate_hz: float, gap_s: float = GAP_S) -> float:
    """Return the longest interval between two samples of a channel that is no gap.

    Args:
        usual_s: usual interval of the channel.
        rate_hz: steps per second of the output.
        gap_s: interval that is never a gap.
    """
    return max(gap_s, min(SLOW * usual_s, max(LONGEST_S, LONGEST_STEPS / rate_hz)))


@dataclass(frozen=True)
class Samples:
    """Values of all channels, in the order in which they came.

    t (n,) is float64 Unix seconds. values (n, channels) is float64, NaN if a value is missing.
    labels has the label of each sample, or is empty if the source has no labels.
    """

    t: Array = field(repr=False)
    values: Array = field(repr=False)
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stretch:
    """Values x (n, channels) float32 at t0_s, t0_s + 1/rate, ...

    `begins`: True if it does not continue the stretch before.
    """

    t0_s: float
    x: Array = field(repr=False)
    begins: bool


@dataclass
class _Channel:
    """Unused samples of one channel, in order of time, and the last intervals between samples."""

    t: Array = field(default_factory=lambda: np.zeros(0))
    v: Array = field(default_factory=lambda: np.zeros(0))
    intervals: Array = field(default_factory=lambda: np.zeros(0))
    usual_s: float = 0.0
    seen_s: float = -np.inf
    """Time up to which intervals were counted."""

    def add(self, t: Array, v: Array) -> None:
        self.t, self.v = np.concatenate([self.t, t]), np.concatenate([self.v, v])
        if len(self.t) > 1 and (self.t[1:] <= self.t[:-1]).any():
            self.t, first = np.unique(self.t, return_index=True)
            self.v = self.v[first]

    def learn(self, until_s: float) -> None:
        """Count the intervals between samples up to this time."""
        new = self.t[
            np.searchsorted(self.t, self.seen_s, "right") : np.searchsorted(
                self.t, until_s, "right"
            )
        ]
        if not len(new):
            return
        if np.isfinite(self.seen_s):
            new = np.concatenate([[self.seen_s], new])
        self.seen_s = float(new[-1])
        self.intervals = np.concatenate([self.intervals, np.diff(new[-USUAL - 1 :])])[-USUAL:]
        if len(self.intervals) >= FEWEST:
            self.usual_s = float(np.median(self.intervals))


class Resampler:
    """Resampler of samples to a fixed rate. It yields stretches without gaps.

    `num_late` is the number of samples that came too late or exceeded the memory.
    """

    def __init__(self, num_channels: int, rate_hz: float, gap_s: float = GAP_S) -> None:
        self._rate_hz, self._gap_s = rate_hz, gap_s
        self._channels = [_Channel() for _ in range(num_channels)]
        self._newest_s = -np.inf
        self._begin_s, self._steps = np.nan, 0
        """Start of the current stretch, and the number of its steps that have left."""
        self._begins = True
        self._streak: list[tuple[float, Array]] = []
        self.num_late = 0

    def expect(self, usual_s: Sequence[float]) -> None:
        """Take these intervals of the channels as usual until others are counted."""
        for channel, interval_s in zip(self._channels, usual_s, strict=True):
            channel.usual_s = interval_s

    def push(self, samples: Samples) -> Iterator[Stretch]:
        """Take samples in, and yield the stretches that they complete.

        The samples are processed lazily, as far as the iterator is used.
        """
        whole = np.isfinite(samples.t)
        t, values = samples.t[whole], samples.values[whole]
        for at in range(0, len(t), AT_ONCE):
            part, rows = t[at : at + AT_ONCE], values[at : at + AT_ONCE]
            newest = np.maximum.accumulate(np.concatenate([[self._newest_s], part]))[:-1]
            in_time = not self._streak and not (part < newest - LATE_S).any()
            yield from (self._take if in_time else self._take_one_by_one)(part, rows)

    def flush(self) -> Iterator[Stretch]:
        """Yield the stretches of all samples that wait for later ones, and start anew."""
        yield from self._emit(np.inf)
        self.begin_anew()

    def begin_anew(self) -> None:
        """Drop the samples that wait for later ones."""
        for channel in self._channels:
            channel.t, channel.v, channel.seen_s = np.zeros(0), np.zeros(0), -np.inf
        self._newest_s, self._begin_s, self._streak = -np.inf, np.nan, []

    def _take_one_by_one(self, t: Array, values: Array) -> Iterator[Stretch]:
        begin = 0
        for i, at_s in enumerate(t):
            newest_s = max(self._newest_s, t[begin:i].max(initial=-np.inf))
            if at_s >= newest_s - LATE_S:
                self.num_late += len(self._streak)
                self._streak = []
                continue
            yield from self._take(t[begin:i], values[begin:i])
            begin = i + 1
            self._streak.append((float(at_s), values[i]))
            if len(self._streak) == STREAK:
                streak = self._streak
                yield from self.flush()
                yield from self._take(
                    np.array([s for s, _ in streak]), np.array([v for _, v in streak])
                )
        yield from self._take(t[begin:], values[begin:])

    def _take(self, t: Array, values: Array) -> Iterator[Stretch]:
        if not len(t):
            return
        finite = np.abs(values) <= LARGEST
        if finite.all():
            for i, channel in enumerate(self._channels):
                channel.add(t, values[:, i])
        else:
            for i, channel in enumerate(self._channels):
                channel.add(t[finite[:, i]], values[finite[:, i], i])
        self._newest_s = max(self._newest_s, float(t.max()))
        yield from self._emit(self._newest_s - LATE_S)
        for channel in self._channels:
            if len(channel.t) > MOST_HELD:
                gone = len(channel.t) - MOST_HELD // 2
                channel.t, channel.v = channel.t[gone:], channel.v[gone:]
                self.num_late, self._begin_s = self.num_late + gone, np.nan

    def _emit(self, until_s: float) -> Iterator[Stretch]:
        """Yield the values up to this time, before which no more samples come."""
        for channel in self._channels:
            channel.learn(until_s)
        while (run := self._common_run(until_s)) is not None:
            begin_s, end_s, is_closed = run
            if self._begin_s == self._begin_s:
                begin_s = self._begin_s
            else:
                self._steps, self._begins = 0, True
            num_left = int(np.floor((end_s - begin_s) * self._rate_hz + 1e-6)) + 1 - self._steps
            count = min(num_left, MOST_STEPS)
            if count > 0:
                self._begin_s = begin_s
                times_s = (
                    self._begin_s + np.arange(self._steps, self._steps + count) / self._rate_hz
                )
                x = np.stack(
                    [self._values(channel, times_s) for channel in self._channels], axis=1
                ).astype(np.float32)
                stretch = Stretch(float(times_s[0]), x, self._begins)
                self._steps, self._begins = self._steps + count, False
                yield stretch
            if count < num_left:
                continue
            if not is_closed:
                self._forget(begin_s + self._steps / self._rate_hz)
                break
            self._begin_s = np.nan
            for channel in self._channels:
                is_later = channel.t > end_s
                channel.t, channel.v = channel.t[is_later], channel.v[is_later]

    def _common_run(self, until_s: float) -> tuple[float, float, bool] | None:
        """Return the start and end of the time in which all channels have values, or None.

        The third value is True if a gap ends it. The time ends at `until_s` at the latest. If there
        is none, samples that are of no use any more are dropped.
        """
        begin_s = self._begin_s if self._begin_s == self._begin_s else -np.inf
        runs: list[tuple[float, float, bool]] = []
        while True:
            runs = []
            for channel in self._channels:
                run = self._run(channel, begin_s, until_s)
                if run is None:
                    self._forget_silence(until_s)
                    return None
                runs.append(run)
            if self._begin_s == self._begin_s:
                break
            latest_s = max(run[0] for run in runs)
            if latest_s <= begin_s:
                break
            begin_s = latest_s
        end_s = min(run[1] for run in runs)
        return begin_s, end_s, any(closed and end == end_s for _, end, closed in runs)

    def _run(
        self, channel: _Channel, begin_s: float, until_s: float
    ) -> tuple[float, float, bool] | None:
        """Return the first gap-free run of a channel that reaches `begin_s`, or None.

        The run is its start, its end, and True if a gap ends it. Samples after `until_s` do not
        count.
        """
        t = channel.t[: int(np.searchsorted(channel.t, until_s, "right"))]
        if not len(t):
            return None
        most_s = self._most_s(channel)
        breaks = np.flatnonzero(np.diff(t) > most_s)
        half_s = 0.5 / self._rate_hz if self._is_fast(channel) else 0.0
        firsts_s = np.maximum(begin_s, t[np.concatenate([[0], breaks + 1])] + half_s)
        lasts_s = t[np.concatenate([breaks, [len(t) - 1]])] - half_s
        is_open = not until_s - t[-1] > most_s
        fits = np.flatnonzero(lasts_s >= firsts_s)
        if not len(fits) and not is_open:
            return None
        i = int(fits[0]) if len(fits) else len(lasts_s) - 1
        return float(firsts_s[i]), float(lasts_s[i]), i < len(lasts_s) - 1 or not is_open

    def _values(self, channel: _Channel, at: Array) -> Array:
        if not self._is_fast(channel):
            return np.interp(at, channel.t, channel.v)
        t, v = channel.t, channel.v
        edges = np.append(at, at[-1] + 1 / self._rate_hz) - 0.5 / self._rate_hz
        # integral of the line through the samples, up to each edge
        areas = np.concatenate([[0.0], np.cumsum(np.diff(t) * (v[1:] + v[:-1]) / 2)])
        i = np.clip(np.searchsorted(t, edges, "right") - 1, 0, len(t) - 1)
        integral = areas[i] + (edges - t[i]) * (v[i] + np.interp(edges, t, v)) / 2
        return np.diff(integral) * self._rate_hz

    def _is_fast(self, channel: _Channel) -> bool:
        return 0 < channel.usual_s * self._rate_hz * FAST < 1

    def _most_s(self, channel: _Channel) -> float:
        return longest_interval_s(channel.usual_s, self._rate_hz, self._gap_s)

    def _forget(self, next_s: float) -> None:
        """Drop samples on which no value from this time on depends."""
        for channel in self._channels:
            first = int(np.searchsorted(channel.t, next_s - 0.5 / self._rate_hz, "right")) - 1
            if first > 0:
                channel.t, channel.v = channel.t[first:], channel.v[first:]

    def _forget_silence(self, until_s: float) -> None:
        """Drop samples that are useless because a channel is silent.

        Samples of the other channels remain useful if they are recent, or if late samples of the
        silent channel may still fill the time.
        """
        self._begin_s = np.nan
        oldest_s = until_s - max(self._most_s(channel) for channel in self._channels)
        for channel in self._channels:
            is_recent = channel.t >= oldest_s
            channel.t, channel.v = channel.t[is_recent], channel.v[is_recent]
