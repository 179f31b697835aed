"""The rounds of a campaign on a virtual clock, without training.

The state machine of a fleet (`aggregator.fleet.step`) decides which devices form a cohort, when a
round opens and which updates are aggregated, as in a service. A `TimedFleet` decides when devices
are available and how their jobs end. An engine takes one batch after the other, and trains its
jobs::

    campaign, models = TimedCampaign(read_policy("buffered:buffer=10"), fleet), {0: model}
    while campaign.now_s < hours * 3600:
        batch = campaign.next_batch()
        updates = train(batch, models)
        models[batch.version + 1] = aggregate(models[batch.version], updates, batch.weights)
        models = {v: m for v, m in models.items() if v >= campaign.oldest_version_needed}

Version v is the model after v aggregations. No device is in a batch twice.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import msgspec
import numpy as np

from aggregator.core.policies import policy_settings, staleness_weights
from aggregator.core.settings import ADMIT_ALL, RunSettings
from aggregator.fleet.events import (
    Aggregate,
    Aggregated,
    AssignmentDeclined,
    CheckedIn,
    Configured,
    Event,
    Seen,
    SendPlan,
    SetTimer,
    Started,
    Tick,
    Updated,
)
from aggregator.fleet.records import AdmittedUpdate, Assignment, Campaign, Fleet, Version
from aggregator.fleet.rounds import counted_updates
from aggregator.fleet.step import steps
from algorithms.core.keys import NEWCOMER
from algorithms.spec import Choice
from host.settings import LARGEST
from simulation.timing.availability import DAY_S
from simulation.timing.fleet import Jobs, TimedFleet
from simulation.timing.report import JobTotals
from wire.arrays.tensors import Array
from wire.errors import ConfigError, ShoalError
from wire.messages import CheckIn, Metrics

NAME, WAIT = "simulation", "/wait"
PATIENCE_S = 7 * DAY_S
"""Virtual seconds without an update after which a simulation gives up.

The cause is that no device was available, or that none finished in time.
"""
_COUNTS: Any = dict.fromkeys(("num_train", "num_steps", "bytes_up", "bytes_down"), 0)
UPDATE = AdmittedUpdate(blob="", start=NEWCOMER, evaluated=Metrics(), trained=Metrics(), **_COUNTS)
"""An update with the fields that the state machine reads."""
LOOK, END, RING = range(3)
"""Kinds of events, in their order within one second.

`LOOK`: devices become available or unavailable. `END`: a job ends. `RING`: a timer fires.
"""


@dataclass(frozen=True)
class JobBatch:
    """One aggregation: its updates as columns (k,), ordered by device."""

    version: int
    """Version that the aggregation changes; the result is version + 1."""
    at_s: float
    """Virtual second of the aggregation."""
    devices: Array = field(repr=False)
    """int64, ascending, all different."""
    versions: Array = field(repr=False)
    """int64: version that each device started from."""
    start_s: Array = field(repr=False)
    end_s: Array = field(repr=False)

    @property
    def staleness(self) -> Array:
        """Aggregations between a device's start and this one: int64, at least 0."""
        staleness: Array = self.version - self.versions
        return staleness

    @property
    def weights(self) -> Array:
        """Weight of each update in addition to its number of examples, float64.

        It is 1 / sqrt(1 + staleness) (FedBuff, section 5).
        """
        return staleness_weights(self.staleness)


class _Job(NamedTuple):
    device: int
    start_s: float
    end_s: float
    finishes: bool
    work: Assignment


class TimedCampaign:
    """A campaign with the chosen policy. The fleet serves no other campaign.

    A round opens as soon as enough devices for its cohort are free, or after `wait` seconds with
    the available ones. A device that drops out declines its assignment, and rests as after any
    failure. A device that becomes unavailable is offline, which the server notices at once; it is
    sent its assignment again if it returns in time. A late device works until it is done.
    """

    def __init__(
        self, choice: Choice, fleet: TimedFleet, device_ids: Sequence[str] | None = None
    ) -> None:
        """Start the campaign at virtual second 0.

        `device_ids` are the ids of the fleet's devices, from which cohorts are drawn; by default
        they are the devices' numbers.

        Raises:
            ConfigError: the cohort, concurrency or buffer is larger than the number of devices.
        """
        options = choice.options
        for key in ("cohort", "concurrency", "buffer"):
            if options.get(key, 0) > len(fleet):
                raise ConfigError(
                    f"policy {str(choice)!r}: {key} must be at most {len(fleet)}, the number of "
                    f"devices, got {options[key]}"
                )
        self.fleet, self.tally, self.now_s = fleet, JobTotals(), 0.0
        self.wait_s = options.get("wait", math.inf)
        explicit = tuple(pair for pair in choice.explicit if pair[0] != "wait")
        rule = replace(choice, explicit=explicit)
        fields = {**policy_settings(rule), **ADMIT_ALL, "deadline_s": options["deadline"]}
        fields |= {"algorithm": "", "data": "", "bundle": "", "reported": {}, "responses": {}}
        cohort_size = math.ceil(round(fields["cohort"] * fields["over_select"], 9)) or len(fleet)
        least = 1 if fields["buffer"] else min(cohort_size, int(fleet.able.sum()))
        overrides = {"rounds": LARGEST, "seed": fleet.seed, "min_devices": least, "grace_s": 0.0}
        self.settings = RunSettings(**fields | overrides | {"name": NAME, "run_id": NAME})
        self._ids = list(map(str, range(len(fleet))) if device_ids is None else device_ids)
        self._places = {device_id: place for place, device_id in enumerate(self._ids)}
        self._fleet = Fleet()
        self._heap: list[tuple[float, int, int, str | int]] = []
        self._pushed = 0
        self._timers: dict[str, float] = {}
        self._looks: dict[float, list[int]] = {}
        self._look_s = [0.0] * len(fleet)
        """Time of the next look at each device's availability.

        A device at work is skipped then, and looked at when its job ends.
        """
        self._there = [False] * len(fleet)
        self._sent: set[int] = set()
        """Devices that were sent an assignment and have not answered it."""
        self._jobs: dict[int, _Job] = {}
        self._updates: dict[int, _Job] = {}
        """Jobs whose updates count in the open round or in the next one, by device."""
        self._useless: list[_Job] = []
        """Finished jobs whose updates do not count."""
        self._settled: set[int] = set()
        """Serials of running jobs that are already counted as late."""
        self._is_due = False
        self._look(list(range(len(fleet))))
        models = {NEWCOMER: ""}
        first = Version(round=0, models=models, memory="", programs={"": ()}, newcomers=NEWCOMER)
        record = Campaign(settings=self.settings, next_settings=self.settings, version=first)
        self._feed(Started(at_s=0.0, campaign=NAME, record=record))

    @property
    def campaign(self) -> Campaign:
        """The record of the campaign."""
        return self._fleet.campaigns[NAME]

    @property
    def oldest_version_needed(self) -> int:
        """Version of the oldest assignment whose update may still count.

        Without a buffer it is the newest version.
        """
        newest = self.tally.aggregations
        if not self.settings.buffer:
            return newest
        works = [job.work for job in (*self._jobs.values(), *self._updates.values())]
        assignments = (self._fleet.devices[self._ids[place]].assignment for place in self._sent)
        works += [work for work in assignments if work is not None and not work.lapsed]
        return min([work.round - 1 for work in works], default=newest)

    def next_batch(self) -> JobBatch:
        """Advance the clock to the next aggregation, and return its batch.

        Raises:
            ShoalError: no update arrived for `PATIENCE_S`.
        """
        since_s, before = self.now_s, self._fleet.serial
        while not self._is_due:
            if not self._heap or self._heap[0][0] > since_s + PATIENCE_S:
                raise ShoalError(
                    f"No device finished within the deadline of {self.settings.deadline_s:g} s for "
                    f"{PATIENCE_S / DAY_S:g} days. All are too slow: set a longer deadline."
                    if self._jobs or self._fleet.serial > before
                    else f"No device was available with enough battery from {since_s:.0f} s to "
                    f"{since_s + PATIENCE_S:.0f} s"
                )
            self.now_s, kind, _, key = heapq.heappop(self._heap)
            if kind == LOOK:
                places = self._looks.pop(self.now_s)
                is_due = (self._look_s[p] == self.now_s and p not in self._jobs for p in places)
                self._look([p for p, due in zip(places, is_due, strict=True) if due])
            elif kind == END:
                self._end(self._jobs.pop(int(key)))
            elif self._timers.get(str(key)) == self.now_s:
                del self._timers[str(key)]
                if key != WAIT:
                    self._feed(Tick(at_s=self.now_s, keys=(str(key),)))
                elif self.campaign.phase == "waiting":
                    self._feed(self._configured(1))
        return self._aggregate()

    def _push(self, at_s: float, kind: int, key: str | int) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (at_s, kind, self._pushed, key))

    def _set_timer(self, key: str, at_s: float) -> None:
        if at_s < math.inf and self._timers.get(key) != at_s:
            self._timers[key] = at_s
            self._push(at_s, RING, key)

    def _feed(self, *events: Event) -> None:
        """Pass events of this second to the state machine, and carry out its commands."""
        self._fleet, commands = steps(self._fleet, events)
        plans = dict[int, Assignment]()
        for command in commands:
            if isinstance(command, SendPlan):
                plans[self._places[command.device_id]] = command.assignment
            elif isinstance(command, SetTimer):
                self._set_timer(command.key, command.at_s)
            elif isinstance(command, Aggregate):
                self._is_due = True
        self._sent |= plans.keys()
        self._begin(plans)
        campaign = self._fleet.campaigns.get(NAME)
        if campaign is not None and campaign.phase == "waiting" and not self._is_relaxed:
            self._set_timer(WAIT, campaign.phase_s + self.wait_s)

    @property
    def _is_relaxed(self) -> bool:
        """True if the open round begins with the available devices, however few."""
        return self.campaign.next_settings != self.settings

    def _configured(self, min_devices: int) -> Configured:
        settings = msgspec.structs.replace(self.settings, min_devices=min_devices)
        return Configured(at_s=self.now_s, campaign=NAME, settings=settings)

    def _look(self, places: list[int]) -> None:
        """Report devices that became available or unavailable, and plan the next look at each."""
        there, until_s = self.fleet.look(np.array(places, np.int64), self.now_s)
        events = list[Event]()
        for place, is_there, look_s in zip(places, there.tolist(), until_s.tolist(), strict=True):
            self._look_s[place] = look_s
            if look_s < math.inf:
                if look_s not in self._looks:
                    self._looks[look_s] = []
                    self._push(look_s, LOOK, "")
                self._looks[look_s].append(place)
            if is_there == self._there[place]:
                continue
            self._there[place] = is_there
            device_id = self._ids[place]
            count = int(self.fleet.work.examples[place])
            facts = CheckIn(device_id, count, 0, runtime=NAME)
            events.append(
                CheckedIn(at_s=self.now_s, device_id=device_id, facts=facts)
                if is_there
                else Seen(at_s=self.now_s, device_id=device_id, online=False)
            )
        self._feed(*events)

    def _begin(self, plans: dict[int, Assignment]) -> None:
        """Start jobs on the devices that were sent an assignment.

        A device that still works on an earlier one begins when that job ends.
        """
        free = [place for place in plans if self._there[place] and place not in self._jobs]
        if not free:
            return
        jobs = self.fleet.start(np.array(free, np.int64), np.full(len(free), self.now_s))
        for place, end_s, finishes in zip(
            free, jobs.end_s.tolist(), jobs.finishes.tolist(), strict=True
        ):
            self._jobs[place] = _Job(place, self.now_s, end_s, finishes, plans[place])
            self._push(end_s, END, place)

    def _end(self, job: _Job) -> None:
        """Report the end of a job to the state machine, and begin the device's next one."""
        place = job.device
        fields: Any = {"at_s": self.now_s, "device_id": self._ids[place], "serial": job.work.serial}
        is_settled = job.work.serial in self._settled
        self._settled.discard(job.work.serial)
        self._sent.discard(place)
        if self._look_s[place] <= self.now_s or self.fleet.is_on_battery:
            self._look([place])
        if job.finishes:
            self._feed(Updated(update=UPDATE, **fields))
        elif self.fleet.is_available(place, self.now_s):
            self._feed(AssignmentDeclined(**fields))
        if job.finishes and self._ids[place] in self.campaign.updates:
            self._updates[place] = job
        elif not is_settled:
            self._useless.append(job)
        work = self._fleet.devices[self._ids[place]].assignment
        if work is not None and not work.lapsed and work.serial != job.work.serial:
            self._begin({place: work})

    def _aggregate(self) -> JobBatch:
        """Aggregate the updates of the open round, and open the next round."""
        campaign, self._is_due = self.campaign, False
        counted = counted_updates(campaign)
        used = [self._updates.pop(self._places[device_id]) for device_id in counted]
        used.sort()
        late = list[_Job]()
        if not self.settings.buffer:  # a round has no use for the updates of earlier rounds
            late = [job for job in self._jobs.values() if job.work.serial not in self._settled]
            self._settled |= {job.work.serial for job in late}
        over = [*used, *self._useless, *late]
        self.tally.settle(self.fleet, _columns(over), np.arange(len(over)) < len(used))
        self.tally.failed += campaign.attempt
        jobs = _columns(used)
        stale = np.array([counted[self._ids[job.device]].staleness for job in used], np.int64)
        version = self.tally.aggregations
        batch = JobBatch(
            version, self.now_s, jobs.devices, version - stale, jobs.start_s, jobs.end_s
        )
        self.tally.aggregate(stale)
        self._useless = []
        new_version = msgspec.structs.replace(campaign.version, round=campaign.round)
        after = Aggregated(
            at_s=self.now_s, campaign=NAME, round=campaign.round, version=new_version
        )
        before = [self._configured(self.settings.min_devices)] if self._is_relaxed else []
        self._feed(*before, after)
        return batch


def _columns(jobs: Sequence[_Job]) -> Jobs:
    return Jobs(
        np.array([job.device for job in jobs], np.int64),
        np.array([job.start_s for job in jobs]),
        np.array([job.end_s for job in jobs]),
        np.array([job.finishes for job in jobs], bool),
    )
