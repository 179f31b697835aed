"""Fleets on the virtual clock that remember every job they started."""

import numpy as np
from hypothesis import strategies as st

from aggregator.core.round.cohort import read_policy
from simulation.timing.draws import SMALL
from simulation.timing.fleet import NO_JOBS, Fleet, Jobs, Work
from simulation.timing.policies import Batch, Policy, make_policy
from simulation.timing.profiles import make_profiles, read_profiles
from wire.arrays.tensors import Array

POLICIES = (
    "sync:cohort=8:deadline=900",
    "over-select:cohort=8:over=0.5:deadline=900",
    "buffered:concurrency=12:buffer=5:deadline=900",
)


class Watched(Fleet):
    """A fleet that remembers every job it started."""

    jobs: Jobs = NO_JOBS

    def start(self, devices: Array, start_s: Array) -> Jobs:
        jobs = super().start(devices, start_s)
        self.jobs = self.jobs.join(jobs)
        return jobs


def make_fleet(text: str, devices: int, seed: int = 0, examples: int = 400) -> Watched:
    counts = np.random.default_rng(seed).integers(1, 2 * examples, devices)
    return Watched(
        make_profiles(read_profiles(text), devices, seed), Work(counts, 200_000, 200_000), seed
    )


def run(text: str, fleet: Fleet, count: int) -> tuple[Policy, list[Batch]]:
    policy = make_policy(read_policy(text), fleet)
    return policy, [policy.next_batch() for _ in range(count)]


def bits(batch: Batch) -> tuple[bytes | float, ...]:
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
    devices=st.sampled_from([12, 13, 40, 300, SMALL + 5]),
    seed=st.integers(0, 2**63),
)
