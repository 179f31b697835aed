"""Each policy does what its paper says."""

import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.core.policies import read_policy
from aggregator.fleet.reconcile import REST_S
from simulation.timing.availability import Intervals
from simulation.timing.campaign import TimedCampaign
from simulation.timing.fleet import JobSize, TimedFleet
from simulation.timing.profiles import make_profiles, read_profiles
from simulation.timing.report import describe
from tests.simulation.timing_cases import Watched, make_fleet, run


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
        fleet = TimedFleet(profiles, JobSize(np.array([100, 100, 100]), 200_000, 100_000), 0)
        policy = TimedCampaign(read_policy("sync:deadline=11"), fleet)
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
        assert policy.next_batch().devices.tolist() == [1, 2]
        # the slow one is free at 15 s; it was late, so that the round does not wait for it
        assert policy.now_s == 15.0 + 10

    def test_nobody_waits_for_those_who_drop_out(self) -> None:
        fleet = make_fleet("always:dropout=0.5", 100)
        policy, batches = run("sync:cohort=100", fleet, 1)
        assert 30 < len(batches[0].devices) < 70
        assert batches[0].at_s == fleet.jobs.end_s.max()
        assert policy.tally.dropped == 100 - len(batches[0].devices)
        assert 0 < policy.tally.wasted_examples < fleet.work.examples[~fleet.jobs.finishes].sum()

    def test_one_that_drops_out_rests_as_in_a_service(self) -> None:
        fleet = make_fleet("always:dropout=0.5", 100)
        run("sync:cohort=20", fleet, 20)
        jobs = fleet.jobs.take(np.lexsort((fleet.jobs.start_s, fleet.jobs.devices)))
        same = jobs.devices[1:] == jobs.devices[:-1]
        pause_s, dropped = jobs.start_s[1:] - jobs.end_s[:-1], ~jobs.finishes[:-1]
        assert (pause_s[same & dropped] >= REST_S - 1e-6).all()
        assert (pause_s[same & ~dropped] < REST_S).any()
        twice = same[1:] & same[:-1] & dropped[1:] & dropped[:-1]
        assert twice.any()
        assert (pause_s[1:][twice] >= 2 * REST_S - 1e-6).all()

    def test_one_that_is_back_in_time_begins_again(self) -> None:
        profiles = replace(
            make_profiles(read_profiles("always:latency=0"), 2, 0),
            availability=Intervals(
                np.array([0, 2, 3]),
                np.array([0.0, 20.0, 0.0]),
                np.array([5.0, 1e4, 1e4]),
                86400.0,
            ),
        )
        fleet = Watched(profiles, JobSize(np.array([2000, 6000]), 0, 0), 0)  # 10 and 30 s
        batch = run("sync:deadline=100", fleet, 1)[1][0]
        assert batch.devices.tolist() == [0, 1]
        assert batch.start_s.tolist() == [20.0, 0.0]
        assert batch.end_s.tolist() == [30.0, 30.0]

    def test_begins_with_fewer_after_the_wait(self) -> None:
        fleet = make_fleet("boards:available=0.5", 200)
        batch = run("sync:cohort=200:wait=300", fleet, 1)[1][0]
        assert (batch.start_s == 300).all()
        assert 70 < len(batch.devices) < 130

    def test_a_round_without_updates_is_no_batch(self) -> None:
        policy, batches = run("sync:cohort=1", make_fleet("always:dropout=0.9", 50), 5)
        assert policy.tally.dropped > 5
        assert policy.tally.failed == 0  # another device has the place of one that drops out
        assert [b.version for b in batches] == list(range(5))
        slow = make_fleet("always:latency=0:speed=10:down=1e9:up=1e9", 3, examples=100)
        policy, batches = run("sync:deadline=1", slow, 1)
        assert policy.tally.failed > 0
        assert [b.version for b in batches] == [0]


class TestOverSelect:
    @given(
        seed=st.integers(0, 2**63),
        cohort=st.integers(1, 40),
        over=st.floats(0, 2),
        devices=st.sampled_from([130, 1500]),
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
        asked, more = (fleet.jobs.take(fleet.jobs.start_s == 0) for fleet in (sync, chosen))
        assert set(asked.devices) <= set(more.devices)
        assert len(more) == min(math.ceil(round(cohort * (1 + over), 9)), devices)
        assert len(batch.devices) == cohort
        assert batch.at_s <= first.at_s

    def test_late_ones_are_discarded_and_busy_until_they_are_done(self) -> None:
        fleet = make_fleet("boards:dropout=0:available=1", 26)
        policy, batches = run("over-select:cohort=20:over=0.3:deadline=1e9", fleet, 1)
        asked = fleet.jobs.take(fleet.jobs.start_s == 0)
        late = asked.take(asked.end_s > batches[0].at_s)
        assert policy.tally.late == len(late) == 6
        assert policy.tally.wasted_examples == fleet.work.examples[late.devices].sum()
        after = fleet.jobs.take(fleet.jobs.start_s > 0)
        assert set(late.devices).isdisjoint(after.devices[after.start_s < late.end_s.min()])

    def test_no_more_updates_than_asked_for_where_several_arrive_at_once(self) -> None:
        profiles = make_profiles(read_profiles("always"), 100, 0)
        batch = run(
            "over-select:cohort=10", TimedFleet(profiles, JobSize(np.full(100, 50), 0, 0), 0), 1
        )[1][0]
        assert len(batch.devices) == 10


class TestBuffered:
    @settings(max_examples=20)
    @given(
        kind=st.sampled_from(["uniform", "boards:available=1:dropout=0"]),
        devices=st.sampled_from([12, 40, 300]),
        seed=st.integers(0, 2**63),
        concurrency=st.integers(1, 12),
        buffer=st.integers(1, 12),
    )
    def test_an_update_starts_from_the_newest_model_and_fills_the_buffer(
        self, kind: str, devices: int, seed: int, concurrency: int, buffer: int
    ) -> None:
        fleet = make_fleet(kind, devices, seed)
        text = f"buffered:concurrency={concurrency}:buffer={buffer}:deadline=1e6"
        batches = run(text, fleet, 8)[1]
        aggregated_s = np.array([b.at_s for b in batches])
        for batch in batches:
            assert len(batch.devices) == buffer
            assert batch.end_s.max() == batch.at_s
            newest = np.searchsorted(aggregated_s, batch.start_s, side="right")
            before = np.searchsorted(aggregated_s, batch.start_s, side="left")
            assert ((before <= batch.versions) & (batch.versions <= newest)).all()
        for at_s in fleet.jobs.start_s:
            assert ((fleet.jobs.start_s <= at_s) & (fleet.jobs.end_s > at_s)).sum() <= concurrency

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
        fleet = TimedFleet(
            replace(profiles, examples_per_s=np.linspace(99, 101, 1000)),
            JobSize(np.full(1000, 1000), 0, 0),
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
            JobSize(np.full(20, 100), 0, 0),
            0,
        )
        policy, batches = run("buffered:concurrency=10:buffer=5:deadline=30", fleet, 500)
        slow = [b for b in batches if (b.devices < 5).any()]
        assert len(slow) < len(batches) / 10
        assert all((b.at_s - b.start_s[b.devices < 5] >= 100).all() for b in slow)
        # while one of them works, others have its place
        assert policy.now_s < 500 * 5 / 10 * 2
        assert len(fleet.jobs.take(fleet.jobs.devices < 5)) < 100
