"""Who is asked in a round: rules, cohorts, over-selection, pace, hours, quorum."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.core import state as s
from aggregator.core.round.asking import LOOK_S
from aggregator.core.round.cohort import Cohort, drawn
from aggregator.core.round.hours import read_hours
from aggregator.core.state import DeviceBarred, DeviceForgotten, EligibilityChanged, Retuned
from tests.aggregator.round_cases import MEMORY, Run, kinds
from wire.errors import ConfigError

TEN = [f"d{i}" for i in range(10)]
DAY_S = 86_400.0


def planned(commands: list[s.Command]) -> list[str]:
    return [c.plan.device_id for c in commands if isinstance(c, s.SendPlan)]


def deadlines(commands: list[s.Command]) -> list[float]:
    return [c.at_s for c in commands if isinstance(c, s.SetDeadline)]


def opened(at_s: float = 1.0, **settings: Any) -> tuple[Run, list[str]]:
    """A run of ten devices in its first round, and whom that has asked."""
    run = Run(**{"rounds": 5, "min_devices": 10, "min_updates": 2, "deadline_s": 600.0, **settings})
    asked = [d for device_id in TEN for d in planned(run.check_in(device_id, at_s))]
    return run, asked


class TestOverSelection:
    def test_a_round_asks_more_than_the_cohort_and_is_over_when_it_is_full(self) -> None:
        run, asked = opened(cohort=4, over_select=1.5)
        assert len(asked) == 6
        for device_id in asked[:3]:
            assert "Aggregate" not in kinds(run.update(device_id))
        assert "Aggregate" in kinds(run.update(asked[3]))
        assert set(run.state.received) == set(asked[:4])

    def test_another_round_draws_other_devices_and_a_replay_the_same(self) -> None:
        run, first = opened(cohort=4, over_select=1.0)
        assert opened(cohort=4, over_select=1.0)[1] == first
        for device_id in first:
            run.update(device_id)
        assert sorted(planned(run.aggregated())) != first

    def test_a_late_update_is_not_counted_in_the_next_round_and_failures_stay(self) -> None:
        run, asked = opened(cohort=4, over_select=1.5)
        for device_id in asked[:4]:
            run.update(device_id)
        run.aggregated()
        run.update(asked[5], 1)
        assert asked[5] not in run.state.received
        assert run.state.devices[asked[5]].failures == 0

    def test_where_fewer_are_there_than_the_cohort_has_all_are_waited_for(self) -> None:
        run, asked = opened(cohort=40, over_select=2.0)
        assert asked == TEN
        for device_id in TEN[:9]:
            assert "Aggregate" not in kinds(run.update(device_id))
        assert "Aggregate" in kinds(run.update("d9"))

    def test_the_evaluation_asks_everybody(self) -> None:
        run, asked = opened(cohort=4, rounds=1)
        for device_id in asked:
            run.update(device_id)
        assert sorted(planned(run.aggregated())) == TEN

    def test_a_device_that_declines_leaves_a_smaller_cohort(self) -> None:
        run, asked = opened(cohort=4)
        run.feed(s.DeviceDeclined(2.0, asked[0], 1))
        for device_id in asked[1:]:
            run.update(device_id)
        assert run.state.phase == "aggregating"

    @given(st.integers(1, 500), st.floats(0, 3), st.integers(1, 1000))
    def test_no_more_are_asked_than_there_are_and_no_fewer_than_the_goal(
        self, size: int, over: float, available: int
    ) -> None:
        rule = Cohort(size, over)
        asked = rule.asked(available)
        assert min(size, available) <= asked <= available
        assert rule.goal(asked) == min(size, asked)

    def test_every_device_is_drawn_about_as_often(self) -> None:
        counts = dict.fromkeys(TEN, 0)
        for seed in range(2000):
            for device_id in drawn(TEN, 3, seed):
                counts[device_id] += 1
        assert all(500 < count < 700 for count in counts.values()), counts


class TestQuorum:
    def test_a_deadline_with_fewer_opens_the_round_again(self) -> None:
        run, asked = opened(quorum=0.5)
        for device_id in asked[:4]:
            run.update(device_id)
        run.feed(s.DeadlinePassed(601.0, 1))
        assert (run.state.phase, run.state.attempt) == ("training", 1)
        run.update(asked[4])
        run.feed(s.DeadlinePassed(1300.0, 1))
        assert run.state.phase == "aggregating"


class TestEligible:
    def test_only_devices_that_may_be_asked_count_and_are_asked(self) -> None:
        run = Run(min_devices=2, min_updates=1)
        for device_id, eligible in (("a", False), ("b", True)):
            run.feed(s.DeviceCheckedIn(1.0, device_id, 10, 4, eligible=eligible))
        assert run.state.phase == "waiting"
        commands = run.feed(s.DeviceCheckedIn(1.0, "c", 10, 4))
        assert planned(commands) == ["b", "c"]
        assert planned(run.check_in("a")) == []

    def test_a_change_may_open_the_first_round(self) -> None:
        run = Run(min_devices=1)
        run.feed(s.DeviceCheckedIn(1.0, "a", 10, 4, eligible=False))
        assert planned(run.feed(EligibilityChanged(2.0, included=("a", "unknown")))) == ["a"]

    def test_who_works_goes_on_and_is_not_asked_in_the_next_round(self) -> None:
        run = Run(min_devices=2, rounds=3)
        run.check_in("a")
        run.check_in("b")
        run.feed(EligibilityChanged(2.0, excluded=("b",)))
        run.update("a")
        assert run.state.phase == "training"
        run.update("b")
        assert planned(run.aggregated()) == ["a"]

    def test_nobody_is_asked_where_nobody_may_be(self) -> None:
        run = Run(min_devices=1, rounds=3)
        run.check_in("a")
        run.feed(EligibilityChanged(2.0, excluded=("a",)))
        run.update("a")
        commands = run.aggregated()
        assert (planned(commands), run.state.phase) == ([], "training")
        run.feed(EligibilityChanged(4.0, included=("a",)))
        assert planned(run.feed(s.DeadlinePassed(run.state.deadline_at_s, 2))) == ["a"]


class TestBarredAndForgotten:
    def test_a_banned_device_leaves_the_open_round_with_its_update(self) -> None:
        run = Run(min_devices=3, rounds=2)
        for device_id in "abc":
            run.check_in(device_id)
        run.update("a")
        run.feed(DeviceBarred(2.0, "a"))
        assert ("a" in run.state.cohort, dict(run.state.received)) == (False, {})
        run.feed(DeviceBarred(2.0, "b"))
        run.update("c")
        assert run.state.phase == "aggregating"
        assert planned(run.aggregated()) == ["c"]

    def test_a_round_that_waited_for_it_alone_is_over(self) -> None:
        run = Run(min_devices=2)
        run.check_in("a")
        run.check_in("b")
        run.update("a")
        run.feed(DeviceBarred(2.0, "b"))
        assert run.state.phase == "aggregating"

    def test_a_closed_round_that_had_nothing_else_is_opened_again(self) -> None:
        run = Run(min_devices=1)
        run.check_in("a")
        run.update("a")
        assert run.state.phase == "aggregating"
        run.feed(DeviceBarred(2.0, "a"))
        assert (run.state.phase, run.state.received) == ("training", {})

    def test_a_finished_run_offers_it_nothing(self) -> None:
        run = Run(min_devices=2, rounds=1)
        for device_id in "ab":
            run.check_in(device_id)
        run.feed(DeviceBarred(1.0, "a"))
        run.update("b")
        run.aggregated()
        finished = [c.device_id for c in run.update("b") if isinstance(c, s.FinishRun)]
        assert finished == ["b"]

    def test_nothing_of_a_forgotten_device_is_in_the_state(self) -> None:
        run = Run(min_devices=2, rounds=4, keep_models=3)
        for _ in range(2):
            for device_id in ("gone", "kept"):
                run.check_in(device_id)
                run.update(device_id)
            run.aggregated()
        run.update("gone")
        run.feed(DeviceForgotten(9.0, "gone", {MEMORY: "9" * 64}))
        text = s.encode_state(run.state).decode()
        assert "gone" not in text
        assert MEMORY not in text
        assert "kept" in text
        assert run.state.num_online == 1


class TestPace:
    def test_a_device_is_asked_for_one_round_in_the_time(self) -> None:
        run, asked = opened(cohort=5, pace_s=1000.0)
        for device_id in asked:
            run.update(device_id)
        second = planned(run.aggregated(3.0))
        assert len(second) == 5
        assert not set(second) & set(asked)
        for device_id in second:
            run.update(device_id, at_s=4.0)
        commands = run.aggregated(5.0)
        assert (planned(commands), run.state.idle, deadlines(commands)) == (
            [],
            True,
            [5.0 + LOOK_S],
        )
        assert planned(run.check_in("new", 6.0)) == []
        assert planned(run.feed(s.DeadlinePassed(65.0, 3))) == []
        assert sorted(planned(run.feed(s.DeadlinePassed(1001.0, 3))))[:1] == asked[:1]

    def test_an_attempt_of_the_same_round_asks_again(self) -> None:
        run, _ = opened(pace_s=1e6, min_updates=10)
        assert planned(run.feed(s.DeadlinePassed(601.0, 1))) == TEN


class TestHours:
    NOON_S = datetime(2026, 5, 4, 12, tzinfo=UTC).timestamp()

    def test_nobody_is_asked_before_the_hour_and_the_deadline_is_their_end(self) -> None:
        run, asked = opened(self.NOON_S, hours="22:00-06:00 UTC", deadline_s=DAY_S, rounds=2)
        assert (asked, run.state.idle) == ([], True)
        night_s = self.NOON_S + 10 * 3600
        assert run.state.deadline_at_s == night_s
        assert planned(run.resume(self.NOON_S + 60)) == []
        assert planned(run.check_in("late", self.NOON_S + 70)) == []
        commands = run.feed(s.DeadlinePassed(night_s, 1))
        assert len(planned(commands)) == 11
        assert max(deadlines(commands)) == night_s + 8 * 3600
        run.feed(s.DeadlinePassed(night_s + 8 * 3600, 1))
        assert (run.state.idle, run.state.deadline_at_s) == (True, night_s + DAY_S)

    def test_other_hours_count_at_once(self) -> None:
        run, asked = opened(self.NOON_S, hours="22:00-06:00 UTC", rounds=2)
        assert (asked, run.state.idle) == ([], True)
        for hours, called in (("20:00-06:00 UTC", []), ("11:00-13:00 UTC", TEN)):
            settings = msgspec.structs.replace(run.state.next_settings, hours=hours)
            assert (
                planned(run.feed(Retuned(self.NOON_S + 60, settings, run.state.programs))) == called
            )
        assert not run.state.idle

    def test_an_evaluation_waits_for_the_hour_too(self) -> None:
        night_s = self.NOON_S + 10 * 3600
        run, _ = opened(night_s, hours="22:00-06:00 UTC", rounds=1)
        for device_id in TEN:
            run.update(device_id, at_s=night_s + 1)
        assert planned(run.aggregated(night_s + 9 * 3600)) == []
        assert (run.state.phase, run.state.idle) == ("evaluating", True)
        assert len(planned(run.feed(s.DeadlinePassed(run.state.deadline_at_s, 2)))) == 10

    @pytest.mark.parametrize(
        ("text", "at", "opens", "closes"),
        [
            (
                "22:00-06:00 Europe/Berlin",
                "2026-07-01T12:00",
                "2026-07-01T20:00",
                "2026-07-02T04:00",
            ),
            (
                "22:00-06:00 Europe/Berlin",
                "2026-01-01T02:00",
                "2026-01-01T02:00",
                "2026-01-01T05:00",
            ),
            ("9:30-17:00", "2026-01-01T17:00", "2026-01-02T09:30", "2026-01-02T17:00"),
            (
                "01:00-05:00 Europe/Berlin",
                "2026-03-29T00:30",
                "2026-03-29T00:30",
                "2026-03-29T03:00",
            ),  # the clock is put forward
            (
                "02:00-03:00 Europe/Berlin",
                "2026-03-28T12:00",
                "2026-03-30T00:00",
                "2026-03-30T01:00",
            ),  # that night has no such hour
        ],
    )
    def test_hours_in_a_time_zone(self, text: str, at: str, opens: str, closes: str) -> None:
        def second(moment: str) -> float:
            return datetime.fromisoformat(moment).replace(tzinfo=UTC).timestamp()

        hours = read_hours(text)
        assert hours is not None
        assert (hours.opens_s(second(at)), hours.closes_s(second(at))) == (
            second(opens),
            second(closes),
        )

    @pytest.mark.parametrize(
        "text",
        [
            "22-6",
            "25:00-06:00",
            "22:00-06:00 Europe/Nowhere",
            "10:00-10:00",
            "22:00-06:00 ../etc/passwd",
        ],
    )
    def test_what_is_none_is_refused(self, text: str) -> None:
        with pytest.raises(ConfigError, match="hours "):
            read_hours(text)

    @given(
        st.floats(1.7e9, 1.9e9),
        st.sampled_from(
            ["22:00-06:00 Europe/Berlin", "09:00-17:00 America/New_York", "23:59-00:01"]
        ),
    )
    def test_what_opens_is_open_until_it_closes(self, at_s: float, text: str) -> None:
        hours = read_hours(text)
        assert hours is not None
        opens_s = hours.opens_s(at_s)
        assert at_s <= opens_s < hours.closes_s(at_s) <= at_s + 2 * DAY_S
        assert hours.opens_s(opens_s) == opens_s
