"""Devices that a round asks: cohorts, over-selection, rules, bans, pace."""

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from aggregator.core.pool import DevicePool, draw
from aggregator.fleet import events as e
from tests.fleet.cases import all_work, asked, ban, run, world_of
from tests.fleet.world import Client, World

TEN = [f"d{number}" for number in range(10)]


def opened(**settings: Any) -> World:
    """A campaign of ten devices in its first round."""
    world = world_of(*TEN)
    usual: dict[str, Any] = {"rounds": 5, "min_devices": 2, "deadline_s": 600.0}
    world.start("run", **usual | settings)
    return world


def charge(world: World, device_id: str, percent: int) -> None:
    """A device checks in with so much left in its battery."""
    world.clients.setdefault(device_id, Client()).battery = percent
    world.check_in(device_id)


class TestCohort:
    def test_another_round_draws_other_devices_and_the_same_events_draw_the_same(self) -> None:
        world = opened(cohort=4)
        first = asked(world)
        assert len(first) == 4
        assert asked(opened(cohort=4)) == first
        assert asked(opened(cohort=4, seed=1)) != first
        others = world_of(*reversed(TEN))
        others.start("run", min_devices=2, cohort=4)
        assert asked(others) == first, "whatever the order in which they came"
        all_work(world)
        assert asked(world) != first
        assert len(asked(world)) == 4

    def test_a_late_update_does_not_count_in_the_next_round_and_is_no_failure(self) -> None:
        world = opened(cohort=4, over_select=1.5)
        *punctual, _, late = asked(world)
        all_work(world, *punctual)
        assert run(world).round == 2
        all_work(world, late)
        assert late not in run(world).updates
        assert world.fleet.devices[late].failures == 0

    def test_where_fewer_are_there_than_the_cohort_has_all_are_waited_for(self) -> None:
        world = opened(cohort=40, over_select=2.0)
        assert asked(world) == TEN
        all_work(world, *TEN[:9])
        assert world.rounds == []
        all_work(world, TEN[9])
        assert world.rounds == [("run", 1, 10, "training")]

    def test_the_evaluation_asks_everybody(self) -> None:
        world = opened(cohort=4, rounds=1)
        all_work(world)
        assert asked(world, "evaluate") == TEN

    def test_a_device_that_declines_leaves_a_smaller_cohort(self) -> None:
        world = opened(cohort=4)
        first, *others = asked(world)
        world.carry_out()
        world.decline(first)
        assert asked(world) == others
        all_work(world, *others)
        assert world.rounds == [("run", 1, 3, "training")]

    @given(st.integers(1, 12), st.sampled_from([0.0, 0.3, 1.0]), st.integers(1, 12))
    def test_a_share_more_are_asked_than_a_round_waits_for_and_no_more_than_there_are(
        self, size: int, over: float, available: int
    ) -> None:
        world = world_of(*(f"d{number}" for number in range(available)))
        world.start("run", cohort=size, over_select=1 + over)
        count = len(asked(world))
        assert count == min(math.ceil(round(size * (1 + over), 9)), available)
        all_work(world)
        assert world.rounds[0] == ("run", 1, min(size, count), "training")

    def test_every_device_is_drawn_about_as_often(self) -> None:
        counts, pool = dict.fromkeys(TEN, 0), DevicePool(TEN)
        for number in range(6000):
            counts[pool[draw(f"{number // 3} {number % 3}", len(pool))]] += 1
        assert all(500 < count < 700 for count in counts.values()), counts


class TestEligible:
    def test_only_devices_that_may_be_asked_count_and_are_asked(self) -> None:
        world = world_of("a", "b")
        charge(world, "a", 10)
        world.start("run", min_devices=2, where="battery >= 50")
        assert run(world).phase == "waiting"
        world.check_in("c")
        assert asked(world) == ["b", "c"]
        world.check_in("a")
        assert asked(world) == ["b", "c"]

    def test_a_change_may_open_the_first_round(self) -> None:
        world = world_of("a")
        world.start("run", where="tags has lab")
        assert asked(world) == []
        world.feed(e.Tagged(at_s=world.now_s, device_id="a", tags=("lab",)))
        assert asked(world) == ["a"]

    def test_who_works_goes_on_and_is_not_asked_in_the_next_round(self) -> None:
        world = world_of("a", "b")
        world.start("run", rounds=3, where="battery >= 50")
        world.carry_out()
        charge(world, "b", 10)
        all_work(world, "a")
        assert asked(world) == ["b"]
        all_work(world, "b")
        assert world.rounds == [("run", 1, 2, "training")]
        assert asked(world) == ["a"]

    def test_nobody_is_asked_where_nobody_may_be(self) -> None:
        world = world_of("a")
        world.start("run", rounds=3, where="battery >= 50")
        world.carry_out()
        charge(world, "a", 10)
        all_work(world)
        assert (run(world).phase, run(world).round, asked(world)) == ("waiting", 2, [])
        charge(world, "a", 90)
        assert asked(world) == ["a"]


class TestBarredAndForgotten:
    def test_a_round_that_waited_for_a_banned_device_alone_is_over(self) -> None:
        world = world_of("a", "b")
        world.start("run")
        all_work(world, "a")
        assert world.rounds == []
        ban(world, "b")
        world.carry_out()
        assert world.rounds == [("run", 1, 1, "training")]

    def test_a_closed_round_that_had_nothing_else_is_opened_again(self) -> None:
        world = world_of("a")
        world.start("run")
        world.carry_out()
        world.work("a")
        assert run(world).phase == "aggregating"
        ban(world, "a")
        assert (run(world).phase, run(world).attempt, run(world).received) == ("waiting", 1, 0)

    def test_nothing_of_a_forgotten_device_is_in_the_fleet(self) -> None:
        world = world_of("gone", "stays")
        world.start("run", rounds=4, keep_models=3)
        for _ in range(2):
            all_work(world)
        world.carry_out()
        world.work("gone")
        versions = (run(world).version, *run(world).history)
        memories = {version.memory: "9" * 64 for version in versions if version.memory}
        assert len(memories) >= 2
        world.feed(e.Forgotten(at_s=world.now_s, device_id="gone", memories=memories))
        text = repr(world.fleet)
        assert "stays" in text
        assert not [word for word in ("gone", *memories) if word in text]
        assert sum(device.online for device in world.fleet.devices.values()) == 1


class TestPace:
    def test_a_device_is_asked_for_one_round_in_the_time(self) -> None:
        world = opened(cohort=5, min_devices=5, pace_s=1000.0)
        first = asked(world)
        world.pass_time(10)
        all_work(world)
        second = asked(world)
        assert sorted(first + second) == TEN
        all_work(world)
        assert (run(world).phase, asked(world)) == ("waiting", [])
        world.check_in("new")
        world.pass_time(989)
        assert asked(world) == [], "a round needs five"
        world.pass_time(1)
        assert len(asked(world)) == 5
        assert {*asked(world)} < {*first, "new"}
