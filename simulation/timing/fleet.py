"""Devices over time: who may start a job, and what becomes of it.

A job is a plan and a model sent down, training on all of the device's examples, and an update sent
up:

    duration = 2 latency + down_bytes / down + examples / speed + up_bytes / up

It ends early where the device drops out, with its probability, at a moment drawn uniformly from the
duration, or where it stops being available. Either is noticed at once: the broker publishes a
device's last will. Both depend on nothing but the seed, the device and the second at which it
starts, so that two policies that start a device at the same time see it fare alike.

The battery is charged with all of a job's examples when the job begins, whatever becomes of it.
"""

from dataclasses import dataclass, field

import numpy as np

from simulation.timing.availability import DAY_S, stays_until
from simulation.timing.draws import Shuffled, make_key, uniform
from simulation.timing.profiles import CHARGE_S, Profiles
from wire.arrays.tensors import Array
from wire.errors import ConfigError

LOOKS = 32
"""The server looks at no more than so many devices, on average, for each one that it needs; then it
has to wait."""
SPARE = 1.25
WIDE = 512
"""Looking at so many devices costs hardly more than looking at one."""
ORDER, DROPS = 0x04D, 0xD40
"""What the draws are for."""


@dataclass(frozen=True)
class Work:
    """What a job is."""

    examples: Array = field(repr=False)
    """(N,) int64: examples that each device trains in one job, its epochs included. One without any
    is never asked."""
    down_bytes: int
    up_bytes: int


@dataclass(frozen=True)
class Jobs:
    """Jobs as columns (k,)."""

    devices: Array
    """int64"""
    start_s: Array
    """float64"""
    end_s: Array
    """float64: when the update is with the server, or when the device is lost."""
    finishes: Array
    """bool"""

    def __len__(self) -> int:
        return len(self.devices)

    def take(self, rows: Array) -> "Jobs":
        """Some of them: `rows` are places, or bool."""
        return Jobs(self.devices[rows], self.start_s[rows], self.end_s[rows], self.finishes[rows])

    def join(self, other: "Jobs") -> "Jobs":
        """These and then those."""
        columns = ("devices", "start_s", "end_s", "finishes")
        return Jobs(
            *(np.concatenate([getattr(self, name), getattr(other, name)]) for name in columns)
        )


NO_JOBS = Jobs(np.zeros(0, np.int64), np.zeros(0), np.zeros(0), np.zeros(0, bool))


class Fleet:
    """Devices, and what they are doing. `looks` counts how many devices were looked at so far."""

    def __init__(self, profiles: Profiles, work: Work, seed: int) -> None:
        """
        Raises:
            ConfigError: as many numbers of examples as devices were expected, or no device can do a
            job.
        """
        if np.shape(work.examples) != (len(profiles),):
            raise ConfigError(
                f"examples of {np.shape(work.examples)} devices, expected one number for each of "
                f"{len(profiles)}"
            )
        self.profiles, self.work, self.seed = profiles, work, seed
        self.looks = 0
        self._down_s = work.down_bytes / profiles.down_bytes_per_s
        self._compute_s = work.examples / profiles.examples_per_s
        self.duration_s: Array = (
            2 * profiles.latency_s
            + self._down_s
            + self._compute_s
            + work.up_bytes / profiles.up_bytes_per_s
        )
        able = (np.asarray(work.examples) > 0) & (work.examples <= profiles.battery_examples)
        if not able.any():
            raise ConfigError("no device has examples, and a battery that lasts for all of them")
        self._busy_until_s = np.where(able, 0.0, np.inf)
        self._charge = profiles.battery_examples.copy()
        self._charged_s = self._on_charger_s(np.arange(len(profiles)), np.zeros(len(profiles)))
        self._on_battery = bool(np.isfinite(profiles.battery_examples).any())
        self._drops_out = bool((profiles.dropout > 0).any())
        self._found = 1.0
        self._orders = 0

    def __len__(self) -> int:
        return len(self.profiles)

    def battery(self, devices: Array, at_s: Array) -> Array:
        """Examples that each of `devices` could train at its time of `at_s`, which is not before
        its last start: (n,) float64."""
        capacity, level = self.profiles.battery_examples[devices], self._charge[devices]
        if not self._on_battery:
            return np.asarray(level)
        charged_s = self._on_charger_s(devices, at_s) - self._charged_s[devices]
        mains = np.isinf(capacity)
        gained = np.where(mains, 0.0, capacity) * charged_s / CHARGE_S
        charge: Array = np.minimum(capacity, level + gained)
        return charge

    def find(self, at_s: float, wanted: int) -> Array:
        """Up to `wanted` devices (n,) int64 that may start at `at_s`, in a random order. With the
        same seed and as many calls before, those found for a smaller number are the first ones
        found for a larger."""
        order = self._order()
        limit, position = min(order.length, LOOKS * max(wanted, 128)), 0
        found: list[Array] = []
        missing = wanted
        while missing > 0 and position < limit:
            count = min(limit - position, int(SPARE * missing / self._found) + 16)
            candidates = order.take(position, count)
            position += count
            hits = candidates[self._may_start(candidates, np.full(len(candidates), at_s))]
            self._learn(len(hits), count)
            found.append(hits[:missing])
            missing -= len(found[-1])
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    def start(self, devices: Array, start_s: Array) -> Jobs:
        """Start a job on each of `devices` (k,) int64, all different and all able to, at its time
        of `start_s` (k,) float64."""
        p = self.profiles
        end_s = start_s + self.duration_s[devices]
        finishes = np.ones(len(devices), bool)
        if self._drops_out:
            drawn, dropout = (
                uniform(make_key(self.seed, DROPS), devices, start_s),
                p.dropout[devices],
            )
            finishes = drawn >= dropout
            share = np.divide(
                drawn, dropout, out=np.ones(len(devices)), where=~finishes
            )  # uniform again, below 1
            end_s = np.where(finishes, end_s, start_s + share * self.duration_s[devices])
        until_s = stays_until(p.availability, devices, start_s, end_s)
        finishes, end_s = finishes & (until_s >= end_s), until_s
        if self._on_battery:
            self._charge[devices] = self.battery(devices, start_s) - self.work.examples[devices]
            self._charged_s[devices] = self._on_charger_s(devices, start_s)
        self._busy_until_s[devices] = end_s
        return Jobs(devices, start_s, end_s, finishes)

    def start_each(self, start_s: Array) -> tuple[Jobs, Array]:
        """Find a device for each time of `start_s` (m,) float64 and start it then: the jobs (k,),
        and for each the place of its time in `start_s`, (k,) int64. For some times nobody may be
        found, and nobody is started twice."""
        jobs, filled, open_ = NO_JOBS, [np.zeros(0, np.int64)], np.argsort(start_s, kind="stable")
        looked, position, hits_in_order = 0, 0, 0
        order = self._order()
        while len(open_) and looked < LOOKS:
            columns = max(int(min(SPARE / self._found, 16)), WIDE // len(open_), 1)
            candidates = order.take(position, columns * len(open_))
            position += columns * len(open_)
            wide = min(len(candidates), len(open_))
            deep = len(candidates) // wide if wide else 0
            looked += max(deep, 1)
            if not deep:  # everybody was looked at
                if not hits_in_order:
                    break
                order, position, hits_in_order = self._order(), 0, 0
                continue
            places, grid = open_[:wide], candidates[: deep * wide].reshape(deep, wide)
            fits = self._may_start(grid.ravel(), np.tile(start_s[places], deep)).reshape(deep, wide)
            self._learn(int(fits.sum()), grid.size)
            hit, row = fits.any(0), fits.argmax(0)
            hits_in_order += int(hit.sum())
            started = self.start(grid[row, np.arange(wide)][hit], start_s[places[hit]])
            self._busy_until_s[started.devices] = (
                np.inf
            )  # once in a call, so that the caller may still hold it
            jobs = jobs.join(started)
            filled.append(places[hit])
            open_ = np.concatenate([places[~hit], open_[wide:]])
        self._busy_until_s[jobs.devices] = jobs.end_s
        return jobs, np.concatenate(filled)

    def hold(self, devices: Array, until_s: float) -> None:
        """Let these start nothing before `until_s`; infinity: until told otherwise."""
        self._busy_until_s[devices] = until_s

    def progress(self, jobs: Jobs) -> tuple[Array, Array, Array]:
        """Examples trained, bytes that came down and bytes that went up in these jobs until their
        end: three (k,) float64."""
        p, d = self.profiles, jobs.devices
        left_s = jobs.end_s - jobs.start_s - p.latency_s[d]
        down_s, compute_s, up_s = (
            self._down_s[d],
            self._compute_s[d],
            self.work.up_bytes / p.up_bytes_per_s[d],
        )
        shares = [
            _share(left_s, down_s),
            _share(left_s - down_s, compute_s),
            _share(left_s - down_s - compute_s, up_s),
        ]
        down, trained, up = (np.where(jobs.finishes, 1.0, share) for share in shares)
        return trained * self.work.examples[d], down * self.work.down_bytes, up * self.work.up_bytes

    def _order(self) -> Shuffled:
        self._orders += 1
        return Shuffled(make_key(self.seed, ORDER, self._orders), len(self))

    def _learn(self, hits: int, looks: int) -> None:
        """How many of those looked at may start: it decides how many to look at next, never who is
        found."""
        self.looks += looks
        self._found = max(0.5 * self._found + 0.5 * hits / max(looks, 1), 1 / LOOKS)

    def _may_start(self, devices: Array, at_s: Array) -> Array:
        free = self._busy_until_s[devices] <= at_s
        rows = np.flatnonzero(free)
        rows = rows[self.profiles.availability.ask(devices[rows], at_s[rows])]
        if self._on_battery:
            rows = rows[
                self.battery(devices[rows], at_s[rows]) >= self.work.examples[devices[rows]]
            ]
        fits: Array = np.zeros(len(devices), bool)
        fits[rows] = True
        return fits

    def _on_charger_s(self, devices: Array, at_s: Array) -> Array:
        """Seconds on the charger from virtual second `-charge_from_s` to `at_s`."""
        since_s, stays_s = (
            at_s - self.profiles.charge_from_s[devices],
            self.profiles.charge_s[devices],
        )
        days = np.floor(since_s / DAY_S)
        seconds: Array = days * stays_s + np.minimum(since_s - DAY_S * days, stays_s)
        return seconds


def _share(spent_s: Array, full_s: Array) -> Array:
    """How much of a phase is over: 0 to 1. A phase that takes no time is over as soon as it
    begins."""
    share: Array = np.clip(
        np.where(full_s > 0, spent_s / np.where(full_s > 0, full_s, 1.0), spent_s >= 0), 0.0, 1.0
    )
    return share
