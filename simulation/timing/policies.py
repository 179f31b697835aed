"""Whom the server invites, and which updates make an aggregation.

An engine asks a policy for one batch after the other, and trains what stands in it: all of it at
once, in any order, since who trains when depends on profiles, examples and bytes, and never on what
was learned::

    policy, models = make_policy(read_policy("buffered:buffer=10"), fleet), {0: model}
    while policy.now_s < hours * 3600:
        batch = policy.next_batch()
        models[batch.version + 1] = aggregate(models[batch.version], train(batch, models),
        batch.weights)
        models = {v: m for v, m in models.items() if v >= policy.oldest_version_needed}

Version v is the model after v aggregations. No device is in a batch twice.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass, field

import numpy as np

from aggregator.core.round.cohort import Buffer, Cohort, staleness_weights
from algorithms.spec import Choice
from simulation.timing.availability import DAY_S
from simulation.timing.fleet import NO_JOBS, Fleet, Jobs
from simulation.timing.report import Tally
from wire.arrays.tensors import Array
from wire.errors import ConfigError, ShoalError

RETRY_S = 60.0
"""A server that found too few devices looks again after so long, or after an eighth of the time
that it has waited where that is more."""
PATIENCE_S = 7 * DAY_S
"""A simulation gives up when nobody was there, or nobody finished, for so long."""


@dataclass(frozen=True)
class Batch:
    """One aggregation: its updates as columns (k,), by device."""

    version: int
    """The model that it changes; the result is version + 1."""
    at_s: float
    """When the server aggregates."""
    devices: Array = field(repr=False)
    """int64, ascending, no two alike."""
    versions: Array = field(repr=False)
    """int64: the model that each one started from."""
    start_s: Array = field(repr=False)
    end_s: Array = field(repr=False)

    @property
    def staleness(self) -> Array:
        """Aggregations between a device's start and this one: int64, none negative."""
        staleness: Array = self.version - self.versions
        return staleness

    @property
    def weights(self) -> Array:
        """1 / sqrt(1 + staleness), float64 (FedBuff, section 5): what an update counts beside its
        number of examples."""
        return staleness_weights(self.staleness)


class Sync:
    """Rounds: invite `cohort` devices, wait for all that do not drop out, or until `deadline_s`;
    later updates are discarded.

    With `over`, ceil(cohort (1 + over)) devices are invited and the round is over when `cohort`
    updates are in (K. Bonawitz et al., Towards federated learning at scale, MLSys 2019, section 9).
    A device that is late works on until it is done, for nothing. While too few are available the
    server waits, but no longer than `wait_s`: then it begins with those there are.
    """

    def __init__(
        self, fleet: Fleet, cohort: int, deadline_s: float, wait_s: float, over: float = 0.0
    ) -> None:
        self.fleet, self.tally, self.now_s = fleet, Tally(), 0.0
        self.deadline_s, self.wait_s = deadline_s, wait_s
        rule = Cohort(cohort, over)
        self.invited = rule.asked(len(fleet))
        self.cohort = rule.goal(self.invited)

    @property
    def oldest_version_needed(self) -> int:
        """The newest: every round starts from it."""
        return self.tally.aggregations

    def next_batch(self) -> Batch:
        """The next round that ends with an update."""
        began_s = self.now_s
        while True:
            jobs = self._invite()
            finished = jobs.end_s[jobs.finishes]
            in_time = np.sort(finished)[: self.cohort]
            last_s = float(in_time[-1]) if len(in_time) == self.cohort else float(jobs.end_s.max())
            self.now_s = min(last_s, float(jobs.start_s[0]) + self.deadline_s)
            # of several that arrive in the last moment, the first ones in order
            arrives = jobs.finishes & (jobs.end_s <= self.now_s)
            order = np.argsort(np.where(arrives, jobs.end_s, np.inf), kind="stable")
            used = np.zeros(len(jobs), bool)
            used[order[: min(self.cohort, int(arrives.sum()))]] = True
            self.tally.settle(self.fleet, jobs, used)
            if used.any():
                return _batch(
                    self.tally,
                    self.now_s,
                    jobs.take(used),
                    np.full(int(used.sum()), self.tally.aggregations),
                )
            self.tally.failed += 1
            if self.now_s - began_s > PATIENCE_S:
                raise ShoalError(
                    f"no invited device finished within its deadline of {self.deadline_s:g} s for "
                    f"{PATIENCE_S / DAY_S:g} days"
                )

    def _invite(self) -> Jobs:
        opened_s = self.now_s
        while True:
            devices = self.fleet.find(self.now_s, self.invited)
            waited_s = self.now_s - opened_s
            if len(devices) == self.invited or (len(devices) and waited_s >= self.wait_s):
                return self.fleet.start(devices, np.full(len(devices), self.now_s))
            if waited_s > PATIENCE_S:
                raise ShoalError(
                    f"no device was available from {opened_s:.0f} s to {self.now_s:.0f} s, with "
                    "its battery charged enough"
                )
            self.now_s += max(RETRY_S, waited_s / 8)


class Buffered:
    """No rounds: `concurrency` devices train at any time, each from the model that is the newest
    when it starts; the server aggregates whenever `buffer` updates are in (FedBuff, J. Nguyen et
    al., AISTATS 2022, algorithm 1).

    A device that takes longer than `deadline_s` is given up, and another is asked in its place. One
    whose update waits in the buffer is not asked again before that is aggregated. Where nobody can
    be found for a place, the server looks again, see `RETRY_S`.

    Who trains when does not depend on models, so places are filled for many at once, up to the time
    of the next aggregation; which version a device started from is the number of aggregations until
    then.
    """

    def __init__(self, fleet: Fleet, concurrency: int, buffer: int, deadline_s: float) -> None:
        self.fleet, self.tally, self.now_s = fleet, Tally(), 0.0
        self.buffer, self.deadline_s = buffer, deadline_s
        self._free_s, self._since_s = np.zeros(concurrency), np.zeros(concurrency)
        self._jobs = NO_JOBS
        self._aggregated_s: list[float] = []

    @property
    def oldest_version_needed(self) -> int:
        """That of the update under way, or in the buffer, which started first; the newest where
        that is older."""
        started_s = self._jobs.start_s[self._counts(self._jobs)]
        return (
            bisect_right(self._aggregated_s, started_s.min())
            if len(started_s)
            else self.tally.aggregations
        )

    def next_batch(self) -> Batch:
        """Fill places until no job that is still to be begun can finish before the update that
        fills the buffer."""
        while True:
            updates_s = self._jobs.end_s[self._counts(self._jobs)]
            missing = self.buffer - len(updates_s)
            if missing > 0:
                due = self._earliest(missing)
                at_s = math.inf
            else:
                at_s = float(np.partition(updates_s, self.buffer - 1)[self.buffer - 1])
                due = self._free_s < at_s
                if not due.any():
                    return self._aggregate(at_s)
            self._fill(np.flatnonzero(due))

    def _earliest(self, count: int) -> Array:
        """The places that are free first."""
        count = min(count, len(self._free_s))
        due_s = float(np.partition(self._free_s, count - 1)[count - 1])
        if due_s - self.now_s > PATIENCE_S:
            raise ShoalError(
                f"fewer than {self.buffer} updates from {self.now_s:.0f} s to {due_s:.0f} s: no "
                "device available, or all too slow"
            )
        due: Array = self._free_s <= due_s
        return due

    def _fill(self, places: Array) -> None:
        jobs, filled = self.fleet.start_each(self._free_s[places])
        self.fleet.hold(jobs.devices[self._counts(jobs)], math.inf)
        self._free_s[places] += np.maximum(
            RETRY_S, (self._free_s[places] - self._since_s[places]) / 8
        )
        self._free_s[places[filled]] = self._since_s[places[filled]] = np.minimum(
            jobs.end_s, jobs.start_s + self.deadline_s
        )
        self._jobs = self._jobs.join(jobs)

    def _aggregate(self, at_s: float) -> Batch:
        jobs, counts = self._jobs, self._counts(self._jobs)
        order = np.argsort(np.where(counts, jobs.end_s, np.inf), kind="stable")
        used = np.zeros(len(jobs), bool)
        used[order[: self.buffer]] = True
        over = used | (~counts & (jobs.end_s <= at_s))
        self.tally.settle(self.fleet, jobs.take(over), used[over])
        self.fleet.hold(jobs.devices[used], at_s)
        self._jobs = jobs.take(~over)
        updates = jobs.take(used)
        self.now_s = at_s
        oldest = bisect_right(self._aggregated_s, updates.start_s.min())
        versions = oldest + np.searchsorted(
            self._aggregated_s[oldest:], updates.start_s, side="right"
        )
        self._aggregated_s.append(at_s)
        return _batch(self.tally, at_s, updates, versions)

    def _counts(self, jobs: Jobs) -> Array:
        counts: Array = jobs.finishes & (jobs.end_s <= jobs.start_s + self.deadline_s)
        return counts


Policy = Sync | Buffered
"""One way to run a server. `now_s` is when the last aggregation was."""


def _batch(tally: Tally, at_s: float, jobs: Jobs, versions: Array) -> Batch:
    order = np.argsort(jobs.devices)
    jobs, version = jobs.take(order), tally.aggregations
    batch = Batch(version, at_s, jobs.devices, versions[order], jobs.start_s, jobs.end_s)
    tally.aggregate(batch.staleness)
    return batch


def make_policy(choice: Choice, fleet: Fleet) -> Policy:
    """The policy that was chosen. A fleet serves one policy.

    Raises:
        ConfigError: an option is more than there are devices.
    """
    options = choice.options
    for key in ("cohort", "concurrency", "buffer"):
        if options.get(key, 0) > len(fleet):
            raise ConfigError(
                f"policy {str(choice)!r}: {key} is {options[key]}, expected no more than the "
                f"{len(fleet)} devices"
            )
    if choice.name == "buffered":
        rule = Buffer(options["buffer"], options["concurrency"])
        return Buffered(fleet, rule.at_work(len(fleet)), rule.size, options["deadline"])
    return Sync(
        fleet,
        options["cohort"] or len(fleet),
        options["deadline"],
        options["wait"],
        options.get("over", 0.0),
    )
