"""Devices over time: who may start a job, and what becomes of it.

A job is a plan and a model sent down, training on all of the device's examples, and an update sent
up:

    duration = 2 latency + down_bytes / down + examples / speed + up_bytes / up

It ends early where the device drops out, with its probability, at a moment drawn uniformly from the
duration, or where it stops being available. Both depend on nothing but the seed, the device and the
second at which it starts, so that two policies that start a device at the same time see it fare
alike.

The battery is charged with all of a job's examples when the job begins, whatever becomes of it.
"""

from dataclasses import dataclass, field

import numpy as np

from simulation.timing.availability import DAY_S, stays_until
from simulation.timing.draws import make_key, uniform
from simulation.timing.profiles import CHARGE_S, Profiles
from wire.arrays.tensors import Array
from wire.errors import ConfigError

DROPS = 0xD40
"""Key of the draws of drop-outs."""


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


class TimedFleet:
    """Devices, and the charge of their batteries."""

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
        self._down_s = work.down_bytes / profiles.down_bytes_per_s
        self._compute_s = work.examples / profiles.examples_per_s
        self.duration_s: Array = (
            2 * profiles.latency_s
            + self._down_s
            + self._compute_s
            + work.up_bytes / profiles.up_bytes_per_s
        )
        self.able: Array = (np.asarray(work.examples) > 0) & (
            work.examples <= profiles.battery_examples
        )
        """True for devices that have examples, and a battery that lasts for a job: (N,) bool."""
        if not self.able.any():
            raise ConfigError("no device has examples, and a battery that lasts for all of them")
        self._charge = profiles.battery_examples.copy()
        self._charged_s = self._on_charger_s(np.arange(len(profiles)), np.zeros(len(profiles)))
        self.is_on_battery = bool(np.isfinite(profiles.battery_examples).any())
        self._drops_out = bool((profiles.dropout > 0).any())

    def __len__(self) -> int:
        return len(self.profiles)

    def battery(self, devices: Array, at_s: Array) -> Array:
        """Examples that each of `devices` could train at its time of `at_s`, which is not before
        its last start: (n,) float64."""
        capacity, level = self.profiles.battery_examples[devices], self._charge[devices]
        if not self.is_on_battery:
            return np.asarray(level)
        charged_s = self._on_charger_s(devices, at_s) - self._charged_s[devices]
        mains = np.isinf(capacity)
        gained = np.where(mains, 0.0, capacity) * charged_s / CHARGE_S
        charge: Array = np.minimum(capacity, level + gained)
        return charge

    def look(self, devices: Array, at_s: float) -> tuple[Array, Array]:
        """Look which of `devices` (n,) int64 may start a job: (n,) bool, and for each a later time
        until which that is so for certain, unless it starts one: (n,) float64."""
        when_s, availability = np.full(len(devices), at_s), self.profiles.availability
        there, until_s = (
            availability.ask(devices, when_s),
            availability.holds_until(devices, when_s),
        )
        if self.is_on_battery:
            charged_s = self._charged_at_s(devices, when_s)
            is_charged = charged_s <= at_s
            there, until_s = (
                there & is_charged,
                np.where(is_charged, until_s, np.minimum(until_s, charged_s)),
            )
        able = self.able[devices]
        return there & able, np.where(able, until_s, np.inf)

    def is_available(self, device: int, at_s: float) -> bool:
        """Return True if a device is available, whatever its battery says."""
        return bool(self.profiles.availability.ask(np.array([device]), np.array([at_s]))[0])

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
        if self.is_on_battery:
            self._charge[devices] = self.battery(devices, start_s) - self.work.examples[devices]
            self._charged_s[devices] = self._on_charger_s(devices, start_s)
        return Jobs(devices, start_s, end_s, finishes)

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

    def _charged_at_s(self, devices: Array, at_s: Array) -> Array:
        """Return when the battery of each device lasts for a job: `at_s` itself where it does, and
        infinity where it never will."""
        p = self.profiles
        missing = self.work.examples[devices] - self.battery(devices, at_s)
        capacity, stays_s = p.battery_examples[devices], p.charge_s[devices]
        with np.errstate(divide="ignore", invalid="ignore"):
            wanted_s = self._on_charger_s(devices, at_s) + missing / capacity * CHARGE_S
            days = np.ceil(wanted_s / stays_s) - 1
            charged_s = p.charge_from_s[devices] + DAY_S * days + wanted_s - days * stays_s
        later_s = np.maximum(np.where(stays_s > 0, charged_s, np.inf), at_s + 1.0)
        return np.where(missing <= 1e-6 * capacity, at_s, later_s)

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
