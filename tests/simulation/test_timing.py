"""Virtual time: the same seed gives the same run, nobody is in two places, and every policy does what its paper says."""

import math
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from aggregator.core.summary import TimeSummary, Utilisation
from simulation.timing import policies
from simulation.timing.availability import Curve, Intervals, stays_until
from simulation.timing.draws import SMALL, Shuffled, make_key, uniform
from simulation.timing.fleet import LOOKS, NO_JOBS, Fleet, Jobs, Work
from simulation.timing.policies import Batch, Policy, Sync, make_policy, read_policy
from simulation.timing.profiles import DISTRIBUTIONS, NIGHT, Profiles, make_profiles, read_profiles
from simulation.timing.report import Tally, describe, time_to_accuracy
from tests.simulation.event_queue import EventQueue, VirtualClock
from wire.errors import ConfigError, DataError, ShoalError
from wire.tensors import Array

POLICIES = ("sync:cohort=8:deadline=900", "over-select:cohort=8:over=0.5:deadline=900", "buffered:concurrency=12:buffer=5:deadline=900")


class Watched(Fleet):
    """A fleet that remembers every job it started."""

    jobs: Jobs = NO_JOBS

    def start(self, devices: Array, start_s: Array) -> Jobs:
        jobs = super().start(devices, start_s)
        self.jobs = self.jobs.join(jobs)
        return jobs


def make_fleet(text: str, devices: int, seed: int = 0, examples: int = 400) -> Watched:
    counts = np.random.default_rng(seed).integers(1, 2 * examples, devices)
    return Watched(make_profiles(read_profiles(text), devices, seed), Work(counts, 200_000, 200_000), seed)


def run(text: str, fleet: Fleet, count: int) -> tuple[Policy, list[Batch]]:
    policy = make_policy(read_policy(text), fleet)
    return policy, [policy.next_batch() for _ in range(count)]


def bits(batch: Batch) -> tuple[bytes | float, ...]:
    columns = (batch.devices, batch.versions, batch.weights, batch.start_s, batch.end_s)
    return batch.version, batch.at_s, *(column.tobytes() for column in columns)


fleets = st.builds(
    make_fleet,
    text=st.sampled_from(["phones", "phones:available=1:battery=900", "boards", "uniform:dropout=0.3", "always", "always:dropout=0.5"]),
    devices=st.sampled_from([12, 13, 40, 300, SMALL + 5]),
    seed=st.integers(0, 2**63),
)


class TestEveryPolicy:
    @settings(max_examples=20, deadline=None)
    @given(text=st.sampled_from(POLICIES), kind=st.sampled_from(["phones", "boards"]), seed=st.integers(0, 2**63))
    def test_same_seed_same_bits(self, text: str, kind: str, seed: int) -> None:
        one, two = (run(text, make_fleet(kind, 60, seed), 5)[1] for _ in range(2))
        assert [bits(b) for b in one] == [bits(b) for b in two]
        assert [bits(b) for b in one] != [bits(b) for b in run(text, make_fleet(kind, 60, seed + 1), 5)[1]]

    @settings(max_examples=60, deadline=None)
    @given(text=st.sampled_from(POLICIES), fleet=fleets)
    def test_no_device_is_in_two_places(self, text: str, fleet: Watched) -> None:
        run(text, fleet, 6)
        jobs = fleet.jobs.take(np.lexsort((fleet.jobs.start_s, fleet.jobs.devices)))
        same = jobs.devices[1:] == jobs.devices[:-1]
        assert (jobs.start_s[1:] >= jobs.end_s[:-1])[same].all()
        assert (jobs.end_s > jobs.start_s).mean() > 0.9  # a device may be lost in the second in which it starts

    @settings(max_examples=60, deadline=None)
    @given(text=st.sampled_from(POLICIES), fleet=fleets)
    def test_batches_are_in_order_and_name_what_is_kept(self, text: str, fleet: Watched) -> None:
        policy = make_policy(read_policy(text), fleet)
        at_s, needed = 0.0, 0
        for number in range(8):
            batch = policy.next_batch()
            assert batch.version == number
            assert batch.at_s >= at_s
            assert (np.diff(batch.devices) > 0).all()
            assert (batch.staleness >= 0).all()
            assert (batch.versions >= needed).all()
            assert (batch.end_s <= batch.at_s).all()
            np.testing.assert_allclose(batch.end_s - batch.start_s, fleet.duration_s[batch.devices], atol=1e-6)
            np.testing.assert_allclose(batch.weights, (1 + batch.version - batch.versions) ** -0.5)
            assert needed <= policy.oldest_version_needed <= number + 1
            assert policy.now_s == batch.at_s
            at_s, needed = batch.at_s, policy.oldest_version_needed

    @settings(max_examples=60, deadline=None)
    @given(
        text=st.sampled_from(["sync:cohort=8:deadline=1e5", "over-select:cohort=8:deadline=1e5", "buffered:buffer=5:deadline=1e5"]),
        kind=st.sampled_from(["phones", "phones:speed=0.2", "boards:available=0.5:ratio=2:speed=0.1"]),
        seed=st.integers(0, 2**63),
    )
    def test_availability_is_honoured(self, text: str, kind: str, seed: int) -> None:
        fleet = make_fleet(kind, 60, seed)  # with jobs of seconds, or of an hour
        run(text, fleet, 4)
        ask, jobs = fleet.profiles.availability.ask, fleet.jobs
        assert ask(jobs.devices, jobs.start_s).all()
        for share in (0.25, 0.5, 0.75, 1 - 1e-9):
            assert ask(jobs.devices, jobs.start_s + share * (jobs.end_s - jobs.start_s)).all()

    @settings(max_examples=60, deadline=None)
    @given(
        text=st.sampled_from(POLICIES),
        battery=st.integers(800, 3000),
        charging=st.sampled_from([0.5, 8, 24]),
        dropout=st.sampled_from([0, 0.4]),
        seed=st.integers(0, 1000),
    )
    def test_battery_never_below_zero(self, text: str, battery: int, charging: float, dropout: float, seed: int) -> None:
        fleet = make_fleet(f"always:battery={battery}:charging={charging}:dropout={dropout}:hour=21", 40, seed)
        run(text, fleet, 5)
        for device in np.unique(fleet.jobs.devices):
            starts_s = np.sort(fleet.jobs.start_s[fleet.jobs.devices == device])
            level, before_s = float(battery), 0.0
            for start_s in starts_s:  # charged second by second, in slices of 10
                slices_s = np.arange(before_s, start_s, 10.0)
                on_charger = (slices_s + 21 * 3600 - 22 * 3600) % 86400 < 3600 * charging
                level = min(battery, level + battery * 10.0 * on_charger.sum() / 7200)
                level -= fleet.work.examples[device]
                assert level >= -0.01 * battery
                before_s = start_s
        everyone = np.arange(len(fleet))
        last_s = np.full(len(fleet), fleet.jobs.start_s.max() + 1e5)
        assert (fleet.battery(everyone, last_s) >= 0).all()
        assert (fleet.battery(everyone, last_s) <= battery).all()

    @pytest.mark.parametrize("text", ["sync:cohort=50", "over-select:cohort=50", "buffered:concurrency=50:buffer=25"])
    def test_cost_does_not_grow_with_the_fleet(self, text: str) -> None:
        looks = []
        for devices in (5_000, 50_000, 500_000):
            policy, _ = run(text, make_fleet("phones", devices), 12)
            looks.append(policy.fleet.looks / policy.tally.invited)
        assert max(looks) < 2 * min(looks)
        assert max(looks) < 2 * LOOKS

    @pytest.mark.parametrize("text", POLICIES)
    def test_counts_add_up(self, text: str) -> None:
        fleet = make_fleet("phones:dropout=0.3:available=1:ratio=1", 200)
        policy, batches = run(text, fleet, 20)
        tally = policy.tally
        assert tally.completed == sum(len(b.devices) for b in batches)
        assert tally.invited == tally.completed + tally.dropped + tally.late
        assert tally.invited <= len(fleet.jobs)
        assert 0.2 < tally.dropped / tally.invited < 0.4
        used = sum(int(fleet.work.examples[b.devices].sum()) for b in batches)
        assert tally.examples - tally.wasted_examples == pytest.approx(used)
        assert tally.down_bytes + tally.up_bytes - tally.wasted_bytes == pytest.approx(400_000 * tally.completed)
        assert tally.useful_s == pytest.approx(sum(float((b.end_s - b.start_s).sum()) for b in batches))

    def test_batches_do_not_depend_on_how_many_were_looked_at(self, monkeypatch: pytest.MonkeyPatch) -> None:
        one = run(POLICIES[0], make_fleet("phones", 3000), 10)[1]
        monkeypatch.setattr("simulation.timing.fleet.SPARE", 7.0)
        assert [bits(b) for b in run(POLICIES[0], make_fleet("phones", 3000), 10)[1]] == [bits(b) for b in one]

    def test_gives_up_when_nobody_comes(self) -> None:
        for text in POLICIES:
            with pytest.raises(ShoalError, match="no device"):
                run(text, make_fleet("phones:available=0", 20), 1)

    def test_gives_up_when_nobody_finishes(self) -> None:
        with pytest.raises(ShoalError, match="deadline of 100 s for 7 days"):
            run("sync:deadline=100", make_fleet("always:speed=0.001", 12), 1)
        with pytest.raises(ShoalError, match="too slow"):
            run("buffered:deadline=100", make_fleet("always:speed=0.001", 12), 1)


class TestSync:
    @settings(max_examples=40, deadline=None)
    @given(
        seed=st.integers(0, 2**63), cohort=st.integers(1, 30), kind=st.sampled_from(["always", "uniform", "boards:available=1:dropout=0"])
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
            make_profiles(read_profiles("always:latency=0.5:down=1e5:up=5e4"), 3, 0), examples_per_s=np.array([10.0, 20.0, 40.0])
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
        assert policy.next_batch().devices.tolist() == [1, 2]  # the slow one is back at 15 s: the server waits for it, until 71 s
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
    @settings(max_examples=60, deadline=None)
    @given(
        seed=st.integers(0, 2**63),
        cohort=st.integers(1, 40),
        over=st.floats(0, 2),
        devices=st.sampled_from([130, SMALL + 500]),
        kind=st.sampled_from(["phones:dropout=0:available=1:ratio=1", "boards:dropout=0:available=1", "always"]),
    )
    def test_never_later_than_sync_on_the_same_draw(self, seed: int, cohort: int, over: float, devices: int, kind: str) -> None:
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
        batch = run("over-select:cohort=10", Fleet(profiles, Work(np.full(100, 50), 0, 0), 0), 1)[1][0]
        assert len(batch.devices) == 10


class TestBuffered:
    @settings(max_examples=60, deadline=None)
    @given(fleet=fleets, concurrency=st.integers(1, 12), buffer=st.integers(1, 12), deadline=st.sampled_from([20.0, 900.0]))
    def test_is_what_a_server_does_event_by_event(self, fleet: Watched, concurrency: int, buffer: int, deadline: float) -> None:
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
        for job in range(len(jobs)):  # after those that leave in the same second: a start sees what was aggregated then
            queue.add(float(jobs.start_s[job]), ("starts", job))
        at_work, started_from, waiting, seen = 0, {}, [], []
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
                    seen.append((queue.clock(), {(int(jobs.devices[j]), started_from[j]) for j in waiting}))
                    waiting = []
        assert [at_s for at_s, _ in seen] == [b.at_s for b in batches]
        if len(set(leaves_s)) == len(leaves_s):
            pairs = [set(zip(b.devices.tolist(), b.versions.tolist(), strict=True)) for b in batches]
            assert [updates for _, updates in seen] == pairs

    def test_every_place_is_filled_at_once(self) -> None:
        fleet = make_fleet("uniform:dropout=0.1", 500)
        policy, _ = run("buffered:concurrency=50:buffer=20", fleet, 40)
        started = fleet.jobs.start_s < policy.now_s
        for at_s in np.linspace(0, policy.now_s, 57)[1:-1]:
            assert ((fleet.jobs.start_s <= at_s) & (fleet.jobs.end_s > at_s) & started).sum() == 50

    def test_staleness_is_that_of_the_queue(self) -> None:
        """Nearly alike: 100 updates arrive while one device trains, so 10 aggregations, or 9 where one begins with an aggregation."""
        profiles = make_profiles(read_profiles("always"), 1000, 0)
        fleet = Fleet(replace(profiles, examples_per_s=np.linspace(99, 101, 1000)), Work(np.full(1000, 1000), 0, 0), 0)
        policy, batches = run("buffered:concurrency=100:buffer=10", fleet, 300)
        assert np.mean([b.staleness.mean() for b in batches[50:]]) == pytest.approx(9.9, abs=0.1)
        assert describe(policy.tally, policy.now_s).utilisation.at_work == pytest.approx(100, rel=0.05)

    def test_slow_devices_are_given_up(self) -> None:
        profiles = make_profiles(read_profiles("always"), 20, 0)
        fleet = Watched(replace(profiles, examples_per_s=np.where(np.arange(20) < 5, 1.0, 100.0)), Work(np.full(20, 100), 0, 0), 0)
        policy, batches = run("buffered:concurrency=10:buffer=5:deadline=30", fleet, 500)
        assert all((b.devices >= 5).all() for b in batches)
        assert policy.tally.late >= 3
        assert policy.tally.most_stale < 100


class TestProfiles:
    @pytest.mark.parametrize("text", [name for name in DISTRIBUTIONS if name != "trace"])
    def test_columns(self, text: str) -> None:
        one, two, other = (make_profiles(read_profiles(text), 50, seed) for seed in (3, 3, 4))
        assert len(one) == 50
        for name in ("examples_per_s", "down_bytes_per_s", "up_bytes_per_s", "latency_s", "dropout", "battery_examples", "charge_s"):
            column = getattr(one, name)
            assert (column.shape, column.dtype) == ((50,), np.float64)
            assert (column >= 0).all()
            assert column.tobytes() == getattr(two, name).tobytes()
        assert text == "always" or (one.examples_per_s != other.examples_per_s).any()

    def test_phones_are_what_the_options_say(self) -> None:
        phones = make_profiles(read_profiles("phones:speed=50:spread=0.6:down=2e6:dropout=0.1"), 20_000, 0)
        assert np.median(phones.examples_per_s) == pytest.approx(50, rel=0.02)
        assert np.log(phones.examples_per_s).std() == pytest.approx(0.6, rel=0.02)
        assert np.median(phones.down_bytes_per_s) == pytest.approx(2e6, rel=0.03)
        assert (phones.dropout == 0.1).all()

    def test_four_times_as_many_at_night(self) -> None:
        phones = make_profiles(read_profiles("phones:zones=0:hour=0"), 20_000, 0)
        everyone = np.arange(20_000)
        shares = [phones.availability.ask(everyone, np.full(20_000, 3600.0 * hour + 1800)).mean() for hour in range(48)]
        np.testing.assert_allclose(shares[:24], [0.1 + 0.3 * night for night in NIGHT], atol=0.012)
        assert shares[:24] != shares[24:]

    def test_time_zones_flatten_the_day(self) -> None:
        phones = make_profiles(read_profiles("phones:zones=24"), 20_000, 0)
        everyone = np.arange(20_000)
        shares = [phones.availability.ask(everyone, np.full(20_000, 3600.0 * hour)).mean() for hour in range(24)]
        assert max(shares) - min(shares) < 0.03

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("tablets", "devices 'tablets': 'tablets' is none of phones, boards, uniform, always, trace"),
            ("phones:sped=3", "devices 'phones:sped=3': 'sped' is no option of phones; it has speed=200, spread=0.6"),
            ("phones:dropout=2", "devices 'phones:dropout=2': dropout is '2', expected a number from 0 to 1"),
            ("phones:ratio=0", "ratio is '0', expected a number from 1"),
            ("phones:speed=fast", "speed is 'fast', expected a number"),
            ("uniform:spread=1", "spread and network are shares here, expected less than 1"),
            ("trace", "expected devices=FILE.csv"),
        ],
    )
    def test_what_cannot_be(self, text: str, message: str) -> None:
        with pytest.raises(ConfigError, match=message.replace("(", "\\(")):
            make_profiles(read_profiles(text), 10, 0)

    def test_work_that_nobody_can_do(self) -> None:
        profiles = make_profiles(read_profiles("phones:battery=100"), 3, 0)
        with pytest.raises(ConfigError, match="battery"):
            Fleet(profiles, Work(np.array([101, 0, 500]), 1, 1), 0)
        with pytest.raises(ConfigError, match=r"examples of \(2,\) devices, expected one number for each of 3"):
            Fleet(profiles, Work(np.array([1, 1]), 1, 1), 0)
        assert set(Fleet(profiles, Work(np.array([100, 0, 500]), 1, 1), 0).find(0.0, 3)) <= {0}


class TestAvailability:
    @settings(max_examples=100, deadline=None)
    @given(
        start_s=st.floats(0, 1e7),
        lasts_s=st.floats(1, 1e5),
        offset_h=st.floats(-12, 24),
        seed=st.integers(0, 99),
    )
    def test_stays_until_the_hour_in_which_it_is_gone(self, start_s: float, lasts_s: float, offset_h: float, seed: int) -> None:
        curve = Curve([0.1 + 0.8 * night for night in NIGHT], np.full(200, 3600.0 * round(offset_h)), seed)
        devices, at_s = np.arange(200), np.full(200, start_s)
        devices = devices[curve.ask(devices, at_s)]
        at_s, end_s = at_s[: len(devices)], at_s[: len(devices)] + lasts_s
        until_s = stays_until(curve, devices, at_s, end_s)
        assert ((until_s > at_s) & (until_s <= end_s)).all()
        gone = until_s < end_s
        assert not curve.ask(devices[gone], until_s[gone]).any()
        for share in np.linspace(0, 1, 30)[:-1]:
            assert curve.ask(devices, at_s + share * (until_s - at_s)).all()

    def test_a_job_ends_with_the_availability(self) -> None:
        profiles = replace(
            make_profiles(read_profiles("always"), 2, 0),
            availability=Intervals(np.array([0, 1, 2]), np.zeros(2), np.array([5.0, 1e4]), 86400),
        )
        fleet = Fleet(profiles, Work(np.array([2000, 2000]), 0, 0), 0)
        jobs = fleet.start(np.array([0, 1]), np.zeros(2))
        assert jobs.end_s.tolist() == [5.0, 10.2]
        assert jobs.finishes.tolist() == [False, True]
        trained, _, _ = fleet.progress(jobs)
        np.testing.assert_allclose(trained, [200 * 4.9, 2000])

    def test_a_night_is_one_stretch(self) -> None:
        curve = Curve(NIGHT, np.zeros(1000), 0)
        hours = np.stack([curve.ask(np.arange(1000), np.full(1000, 3600.0 * (12 + h))) for h in range(24)])
        changes = (hours[1:] != hours[:-1]).sum(0)
        assert changes.max() <= 2

    def test_a_week_has_168_hours(self) -> None:
        curve = Curve([0.0] * 120 + [1.0] * 48, np.zeros(1), 0)
        found = [bool(curve.ask(np.zeros(1, int), np.array([3600.0 * h]))[0]) for h in range(336)]
        assert found == ([False] * 120 + [True] * 48) * 2

    @settings(max_examples=100, deadline=None)
    @given(st.lists(st.lists(st.integers(0, 400), max_size=8, unique=True), min_size=1, max_size=6), st.data())
    def test_intervals(self, ends: list[list[int]], data: st.DataObject) -> None:
        pieces = [sorted(own)[: len(own) // 2 * 2] for own in ends]
        starts, stops = ([float(v) for own in pieces for v in own[k::2]] for k in (0, 1))
        if not starts:
            return
        first = np.cumsum([0] + [len(own) // 2 for own in pieces])
        intervals = Intervals(first, np.array(starts), np.array(stops), 500.0)
        device, at_s = data.draw(st.integers(0, len(pieces) - 1)), data.draw(st.integers(0, 1500))
        own = [(a, b) for a, b in zip(pieces[device][::2], pieces[device][1::2], strict=True)]
        inside = [b for a, b in own if a <= at_s % 500 < b]
        devices, when = np.array([device]), np.array([float(at_s)])
        assert intervals.ask(devices, when).tolist() == [bool(inside)]
        if inside:
            until_s = stays_until(intervals, devices, when, when + 1000)
            assert until_s.tolist() == [float(at_s - at_s % 500 + inside[0])]


class TestTraces:
    DEVICES = (
        "device,examples_per_s,down_bytes_per_s,up_bytes_per_s,dropout,battery_examples,charge_from_h,charge_hours\n"
        'pixel,120,1e6,5e5,0.1,20000,23,6\n"moto, g",30,2e5,1e5,,,,\npi,9.5,5e6,1e6,0,,,\n'
    )
    INTERVALS = "device,start_s,end_s\npi,0,86400\npixel,3600,7200\npixel,100,900.5\n"

    def write(self, folder: Path, devices: str, intervals: str | None = None) -> str:
        (folder / "d.csv").write_text(devices)
        if intervals is None:
            return f"trace:devices={folder / 'd.csv'}"
        (folder / "i.csv").write_text(intervals)
        return f"trace:devices={folder / 'd.csv'}:intervals={folder / 'i.csv'}"

    def test_devices(self, tmp_path: Path) -> None:
        trace = make_profiles(read_profiles(self.write(tmp_path, self.DEVICES)), 3, 0)
        assert trace.examples_per_s.tolist() == [120.0, 30.0, 9.5]
        assert trace.up_bytes_per_s.tolist() == [5e5, 1e5, 1e6]
        assert trace.latency_s.tolist() == [0.0, 0.0, 0.0]
        assert trace.dropout.tolist() == [0.1, 0.0, 0.0]
        assert trace.battery_examples.tolist() == [20000.0, math.inf, math.inf]
        assert trace.charge_from_s.tolist() == [23 * 3600.0, 0.0, 0.0]
        assert trace.charge_s.tolist() == [6 * 3600.0, 86400.0, 86400.0]
        assert trace.availability.ask(np.arange(3), np.zeros(3)).all()
        assert len(make_profiles(read_profiles(self.write(tmp_path, self.DEVICES)), 2, 0)) == 2

    def test_intervals(self, tmp_path: Path) -> None:
        trace: Profiles = make_profiles(read_profiles(self.write(tmp_path, self.DEVICES, self.INTERVALS)), 3, 0)
        for at_s, expected in ((0, "001"), (100, "101"), (900.5, "001"), (3600, "101"), (7200, "001"), (86400 + 3700, "101")):
            assert trace.availability.ask(np.arange(3), np.full(3, float(at_s))).tolist() == [c == "1" for c in expected]
        fleet = Fleet(trace, Work(np.full(3, 60_000), 0, 0), 0)
        until_s = stays_until(trace.availability, np.array([0, 2]), np.array([3600.0, 50.0]), np.array([1e4, 1e6]))
        assert until_s.tolist() == [7200.0, 1e6]  # the board's intervals touch where they repeat
        assert not np.isin(1, fleet.find(100.0, 3))

    @pytest.mark.parametrize(
        ("devices", "message"),
        [
            ("", "d.csv, line 1: columns none, expected device, examples_per_s, down_bytes_per_s, up_bytes_per_s and optionally latency_s"),
            ("device,speed\n", "line 1: columns device, speed, expected device, examples_per_s"),
            (DEVICES.replace("120", "fast"), "line 2: examples_per_s is 'fast', expected a number above 0"),
            (DEVICES.replace("9.5", "0"), "line 4: examples_per_s is '0', expected a number above 0"),
            (DEVICES.replace("0.1", "1.5"), "line 2: dropout is '1.5', expected a number from 0 to 1"),
            (DEVICES.replace("120", ""), "line 2: examples_per_s is '', expected a number above 0"),
            (DEVICES.replace("120", "nan"), "line 2: examples_per_s is 'nan', expected a number above 0"),
            (DEVICES.replace(",23,6", ",23"), "line 2: 7 fields, expected 8: device,examples_per_s"),
            (DEVICES.replace("pi,", "pixel,"), "line 4: device 'pixel' is in line 2 already"),
            (DEVICES.replace("pi,", ","), "line 4: no device, expected its name"),
            (DEVICES.replace("pi,9.5,5e6,1e6,0,,,\n", ""), "d.csv: 2 devices, expected at least the 3 of the fleet"),
        ],
    )
    def test_bad_devices(self, tmp_path: Path, devices: str, message: str) -> None:
        with pytest.raises(DataError) as error:
            make_profiles(read_profiles(self.write(tmp_path, devices)), 3, 0)
        assert message in str(error.value)

    @pytest.mark.parametrize(
        ("intervals", "message"),
        [
            ("device,start_s\n", "i.csv, line 1: columns device, start_s, expected device, start_s, end_s"),
            (INTERVALS + "pi3,0,1\n", "i.csv, line 5: device 'pi3' is not in"),
            (INTERVALS + "pixel,9,9\n", "line 5: from 9 to 9 s, expected an end after the start"),
            (
                INTERVALS + "pixel,800,1000\n",
                "line 5: from 800 to 1000 s, expected no overlap with line 4 of the same device, 100 to 900.5 s",
            ),
            (INTERVALS + "pixel,-1,2\n", "line 5: start_s is '-1', expected a number from 0"),
            ("device,start_s,end_s\n", "i.csv: none of the fleet's devices is ever available"),
        ],
    )
    def test_bad_intervals(self, tmp_path: Path, intervals: str, message: str) -> None:
        with pytest.raises(DataError) as error:
            make_profiles(read_profiles(self.write(tmp_path, self.DEVICES, intervals)), 3, 0)
        assert message in str(error.value)

    def test_no_such_file_and_no_text(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"gone\.csv: not readable as CSV"):
            make_profiles(read_profiles(f"trace:devices={tmp_path / 'gone.csv'}"), 1, 0)
        (tmp_path / "d.csv").write_bytes(b"\xff\xfe\x00")
        with pytest.raises(DataError, match=r"d\.csv: not readable as CSV"):
            make_profiles(read_profiles(f"trace:devices={tmp_path / 'd.csv'}"), 1, 0)


class TestDraws:
    @pytest.mark.parametrize("size", [1, 2, 3, 100, SMALL, SMALL + 1, 1500, 4097])
    def test_an_order_holds_everybody_once(self, size: int) -> None:
        order = Shuffled(make_key(7, size), size)
        pieces = np.concatenate([order.take(at, 37) for at in range(0, order.length, 37)])
        assert sorted(pieces.tolist()) == list(range(size))
        assert len(order.take(order.length, 5)) == 0

    @pytest.mark.parametrize("size", [50, SMALL + 500, 100_000])
    def test_who_comes_first_is_uniform(self, size: int) -> None:
        first = np.concatenate([Shuffled(make_key(seed), size).take(0, 40)[:10] for seed in range(1000)])
        counts = np.bincount(first * 10 // size, minlength=10)
        assert ((counts - len(first) / 10) ** 2 / (len(first) / 10)).sum() < 27.9  # chi-square, 9 degrees of freedom: 1 in 1000
        second = np.concatenate([np.diff(Shuffled(make_key(seed), size).take(0, 40)[:2]) for seed in range(2000)])
        assert abs((second > 0).mean() - 0.5) < 0.04

    def test_uniform(self) -> None:
        numbers = uniform(make_key(1), np.arange(100_000), np.linspace(0, 1, 100_000))
        assert 0 <= numbers.min() < numbers.max() < 1
        counts = np.histogram(numbers, 20, (0, 1))[0]
        assert ((counts - 5000) ** 2 / 5000).sum() < 43.8  # 19 degrees of freedom
        assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 0.01
        assert uniform(make_key(1), np.arange(5)).tolist() == uniform(make_key(1), np.arange(9))[:5].tolist()
        assert make_key(1, 2) != make_key(2, 1) != make_key(3)


class TestClock:
    @given(st.lists(st.integers(0, 5)))
    def test_events_come_in_order_and_first_come_first_served(self, times: list[int]) -> None:
        queue: EventQueue[int] = EventQueue()
        for number, at_s in enumerate(times):
            queue.add(at_s, number)
        came = []
        while queue:
            expected_s = queue.next_s
            came.append(queue.pop())
            assert queue.clock() == expected_s == times[came[-1]]
        assert came == sorted(range(len(times)), key=lambda number: times[number])
        assert queue.next_s == math.inf

    def test_time_does_not_run_backwards(self) -> None:
        clock = VirtualClock(5.0)
        for to_s in (4.9, math.nan):
            with pytest.raises(ValueError, match="backwards"):
                clock.advance(to_s)
        queue: EventQueue[str] = EventQueue()
        queue.add(3.0, "a")
        queue.pop()
        for at_s in (2.0, math.inf, math.nan):
            with pytest.raises(ValueError, match="it is 3"):
                queue.add(at_s, "b")


class TestPolicyOptions:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("async", "policy 'async': 'async' is none of sync, over-select, buffered"),
            ("sync:over=1", "policy 'sync:over=1': 'over' is no option of sync"),
            ("sync:cohort=21", "policy 'sync:cohort=21': cohort is 21, expected no more than the 20 devices"),
            ("buffered:buffer=21", "buffer is 21, expected no more than the 20 devices"),
            ("buffered:buffer=0", "buffer is '0', expected a whole number from 1"),
            ("sync:deadline=0", "deadline is '0', expected a number from 0.001"),
        ],
    )
    def test_what_cannot_be(self, text: str, message: str) -> None:
        with pytest.raises(ConfigError) as error:
            make_policy(read_policy(text), make_fleet("always", 20))
        assert message in str(error.value)

    def test_defaults(self) -> None:
        policy = make_policy(read_policy("over-select"), make_fleet("always", 20))
        assert isinstance(policy, Sync)
        assert (policy.cohort, policy.invited, policy.deadline_s) == (20, 20, 3600.0)
        assert isinstance(make_policy(read_policy("buffered"), make_fleet("always", 20)), policies.Buffered)


class TestReport:
    def test_time_to_accuracy(self) -> None:
        points = [(30.0, 0.7), (10.0, 0.2), (20.0, None), (40.0, 0.6)]
        assert time_to_accuracy(points, 0.2) == 10.0
        assert time_to_accuracy(points, 0.6) == 30.0
        assert time_to_accuracy(points, 0.71) is None
        assert time_to_accuracy([], 0.1) is None

    def test_a_report_is_json(self) -> None:
        policy, _ = run("buffered", make_fleet("phones:available=1:ratio=1", 40), 10)
        result = describe(policy.tally, policy.now_s, [(1.0, 0.5), (2.0, None)], [0.4, 0.9])
        assert msgspec.json.decode(msgspec.json.encode(result), type=TimeSummary) == result
        assert result.time_to_accuracy_s == {"0.4": 1.0, "0.9": None}
        assert result.aggregations == 10
        assert 0 < (result.utilisation.useful or 0) <= 1

    def test_nothing_happened(self) -> None:
        result = describe(Tally(), 0.0)
        assert result.utilisation == Utilisation(useful=None, at_work=None)
        assert "accuracy" not in msgspec.to_builtins(result)
