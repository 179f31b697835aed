"""Devices over time: when each may start a job, and the course of the job.

A job is a plan and a model sent down, training on all of the device's examples, and an update sent
up:

    duration = 2 latency + down_bytes / down + examples / speed + up_bytes / up

A job ends early if the device drops out or stops being available. The device drops out with its
probability, at a moment drawn uniformly from the duration. Both depend only on the seed, the
device and the second of the start, so that two policies that start a device at the same time see
the same course.

A job takes the charge of all its examples from the battery when it begins, however it ends.
"""

from dataclasses import dataclass, field

import numpy as np

from simulation.timing.availability import DAY_S, stays_until
from simulation.timing.draws import make_key, uniform
from simulation.timing.profiles import CHARGE_S, Profiles
from wire.arrays.tensors import Array
from wire.errors import ConfigError

DROPS = 0xD40
"""Key of the random draws of drop-outs."""


@dataclass(frozen=True)
class JobSize:
    """Size of a job: examples to train on, and bytes to transfer."""

    examples: Array = field(repr=False)
    """(N,) int64: examples that each device trains in one job, over all its epochs.

    A device without examples is never given an assignment.
    """
    down_bytes: int
    up_bytes: int


@dataclass(frozen=True)
class Jobs:
    """Jobs as columns (k,)."""

    devices: Array
    """int64: numbers of the devices."""
    start_s: Array
    """float64: virtual second of the start."""
    end_s: Array
    """float64: virtual second at which the server has the update or the device is lost."""
    finishes: Array
    """bool: True if the update reaches the server."""


class TimedFleet:
    """Devices, and the charge of their batteries."""

    def __init__(self, profiles: Profiles, work: JobSize, seed: int) -> None:
        """Create the fleet with full batteries at virtual second 0.

        Raises:
            ConfigError: `work` is not for as many devices as there are profiles, or no device can
            do a job.
        """
        if np.shape(work.examples) != (len(profiles),):
            raise ConfigError(
                f"examples must be one number for each of {len(profiles)} devices, got "
                f"{np.shape(work.examples)}"
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
        """(N,) bool: True for devices that have examples and a battery that lasts for a job."""
        if not self.able.any():
            raise ConfigError("No device has examples and a battery that lasts to train on them")
        self._charge = profiles.battery_examples.copy()
        self._charged_s = self._on_charger_s(np.arange(len(profiles)), np.zeros(len(profiles)))
        self.is_on_battery = bool(np.isfinite(profiles.battery_examples).any())
        self._drops_out = bool((profiles.dropout > 0).any())

    def __len__(self) -> int:
        return len(self.profiles)

    def battery(self, devices: Array, at_s: Array) -> Array:
        """Return the number of examples that each device's charge can train, (n,) float64.

        `at_s` (n,) is a time for each of `devices` (n,), not before the device's last start.
        """
        capacity, level = self.profiles.battery_examples[devices], self._charge[devices]
        if not self.is_on_battery:
            return np.asarray(level)
        charged_s = self._on_charger_s(devices, at_s) - self._charged_s[devices]
        mains = np.isinf(capacity)
        gained = np.where(mains, 0.0, capacity) * charged_s / CHARGE_S
        charge: Array = np.minimum(capacity, level + gained)
        return charge

    def look(self, devices: Array, at_s: float) -> tuple[Array, Array]:
        """Return the devices that may start a job at a time, and the end of that answer.

        The first array is (n,) bool, for `devices` (n,) int64. The second one is (n,) float64: a
        later time until which the answer does not change, unless the device starts a job.
        """
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
        """Return True if a device is available, at any charge of its battery."""
        return bool(self.profiles.availability.ask(np.array([device]), np.array([at_s]))[0])

    def start(self, devices: Array, start_s: Array) -> Jobs:
        """Start a job on each device, and return the jobs with their ends.

        `devices` (k,) int64 are all different, and each may start a job at its `start_s` (k,)
        float64.
        """
        p = self.profiles
        end_s = start_s + self.duration_s[devices]
        finishes = np.ones(len(devices), bool)
        if self._drops_out:
            drawn, dropout = (
                uniform(make_key(self.seed, DROPS), devices, start_s),
                p.dropout[devices],
            )
            finishes = drawn >= dropout
            # below the probability, the same draw divided by it is uniform in [0, 1) again
            share = np.divide(drawn, dropout, out=np.ones(len(devices)), where=~finishes)
            end_s = np.where(finishes, end_s, start_s + share * self.duration_s[devices])
        until_s = stays_until(p.availability, devices, start_s, end_s)
        finishes, end_s = finishes & (until_s >= end_s), until_s
        if self.is_on_battery:
            self._charge[devices] = self.battery(devices, start_s) - self.work.examples[devices]
            self._charged_s[devices] = self._on_charger_s(devices, start_s)
        return Jobs(devices, start_s, end_s, finishes)

    def progress(self, jobs: Jobs) -> tuple[Array, Array, Array]:
        """Return examples trained, bytes down and bytes up of jobs until their end.

        Each is (k,) float64.
        """
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
        """Return the time at which the battery of each device lasts for a job.

        It is `at_s` if the battery does already, and infinity if it never will.
        """
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
        """Return the seconds on the charger from virtual second `charge_from_s` to `at_s`.

        They are negative before that second; only differences are used.
        """
        since_s, stays_s = (
            at_s - self.profiles.charge_from_s[devices],
            self.profiles.charge_s[devices],
        )
        days = np.floor(since_s / DAY_S)
        seconds: Array = days * stays_s + np.minimum(since_s - DAY_S * days, stays_s)
        return seconds


def _share(spent_s: Array, full_s: Array) -> Array:
    """Return the completed share of a phase, 0 to 1.

    A phase without duration is complete as soon as it begins.
    """
    share: Array = np.clip(
        np.where(full_s > 0, spent_s / np.where(full_s > 0, full_s, 1.0), spent_s >= 0), 0.0, 1.0
    )
    return share
