"""Fleets on the virtual clock that remember every job they started."""

import numpy as np
from hypothesis import strategies as st

from aggregator.core.policies import read_policy
from simulation.timing.campaign import JobBatch, TimedCampaign
from simulation.timing.fleet import Jobs, JobSize, TimedFleet
from simulation.timing.profiles import make_profiles, read_profiles
from wire.arrays.tensors import Array

POLICIES = (
    "sync:cohort=8:deadline=900",
    "over-select:cohort=8:over=0.5:deadline=900",
    "buffered:concurrency=12:buffer=5:deadline=900",
)


class Rows(Jobs):
    """Jobs of which some can be taken."""

    def __len__(self) -> int:
        return len(self.devices)

    def take(self, rows: Array) -> "Rows":
        """Return the jobs at `rows`, indices or a mask."""
        return Rows(self.devices[rows], self.start_s[rows], self.end_s[rows], self.finishes[rows])


class Watched(TimedFleet):
    """A fleet that remembers every job it started."""

    jobs = Rows(np.zeros(0, np.int64), np.zeros(0), np.zeros(0), np.zeros(0, bool))

    def start(self, devices: Array, start_s: Array) -> Jobs:
        jobs, columns = super().start(devices, start_s), ("devices", "start_s", "end_s", "finishes")
        pairs = ((getattr(self.jobs, name), getattr(jobs, name)) for name in columns)
        self.jobs = Rows(*map(np.concatenate, pairs))
        return jobs


def make_fleet(text: str, devices: int, seed: int = 0, examples: int = 400) -> Watched:
    counts = np.random.default_rng(seed).integers(1, 2 * examples, devices)
    return Watched(
        make_profiles(read_profiles(text), devices, seed), JobSize(counts, 200_000, 200_000), seed
    )


def run(text: str, fleet: TimedFleet, count: int) -> tuple[TimedCampaign, list[JobBatch]]:
    policy = TimedCampaign(read_policy(text), fleet)
    return policy, [policy.next_batch() for _ in range(count)]


def bits(batch: JobBatch) -> tuple[bytes | float, ...]:
    columns = (batch.devices, batch.versions, batch.weights, batch.start_s, batch.end_s)
    return batch.version, batch.at_s, *(column.tobytes() for column in columns)


fleets = st.builds(
    make_fleet,
    text=st.sampled_from(
        [
            "phones",
            "phones:available=1:battery=900",
            "boards",
            "uniform:dropout=0.3",
            "always",
            "always:dropout=0.5",
        ]
    ),
    devices=st.sampled_from([12, 13, 40, 300, 1029]),
    seed=st.integers(0, 2**63),
)
