"""Cost of a run in virtual time, devices, examples and bytes, and time to reach an accuracy."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aggregator.view.summary import (
    ExampleCounts,
    JobCounts,
    Staleness,
    TimeSummary,
    Utilisation,
    VirtualTraffic,
)
from simulation.timing.fleet import Jobs, TimedFleet
from wire.arrays.tensors import Array

Point = tuple[float, float | None]
"""(virtual second, accuracy); the accuracy is None if nothing could be tested."""


@dataclass
class JobTotals:
    """Counts of finished jobs. Each job counts once: as completed, dropped or late."""

    completed: int = 0
    dropped: int = 0
    late: int = 0
    examples: float = 0.0
    """Number of examples trained in all jobs together."""
    wasted_examples: float = 0.0
    """Examples trained in jobs whose update was not aggregated."""
    down_bytes: float = 0.0
    up_bytes: float = 0.0
    wasted_bytes: float = 0.0
    busy_s: float = 0.0
    """Device-seconds spent in all jobs."""
    useful_s: float = 0.0
    """Device-seconds spent in jobs whose update was aggregated."""
    aggregations: int = 0
    failed: int = 0
    """Number of rounds that ended without an update."""
    staleness: int = 0
    """Sum of the staleness of all aggregated updates."""
    most_stale: int = 0

    @property
    def invited(self) -> int:
        """Number of jobs that were started and are over."""
        return self.completed + self.dropped + self.late

    def settle(self, fleet: TimedFleet, jobs: Jobs, aggregated: Array) -> None:
        """Count jobs that are over.

        `aggregated` (k,) bool is True for jobs whose update was aggregated. Other jobs that finish
        are late.
        """
        examples, down, up = fleet.progress(jobs)
        spent_s, wasted = jobs.end_s - jobs.start_s, ~aggregated
        self.completed += int(aggregated.sum())
        self.dropped += int((~jobs.finishes).sum())
        self.late += int((jobs.finishes & wasted).sum())
        self.examples += float(examples.sum())
        self.wasted_examples += float(examples[wasted].sum())
        self.down_bytes += float(down.sum())
        self.up_bytes += float(up.sum())
        self.wasted_bytes += float((down + up)[wasted].sum())
        self.busy_s += float(spent_s.sum())
        self.useful_s += float(spent_s[aggregated].sum())

    def aggregate(self, staleness: Array) -> None:
        """Count one aggregation; `staleness` (k,) int64 is that of its updates."""
        self.aggregations += 1
        self.staleness += int(staleness.sum())
        self.most_stale = max(self.most_stale, int(staleness.max()))


def time_to_accuracy(points: Sequence[Point], target: float) -> float | None:
    """Return the first virtual second with an accuracy of `target` or more, or None."""
    return next(
        (
            at_s
            for at_s, accuracy in sorted(points, key=lambda p: p[0])
            if accuracy is not None and accuracy >= target
        ),
        None,
    )


def describe(
    tally: JobTotals, elapsed_s: float, points: Sequence[Point] = (), targets: Sequence[float] = ()
) -> TimeSummary:
    """Return counts and shares of a run that took `elapsed_s` virtual seconds.

    With `points`, the summary has the accuracy over time and the time to reach each of `targets`.

    ``utilisation``: ``useful`` is the share of the devices' seconds that went into aggregated
    updates; ``at_work`` is the mean number of devices at work at a time, over jobs that are over. A
    job counts as over when it is late or given up, although its device works on. Shares of nothing
    are None.
    """
    return TimeSummary(
        virtual_s=round(elapsed_s, 3),
        aggregations=tally.aggregations,
        failed_rounds=tally.failed,
        devices=JobCounts(
            invited=tally.invited, completed=tally.completed, dropped=tally.dropped, late=tally.late
        ),
        examples=ExampleCounts(trained=round(tally.examples), wasted=round(tally.wasted_examples)),
        bytes=VirtualTraffic(
            down=round(tally.down_bytes), up=round(tally.up_bytes), wasted=round(tally.wasted_bytes)
        ),
        staleness=Staleness(mean=_ratio(tally.staleness, tally.completed), max=tally.most_stale),
        utilisation=Utilisation(
            useful=_ratio(tally.useful_s, tally.busy_s), at_work=_ratio(tally.busy_s, elapsed_s)
        ),
        accuracy=[
            (round(at_s, 3), None if accuracy is None else round(accuracy, 6))
            for at_s, accuracy in points
        ],
        time_to_accuracy_s={
            f"{target:g}": None if reached_s is None else round(reached_s, 3)
            for target in targets
            for reached_s in [time_to_accuracy(points, target)]
        }
        if points
        else {},
    )


def _ratio(part: float, whole: float) -> float | None:
    return round(float(np.divide(part, whole)), 6) if whole else None
