"""Virtual time: the same seed gives the same run, nobody is in two places, and the battery and the
counts add up."""

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.core.policies import read_policy
from aggregator.fleet.events import Command, Event
from aggregator.fleet.records import Fleet
from aggregator.fleet.step import steps
from aggregator.view.summary import TimeSummary, Utilisation
from simulation.timing import campaign
from simulation.timing.campaign import TimedCampaign
from simulation.timing.report import JobTotals, describe, time_to_accuracy
from tests.simulation.timing_cases import POLICIES, Watched, bits, fleets, make_fleet, run
from wire.errors import ConfigError, ShoalError


class TestEveryPolicy:
    @settings(max_examples=20)
    @given(
        text=st.sampled_from(POLICIES),
        kind=st.sampled_from(["phones", "boards"]),
        seed=st.integers(0, 2**63),
    )
    def test_same_seed_same_bits(self, text: str, kind: str, seed: int) -> None:
        one, two = (run(text, make_fleet(kind, 60, seed), 5)[1] for _ in range(2))
        assert [bits(b) for b in one] == [bits(b) for b in two]
        assert [bits(b) for b in one] != [
            bits(b) for b in run(text, make_fleet(kind, 60, seed + 1), 5)[1]
        ]

    @given(text=st.sampled_from(POLICIES), fleet=fleets)
    def test_no_device_is_in_two_places(self, text: str, fleet: Watched) -> None:
        run(text, fleet, 6)
        jobs = fleet.jobs.take(np.lexsort((fleet.jobs.start_s, fleet.jobs.devices)))
        same = jobs.devices[1:] == jobs.devices[:-1]
        assert (jobs.start_s[1:] >= jobs.end_s[:-1])[same].all()
        assert (
            jobs.end_s > jobs.start_s
        ).mean() > 0.9  # a device may be lost in the second in which it starts

    @given(text=st.sampled_from(POLICIES), fleet=fleets)
    def test_batches_are_in_order_and_name_what_is_kept(self, text: str, fleet: Watched) -> None:
        policy = TimedCampaign(read_policy(text), fleet)
        at_s, needed = 0.0, 0
        for number in range(8):
            batch = policy.next_batch()
            assert batch.version == number
            assert batch.at_s >= at_s
            assert (np.diff(batch.devices) > 0).all()
            assert (batch.staleness >= 0).all()
            assert (batch.versions >= needed).all()
            assert (batch.end_s <= batch.at_s).all()
            np.testing.assert_allclose(
                batch.end_s - batch.start_s, fleet.duration_s[batch.devices], atol=1e-6
            )
            np.testing.assert_allclose(batch.weights, (1 + batch.version - batch.versions) ** -0.5)
            assert needed <= policy.oldest_version_needed <= number + 1
            assert policy.now_s == batch.at_s
            at_s, needed = batch.at_s, policy.oldest_version_needed

    @given(
        text=st.sampled_from(
            [
                "sync:cohort=8:deadline=1e5",
                "over-select:cohort=8:deadline=1e5",
                "buffered:buffer=5:deadline=1e5",
            ]
        ),
        kind=st.sampled_from(
            ["phones", "phones:speed=0.2", "boards:available=0.5:ratio=2:speed=0.1"]
        ),
        seed=st.integers(0, 2**63),
    )
    def test_availability_is_honoured(self, text: str, kind: str, seed: int) -> None:
        fleet = make_fleet(kind, 60, seed)  # with jobs of seconds, or of an hour
        run(text, fleet, 4)
        ask, jobs = fleet.profiles.availability.ask, fleet.jobs
        assert ask(jobs.devices, jobs.start_s).all()
        for share in (0.25, 0.5, 0.75, 1 - 1e-9):
            assert ask(jobs.devices, jobs.start_s + share * (jobs.end_s - jobs.start_s)).all()

    @given(
        text=st.sampled_from(POLICIES),
        battery=st.integers(800, 3000),
        charging=st.sampled_from([0.5, 8, 24]),
        dropout=st.sampled_from([0, 0.4]),
        seed=st.integers(0, 1000),
    )
    def test_battery_never_below_zero(
        self, text: str, battery: int, charging: float, dropout: float, seed: int
    ) -> None:
        fleet = make_fleet(
            f"always:battery={battery}:charging={charging}:dropout={dropout}:hour=21", 40, seed
        )
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

    @pytest.mark.parametrize(
        "text", ["sync:cohort=50", "over-select:cohort=50", "buffered:concurrency=50:buffer=25"]
    )
    def test_events_of_a_job_do_not_grow_with_the_fleet(
        self, text: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        taken: list[Event] = []

        def counting(fleet: Fleet, batch: Sequence[Event]) -> tuple[Fleet, list[Command]]:
            taken.extend(batch)
            return steps(fleet, batch)

        monkeypatch.setattr(campaign, "steps", counting)
        shares = []
        for devices in (200, 5_000):
            policy = TimedCampaign(read_policy(text), make_fleet("uniform", devices))
            taken.clear()
            for _ in range(12):
                policy.next_batch()
            shares.append(len(taken) / policy.tally.invited)
        assert max(shares) < 1.5 * min(shares)
        assert max(shares) < 3

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
        assert tally.down_bytes + tally.up_bytes - tally.wasted_bytes == pytest.approx(
            400_000 * tally.completed
        )
        assert tally.useful_s == pytest.approx(
            sum(float((b.end_s - b.start_s).sum()) for b in batches)
        )

    def test_gives_up_when_nobody_comes(self) -> None:
        for text in POLICIES:
            with pytest.raises(ShoalError, match="No device"):
                run(text, make_fleet("phones:available=0", 20), 1)

    def test_gives_up_when_nobody_finishes(self) -> None:
        for text in ("sync:deadline=100", "buffered:deadline=100"):
            with pytest.raises(ShoalError, match=r"deadline of 100 s for 7 days. All are too slow"):
                run(text, make_fleet("always:speed=0.000001", 12), 1)


class TestPolicyOptions:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (
                "async",
                "No policy 'async'. Did you mean sync? Known policies: sync, over-select, "
                "buffered.",
            ),
            ("sync:over=1", "policy 'sync:over=1': 'over' is not an option of sync"),
            (
                "sync:cohort=21",
                "policy 'sync:cohort=21': cohort must be at most 20, the number of devices, got 21",
            ),
            ("buffered:buffer=21", "buffer must be at most 20, the number of devices, got 21"),
            ("buffered:buffer=0", "buffer must be a whole number from 1, got '0'"),
            ("sync:deadline=0", "deadline must be a number from 0.001, got '0'"),
        ],
    )
    def test_what_cannot_be(self, text: str, message: str) -> None:
        with pytest.raises(ConfigError) as error:
            TimedCampaign(read_policy(text), make_fleet("always", 20))
        assert message in str(error.value)

    def test_defaults(self) -> None:
        own = TimedCampaign(read_policy("over-select"), make_fleet("always", 20)).settings
        assert (own.cohort, own.over_select, own.min_devices, own.deadline_s) == (0, 1.3, 20, 3600)
        own = TimedCampaign(read_policy("buffered"), make_fleet("always", 20)).settings
        assert (own.buffer, own.concurrency, own.min_devices) == (10, 0, 1)


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
        result = describe(JobTotals(), 0.0)
        assert result.utilisation == Utilisation(useful=None, at_work=None)
        assert "accuracy" not in msgspec.to_builtins(result)
