"""Each policy does what its paper says."""

import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from aggregator.core.round.cohort import read_policy
from simulation.timing.draws import SMALL
from simulation.timing.fleet import Fleet, Work
from simulation.timing.policies import make_policy
from simulation.timing.profiles import make_profiles, read_profiles
from simulation.timing.report import describe
from tests.simulation.event_queue import EventQueue
from tests.simulation.timing_cases import Watched, fleets, make_fleet, run
from wire.errors import ShoalError


class TestSync:
    @given(
        seed=st.integers(0, 2**63),
        cohort=st.integers(1, 30),
        kind=st.sampled_from(["always", "uniform", "boards:available=1:dropout=0"]),
    )
    def test_takes_as_long_as_the_slowest(self, seed: int, cohort: int, kind: str) -> None:
        fleet = make_fleet(kind, 30, seed)
        before_s = 0.0
        for batch in run(f"sync:cohort={cohort}:deadline=1e9", fleet, 4)[1]:
            assert len(batch.devices) == cohort
            assert (batch.start_s == before_s).all()
            assert batch.at_s == (before_s + fleet.duration_s[batch.devices]).max()
            before_s = batch.at_s

    def test_a_round_by_hand(self) -> None:
        profiles = replace(
            make_profiles(read_profiles("always:latency=0.5:down=1e5:up=5e4"), 3, 0),
            examples_per_s=np.array([10.0, 20.0, 40.0]),
        )
        fleet = Fleet(profiles, Work(np.array([100, 100, 100]), 200_000, 100_000), 0)
        policy = make_policy(read_policy("sync:deadline=11"), fleet)
        batch = policy.next_batch()  # 1 s of latency, 2 s down, 2 s up; 10, 5 and 2.5 s of training
        assert batch.at_s == 11.0
        assert batch.devices.tolist() == [1, 2]
        assert batch.end_s.tolist() == [10.0, 7.5]
        assert msgspec.to_builtins(describe(policy.tally, policy.now_s)) == {
            "virtual_s": 11.0,
            "aggregations": 1,
            "failed_rounds": 0,
            "devices": {"invited": 3, "completed": 2, "dropped": 0, "late": 1},
            "examples": {"trained": 300, "wasted": 100},
            "bytes": {"down": 600_000, "up": 300_000, "wasted": 300_000},
            "staleness": {"mean": 0.0, "max": 0},
            "utilisation": {"useful": round(17.5 / 32.5, 6), "at_work": round(32.5 / 11, 6)},
        }
        assert policy.next_batch().devices.tolist() == [
            1,
            2,
        ]  # the slow one is back at 15 s: the server waits for it, until 71 s
        assert policy.now_s == 11.0 + 60 + 11

    def test_nobody_waits_for_those_who_drop_out(self) -> None:
        fleet = make_fleet("always:dropout=0.5", 100)
        policy, batches = run("sync:cohort=100", fleet, 1)
        assert 30 < len(batches[0].devices) < 70
        assert batches[0].at_s == fleet.jobs.end_s.max()
        assert policy.tally.dropped == 100 - len(batches[0].devices)
        assert 0 < policy.tally.wasted_examples < fleet.work.examples[~fleet.jobs.finishes].sum()

    def test_begins_with_fewer_after_the_wait(self) -> None:
        fleet = make_fleet("boards:available=0.5", 200)
        batch = run("sync:cohort=200:wait=300", fleet, 1)[1][0]
        assert (batch.start_s == 300).all()
        assert 70 < len(batch.devices) < 130

    def test_a_round_without_updates_is_no_batch(self) -> None:
        policy, batches = run("sync:cohort=1", make_fleet("always:dropout=0.9", 50), 5)
        assert policy.tally.failed > 5
        assert [b.version for b in batches] == list(range(5))


class TestOverSelect:
    @given(
        seed=st.integers(0, 2**63),
        cohort=st.integers(1, 40),
        over=st.floats(0, 2),
        devices=st.sampled_from([130, SMALL + 500]),
        kind=st.sampled_from(
            ["phones:dropout=0:available=1:ratio=1", "boards:dropout=0:available=1", "always"]
        ),
    )
    def test_never_later_than_sync_on_the_same_draw(
        self, seed: int, cohort: int, over: float, devices: int, kind: str
    ) -> None:
        sync, chosen = (make_fleet(kind, devices, seed) for _ in range(2))
        first = run(f"sync:cohort={cohort}:deadline=1e9", sync, 1)[1][0]
        batch = run(f"over-select:cohort={cohort}:over={over}:deadline=1e9", chosen, 1)[1][0]
        assert set(sync.jobs.devices) <= set(chosen.jobs.devices)
        assert len(chosen.jobs) == min(math.ceil(round(cohort * (1 + over), 9)), devices)
        assert len(batch.devices) == cohort
        assert batch.at_s <= first.at_s

    def test_late_ones_are_discarded_and_busy_until_they_are_done(self) -> None:
        fleet = make_fleet("boards:dropout=0:available=1", 26)
        policy, batches = run("over-select:cohort=20:over=0.3:deadline=1e9", fleet, 1)
        late = fleet.jobs.end_s > batches[0].at_s
        assert policy.tally.late == late.sum() == 6
        assert policy.tally.wasted_examples == fleet.work.examples[fleet.jobs.devices[late]].sum()
        assert set(fleet.find(batches[0].at_s, 26)) == set(batches[0].devices)

    def test_no_more_updates_than_asked_for_where_several_arrive_at_once(self) -> None:
        profiles = make_profiles(read_profiles("always"), 100, 0)
        batch = run("over-select:cohort=10", Fleet(profiles, Work(np.full(100, 50), 0, 0), 0), 1)[
            1
        ][0]
        assert len(batch.devices) == 10


class TestBuffered:
    @settings(max_examples=20)
    @given(
        fleet=fleets,
        concurrency=st.integers(1, 12),
        buffer=st.integers(1, 12),
        deadline=st.sampled_from([20.0, 900.0]),
    )
    def test_is_what_a_server_does_event_by_event(
        self, fleet: Watched, concurrency: int, buffer: int, deadline: float
    ) -> None:
        text = f"buffered:concurrency={concurrency}:buffer={buffer}:deadline={deadline}"
        try:
            policy, batches = run(text, fleet, 8)
        except ShoalError:  # a fleet that is too slow for its deadline
            reject()
        queue: EventQueue[tuple[str, int]] = EventQueue()
        jobs = fleet.jobs.take(fleet.jobs.start_s < policy.now_s)
        leaves_s = np.minimum(jobs.end_s, jobs.start_s + deadline)
        for job in range(len(jobs)):
            queue.add(float(leaves_s[job]), ("leaves", job))
        for job in range(
            len(jobs)
        ):  # after those that leave in the same second: a start sees what was aggregated then
            queue.add(float(jobs.start_s[job]), ("starts", job))
        at_work, started_from, waiting = 0, dict[int, int](), list[int]()
        seen: list[tuple[float, set[tuple[int, int]]]] = []
        while queue and len(seen) < len(batches):
            what, job = queue.pop()
            if what == "starts":
                started_from[job] = len(seen)
                at_work += 1
                assert at_work <= concurrency
                continue
            at_work -= 1
            if jobs.finishes[job] and jobs.end_s[job] <= jobs.start_s[job] + deadline:
                waiting.append(job)
                if len(waiting) == buffer:
                    seen.append(
                        (queue.clock(), {(int(jobs.devices[j]), started_from[j]) for j in waiting})
                    )
                    waiting = []
        assert [at_s for at_s, _ in seen] == [b.at_s for b in batches]
        if len(set(leaves_s)) == len(leaves_s):
            pairs = [
                set(zip(b.devices.tolist(), b.versions.tolist(), strict=True)) for b in batches
            ]
            assert [updates for _, updates in seen] == pairs

    def test_every_place_is_filled_at_once(self) -> None:
        fleet = make_fleet("uniform:dropout=0.1", 500)
        policy, _ = run("buffered:concurrency=50:buffer=20", fleet, 40)
        started = fleet.jobs.start_s < policy.now_s
        for at_s in np.linspace(0, policy.now_s, 57)[1:-1]:
            assert ((fleet.jobs.start_s <= at_s) & (fleet.jobs.end_s > at_s) & started).sum() == 50

    def test_staleness_is_that_of_the_queue(self) -> None:
        """Nearly alike: 100 updates arrive while one device trains, so 10 aggregations, or 9 where
        one begins with an aggregation."""
        profiles = make_profiles(read_profiles("always"), 1000, 0)
        fleet = Fleet(
            replace(profiles, examples_per_s=np.linspace(99, 101, 1000)),
            Work(np.full(1000, 1000), 0, 0),
            0,
        )
        policy, batches = run("buffered:concurrency=100:buffer=10", fleet, 300)
        assert np.mean([b.staleness.mean() for b in batches[50:]]) == pytest.approx(9.9, abs=0.1)
        assert describe(policy.tally, policy.now_s).utilisation.at_work == pytest.approx(
            100, rel=0.05
        )

    def test_slow_devices_are_given_up(self) -> None:
        profiles = make_profiles(read_profiles("always"), 20, 0)
        fleet = Watched(
            replace(profiles, examples_per_s=np.where(np.arange(20) < 5, 1.0, 100.0)),
            Work(np.full(20, 100), 0, 0),
            0,
        )
        policy, batches = run("buffered:concurrency=10:buffer=5:deadline=30", fleet, 500)
        assert all((b.devices >= 5).all() for b in batches)
        assert policy.tally.late >= 3
        assert policy.tally.most_stale < 100
