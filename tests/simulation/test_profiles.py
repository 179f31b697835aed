"""Profiles of devices: speeds, links, hours in which they are there, and the draws behind them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.timing.availability import Curve, Intervals, stays_until
from simulation.timing.draws import make_key, uniform
from simulation.timing.fleet import JobSize, TimedFleet
from simulation.timing.profiles import DISTRIBUTIONS, NIGHT, make_profiles, read_profiles
from wire.errors import ConfigError


class TestProfiles:
    @pytest.mark.parametrize("text", [name for name in DISTRIBUTIONS if name != "trace"])
    def test_columns(self, text: str) -> None:
        one, two, other = (make_profiles(read_profiles(text), 50, seed) for seed in (3, 3, 4))
        assert len(one) == 50
        for name in (
            "examples_per_s",
            "down_bytes_per_s",
            "up_bytes_per_s",
            "latency_s",
            "dropout",
            "battery_examples",
            "charge_s",
        ):
            column = getattr(one, name)
            assert (column.shape, column.dtype) == ((50,), np.float64)
            assert (column >= 0).all()
            assert column.tobytes() == getattr(two, name).tobytes()
        assert text == "always" or (one.examples_per_s != other.examples_per_s).any()

    def test_phones_are_what_the_options_say(self) -> None:
        phones = make_profiles(
            read_profiles("phones:speed=50:spread=0.6:down=2e6:dropout=0.1"), 20_000, 0
        )
        assert np.median(phones.examples_per_s) == pytest.approx(50, rel=0.02)
        assert np.log(phones.examples_per_s).std() == pytest.approx(0.6, rel=0.02)
        assert np.median(phones.down_bytes_per_s) == pytest.approx(2e6, rel=0.03)
        assert (phones.dropout == 0.1).all()

    def test_four_times_as_many_at_night(self) -> None:
        phones = make_profiles(read_profiles("phones:zones=0:hour=0"), 20_000, 0)
        everyone = np.arange(20_000)
        shares = [
            phones.availability.ask(everyone, np.full(20_000, 3600.0 * hour + 1800)).mean()
            for hour in range(48)
        ]
        np.testing.assert_allclose(shares[:24], [0.1 + 0.3 * night for night in NIGHT], atol=0.012)
        assert shares[:24] != shares[24:]

    def test_time_zones_flatten_the_day(self) -> None:
        phones = make_profiles(read_profiles("phones:zones=24"), 20_000, 0)
        everyone = np.arange(20_000)
        shares = [
            phones.availability.ask(everyone, np.full(20_000, 3600.0 * hour)).mean()
            for hour in range(24)
        ]
        assert max(shares) - min(shares) < 0.03

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (
                "tablets",
                "No profiles 'tablets'. Known profiles: phones, boards, uniform, always, trace.",
            ),
            (
                "phones:sped=3",
                "profiles 'phones:sped=3': 'sped' is not an option of phones; it has speed=200, "
                "spread=0.6",
            ),
            (
                "phones:dropout=2",
                "profiles 'phones:dropout=2': dropout must be a number from 0 to 1.*, got '2'",
            ),
            ("phones:ratio=0", "ratio must be a number from 1.*, got '0'"),
            ("phones:speed=fast", "speed must be a number.*, got 'fast'"),
            ("uniform:spread=1", "spread and network must be below 1, got 1 and "),
            ("trace", "needs a file: trace:devices=FILE.csv"),
        ],
    )
    def test_what_cannot_be(self, text: str, message: str) -> None:
        with pytest.raises(ConfigError, match=message.replace("(", "\\(")):
            make_profiles(read_profiles(text), 10, 0)

    def test_work_that_nobody_can_do(self) -> None:
        profiles = make_profiles(read_profiles("phones:battery=100"), 3, 0)
        with pytest.raises(ConfigError, match="battery"):
            TimedFleet(profiles, JobSize(np.array([101, 0, 500]), 1, 1), 0)
        with pytest.raises(
            ConfigError, match=r"examples must be one number for each of 3 devices, got \(2,\)"
        ):
            TimedFleet(profiles, JobSize(np.array([1, 1]), 1, 1), 0)
        fleet = TimedFleet(profiles, JobSize(np.array([100, 0, 500]), 1, 1), 0)
        assert fleet.able.tolist() == [True, False, False]
        there = [fleet.look(np.arange(3), 3600.0 * hour)[0] for hour in range(48)]
        assert np.any(there, 0).tolist() == [True, False, False]


class TestAvailability:
    @given(
        start_s=st.floats(0, 1e7),
        lasts_s=st.floats(1, 1e5),
        offset_h=st.floats(-12, 24),
        seed=st.integers(0, 99),
    )
    def test_stays_until_the_hour_in_which_it_is_gone(
        self, start_s: float, lasts_s: float, offset_h: float, seed: int
    ) -> None:
        curve = Curve(
            [0.1 + 0.8 * night for night in NIGHT], np.full(200, 3600.0 * round(offset_h)), seed
        )
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
        fleet = TimedFleet(profiles, JobSize(np.array([2000, 2000]), 0, 0), 0)
        jobs = fleet.start(np.array([0, 1]), np.zeros(2))
        assert jobs.end_s.tolist() == [5.0, 10.2]
        assert jobs.finishes.tolist() == [False, True]
        trained, _, _ = fleet.progress(jobs)
        np.testing.assert_allclose(trained, [200 * 4.9, 2000])

    def test_a_night_is_one_stretch(self) -> None:
        curve = Curve(NIGHT, np.zeros(1000), 0)
        hours = np.stack(
            [curve.ask(np.arange(1000), np.full(1000, 3600.0 * (12 + h))) for h in range(24)]
        )
        changes = (hours[1:] != hours[:-1]).sum(0)
        assert changes.max() <= 2

    def test_a_week_has_168_hours(self) -> None:
        curve = Curve([0.0] * 120 + [1.0] * 48, np.zeros(1), 0)
        found = [bool(curve.ask(np.zeros(1, int), np.array([3600.0 * h]))[0]) for h in range(336)]
        assert found == ([False] * 120 + [True] * 48) * 2

    @given(
        st.lists(st.lists(st.integers(0, 400), max_size=8, unique=True), min_size=1, max_size=6),
        st.data(),
    )
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
        else:
            later = [a + 500 * (a <= at_s % 500) for a, _ in own]
            begins_s = at_s - at_s % 500 + min(later, default=np.inf)
            assert intervals.holds_until(devices, when).tolist() == [begins_s]

    @given(
        battery=st.integers(100, 2000),
        charging=st.floats(0.5, 24),
        hour=st.floats(0, 24),
        at_s=st.floats(0, 1e6),
    )
    def test_a_battery_is_looked_at_when_it_lasts_again(
        self, battery: int, charging: float, hour: float, at_s: float
    ) -> None:
        text = f"always:battery={battery}:charging={charging}:hour={hour}"
        fleet = TimedFleet(
            make_profiles(read_profiles(text), 1, 0), JobSize(np.array([100]), 1, 1), 0
        )
        device = np.zeros(1, np.int64)
        for _ in range(40):
            fleet.start(device, np.array([at_s]))
            there, until_s = fleet.look(device, at_s)
            if not there[0]:
                assert fleet.look(device, float(until_s[0]))[0].all()
                assert not fleet.look(device, at_s + 0.9 * (float(until_s[0]) - at_s))[0].any()
                return
        assert battery == 2000 or fleet.battery(device, np.array([at_s])) >= 100


class TestDraws:
    def test_uniform(self) -> None:
        numbers = uniform(make_key(1), np.arange(100_000), np.linspace(0, 1, 100_000))
        assert 0 <= numbers.min() < numbers.max() < 1
        counts = np.histogram(numbers, 20, (0, 1))[0]
        assert ((counts - 5000) ** 2 / 5000).sum() < 43.8  # 19 degrees of freedom
        assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 0.01
        assert (
            uniform(make_key(1), np.arange(5)).tolist()
            == uniform(make_key(1), np.arange(9))[:5].tolist()
        )
        assert make_key(1, 2) != make_key(2, 1) != make_key(3)
