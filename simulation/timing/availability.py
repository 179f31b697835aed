"""Hours in which a device may train: a daily or weekly curve, or recorded intervals."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Union

import numpy as np

from simulation.timing.draws import make_key, uniform
from wire.arrays.tensors import Array

HOUR_S = 3600.0
DAY_S = 86400.0


Availability = Union["Always", "Curve", "Intervals"]
"""Rule for the times at which devices may train.

All arrays are (n,); times are virtual seconds. `ask` returns bool: True for each of `devices`
(int64) that may train at its time `at_s` (float64). `holds_until` returns float64: for each device
a time later than `at_s` until which that answer does not change.
"""


def stays_until(availability: Availability, devices: Array, start_s: Array, end_s: Array) -> Array:
    """Return the time (n,) float64 until which each device may train, but `end_s` at the latest.

    Every device must be available at `start_s`.
    """
    until = np.minimum(availability.holds_until(devices, start_s), end_s)
    open_ = np.flatnonzero(until < end_s)
    while len(open_):
        open_ = open_[availability.ask(devices[open_], until[open_])]
        until[open_] = np.minimum(
            availability.holds_until(devices[open_], until[open_]), end_s[open_]
        )
        open_ = open_[until[open_] < end_s[open_]]
    return until


class Always:
    """Every device is available at any time."""

    def ask(self, devices: Array, at_s: Array) -> Array:
        """Return True for every device."""
        return np.ones(len(devices), bool)

    def holds_until(self, devices: Array, at_s: Array) -> Array:
        """Return infinity for every device."""
        return np.full(len(devices), np.inf)


@dataclass(frozen=True)
class Curve:
    """Share of available devices by hour of the local day or week.

    `by_hour` is that share for each hour of a day (24 values) or a week (168, from Monday
    midnight). `offset_s` (N,) is the time on each device's clock at virtual second 0.

    A device draws one number each day, and is available in the hours whose share lies above it.
    Every hour has its share of devices in this way, and a device is available for one stretch of
    hours rather than for scattered ones. Its day begins in the hour with the smallest share, so
    that a night belongs to one day.
    """

    by_hour: Sequence[float]
    offset_s: Array = field(repr=False)
    seed: int = 0
    _shares: Array = field(init=False, repr=False)
    _key: int = field(init=False, repr=False)
    _begin_s: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        shares = np.asarray(self.by_hour, np.float64)
        object.__setattr__(self, "_shares", shares)
        object.__setattr__(self, "_key", make_key(self.seed, 0xA7A))
        object.__setattr__(self, "_begin_s", HOUR_S * int(shares.reshape(-1, 24).sum(0).argmin()))

    def ask(self, devices: Array, at_s: Array) -> Array:
        """Return True for devices whose number of the day lies below the share of the hour."""
        local_s = at_s + self.offset_s[devices]
        hours, day = np.floor(local_s / HOUR_S), np.floor((local_s - self._begin_s) / DAY_S)
        hour = hours - len(self._shares) * np.floor(hours / len(self._shares))
        available: Array = uniform(self._key, devices, day) < self._shares[hour.astype(np.int64)]
        return available

    def holds_until(self, devices: Array, at_s: Array) -> Array:
        """Return the end of the local hour of each device."""
        offset_s = self.offset_s[devices]
        until: Array = (np.floor((at_s + offset_s) / HOUR_S) + 1) * HOUR_S - offset_s
        return np.maximum(until, np.nextafter(at_s, np.inf))


@dataclass(frozen=True)
class Intervals:
    """Recorded intervals of availability.

    Device d is available from `start_s[i]` until just before `end_s[i]` for
    `first[d] <= i < first[d + 1]`. The intervals of a device are in order and do not touch. All of
    them repeat every `period_s`.
    """

    first: Array = field(repr=False)
    start_s: Array = field(repr=False)
    end_s: Array = field(repr=False)
    period_s: float

    def ask(self, devices: Array, at_s: Array) -> Array:
        """Return True for devices that are in one of their intervals."""
        at_s = at_s % self.period_s
        place = self._place(devices, at_s)
        inside: Array = (place >= self.first[devices]) & (at_s < self.end_s[place])
        return inside

    def holds_until(self, devices: Array, at_s: Array) -> Array:
        """Return the end of the current interval, or the start of the next one."""
        within = at_s % self.period_s
        place, first, last = (
            self._place(devices, within),
            self.first[devices],
            self.first[devices + 1],
        )
        inside = (place >= first) & (within < self.end_s[place])
        wraps = place + 1 >= last
        after = np.minimum(np.where(wraps, first, place + 1), len(self.start_s) - 1)
        begins_s = np.where(first < last, self.start_s[after] + self.period_s * wraps, np.inf)
        until: Array = at_s + (np.where(inside, self.end_s[place], begins_s) - within)
        return np.maximum(until, np.nextafter(at_s, np.inf))

    def _place(self, devices: Array, at_s: Array) -> Array:
        """Return the index of each device's last interval that starts at `at_s` or before.

        It is one below the device's first index if there is no such interval. Found by bisection.
        """
        low, high = self.first[devices] - 1, self.first[devices + 1]
        while (high - low > 1).any():
            middle = (low + high) // 2
            before = (high - low > 1) & (
                self.start_s[np.minimum(middle, len(self.start_s) - 1)] <= at_s
            )
            low, high = (
                np.where(before, middle, low),
                np.where(before | (high - low <= 1), high, middle),
            )
        return low
