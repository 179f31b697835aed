"""Rounds: when one opens, whom it waits for, and when it closes or opens again."""

from collections.abc import Callable, Collection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from aggregator.fleet import events as e
from aggregator.fleet.desired import is_at_work, paced_until
from aggregator.fleet.plan import round_seed
from aggregator.fleet.reconcile import REST_S
from aggregator.fleet.records import Assignment, Device
from tests.fleet.cases import all_work, asked, ban, forget, run, world_of
from tests.fleet.world import CLOSING, World, digest_of, settings_of
from tests.support.known import known
from wire.messages import Evaluate, Policy, Train


def aggregations(world: World) -> int:
    """Number of aggregations that are still to be carried out."""
    return sum(isinstance(command, e.Aggregate) for command in world.outbox)


def work_of(world: World, device_id: str) -> Assignment:
    """The assignment of a device."""
    return known(world.fleet.devices[device_id].assignment)


def graphs_of(world: World, *device_ids: str) -> list[list[str]]:
    """Return the graphs that each device's assignment runs."""
    return [[getattr(v, "graph", "") for v in work_of(world, d).verbs] for d in device_ids]


def decline(world: World, *device_ids: str) -> None:
    """These devices decline their plans."""
    world.carry_out()
    for device_id in device_ids:
        world.decline(device_id)


class TestOpening:
    def test_a_device_that_joins_in_mid_round_waits_for_the_next(self) -> None:
        world = world_of("a")
        world.start("run", min_devices=1)
        world.check_in("b")
        assert asked(world) == ["a"]
        all_work(world, "a")
        assert (run(world).round, asked(world)) == (2, ["a", "b"])

    def test_a_device_gets_the_verbs_of_its_own_or_of_its_model(self) -> None:
        world = world_of("a")
        programs = {
            "start:initial": (Evaluate("train", "survey"), Train(32)),
            "device:c": (Train(32, graph="other"),),
        }
        world.start("run", programs=programs, rounds=3)
        assert graphs_of(world, "a") == [["survey", "step"]]
        world.check_in("b")
        world.check_in("c")
        all_work(world, "a")
        assert graphs_of(world, *"abc") == [["step"], ["survey", "step"], ["other"]]

    @pytest.mark.parametrize("tells", [False, True])
    def test_a_device_that_keeps_its_classes_surveys_its_inputs(self, tells: bool) -> None:
        world = world_of("a")
        programs = {"start:initial": (Evaluate("train", "survey", "initial"), Train(32))}
        device = world.fleet.devices["a"]
        facts = replace(known(device.facts), policy=Policy(tell_classes=tells))
        world.feed(e.CheckedIn(at_s=world.now_s, device_id="a", facts=facts))
        world.start("run", programs=programs, rounds=3)
        verbs = known(world.fleet.devices["a"].assignment).verbs
        whole = Evaluate("train", "survey", "initial")
        inputs = Evaluate("inputs", "survey", "initial")
        assert verbs == (whole if tells else inputs, Train(32))

    def test_preparations_come_before_the_rounds_of_training_and_do_not_count(self) -> None:
        world, stages = world_of("a"), []
        world.start("run", preparing=True, rounds=1)
        for is_next_one in (True, False, False):
            world.carry_out()
            world.work("a")
            command = known(next(c for c in world.outbox if isinstance(c, e.Aggregate)))
            world.outbox.remove(command)
            world.aggregate(command, preparing=is_next_one)
            world.ring()
            stages.append((run(world).phase, run(world).round, run(world).trained))
        assert stages == [("preparing", 2, 0), ("training", 3, 0), ("evaluating", 4, 1)]

    def test_seeds_of_rounds_differ_between_rounds_and_campaigns(self) -> None:
        campaigns = [settings_of(seed=seed) for seed in range(3)]
        assert round_seed(campaigns[2].seed, 7) == 2_000_013
        seeds = {round_seed(settings.seed, n) for settings in campaigns for n in range(100)}
        assert len(seeds) == 300


class TestClosing:
    def test_a_full_cohort_is_aggregated_once(self) -> None:
        world = world_of("a", "b")
        world.start("run", min_devices=2)
        world.carry_out()
        world.work("a")
        assert (run(world).phase, aggregations(world)) == ("training", 0)
        world.work("b")
        world.work("b")
        assert (run(world).phase, aggregations(world)) == ("aggregating", 1)

    def test_the_last_round_is_followed_by_an_evaluation_and_the_end(self) -> None:
        world = world_of("a")
        world.start("run", rounds=1)
        all_work(world)
        assert run(world).phase == "evaluating"
        work = work_of(world, "a")
        assert (work.kind, work.verbs, work.model) == ("evaluate", CLOSING, digest_of("run-1-1"))
        all_work(world)
        assert run(world).phase == "finished"
        world.check_in("late")
        world.settle()
        assert world.clients["late"].model == digest_of("run-1-0")

    def test_after_the_last_round_the_closing_verbs_are_carried_out(self) -> None:
        world = world_of("a")
        closing = (Train(32, report=False), Evaluate())
        world.start("run", programs={"closing": closing}, rounds=1)
        all_work(world)
        assert graphs_of(world, "a") == [["step", "evaluate"]]

    def test_a_deadline_closes_with_what_is_there(self) -> None:
        world = world_of(*"abc")
        world.start("run", min_devices=2, deadline_s=100.0)
        all_work(world, "a", "b")
        assert world.rounds == []
        world.pass_time(100)
        world.carry_out()
        assert world.rounds == [("run", 1, 2, "training")]

    def test_a_lost_device_that_returns_in_its_grace_counts(self) -> None:
        world = world_of("a", "b")
        world.start("run", min_devices=1, grace_s=5.0, deadline_s=100.0)
        all_work(world, "a")
        world.leave("b")
        world.pass_time(3)
        world.check_in("b")
        world.pass_time(20)
        assert run(world).phase == "training"
        all_work(world, "b")
        assert world.rounds == [("run", 1, 2, "training")]

    def test_no_round_is_aggregated_with_fewer_devices_than_the_least_number(self) -> None:
        world = world_of(*"abc")
        world.start("run", min_devices=2, deadline_s=1000.0)
        all_work(world, "a")
        decline(world, "b", "c")
        world.pass_time(30)
        assert (run(world).phase, run(world).round, aggregations(world)) == ("training", 1, 0)

    def test_a_device_that_declines_is_not_waited_for(self) -> None:
        world = world_of(*"abc")
        world.start("run", min_devices=2)
        decline(world, "b")
        all_work(world, "a", "c")
        assert world.rounds == [("run", 1, 2, "training")]

    def test_a_decline_of_what_was_answered_changes_nothing(self) -> None:
        world = world_of("a", "b")
        world.start("run", min_devices=2)
        serial = work_of(world, "a").serial
        all_work(world, "a")
        before = world.fleet
        assert (
            world.feed(e.AssignmentDeclined(at_s=world.now_s, device_id="a", serial=serial)) == []
        )
        assert world.fleet == before

    def test_time_does_not_go_back(self) -> None:
        world = world_of("a")
        world.pass_time(49)
        world.check_in("a")
        world.feed(e.Seen(at_s=20.0, device_id="a", online=False))
        assert (world.fleet.at_s, world.fleet.devices["a"].seen_s) == (50.0, 50.0)


def drawn_from(*device_ids: str, **settings: Any) -> World:
    """A campaign whose open round asks two of these devices, and needs both."""
    world = world_of(*device_ids)
    usual: dict[str, Any] = {"min_devices": 2, "cohort": 2, "grace_s": 1.0, "rounds": 30}
    world.start("run", **usual | {"deadline_s": 10.0} | settings)
    return world


def leave(world: World, device_id: str) -> None:
    world.leave(device_id)


class TestShortRound:
    def test_asks_another_device_at_once_for_each_that_declines(self) -> None:
        world = drawn_from(*"abcd")
        first, second = asked(world)
        decline(world, first)
        (other,) = set(asked(world)) - {second}
        assert other not in (first, second)
        all_work(world, second, other)
        assert world.rounds == [("run", 1, 2, "training")]

    def test_with_more_asked_than_needed_asks_nobody_before_too_many_declined(self) -> None:
        world = drawn_from(*"abcdef", over_select=1.5)
        first, second, third = asked(world)
        decline(world, first)
        assert asked(world) == [second, third]
        decline(world, second)
        assert len(asked(world)) == 2
        assert not {first, second} & {*asked(world)}

    def test_when_all_have_declined_a_newcomer_is_asked_at_once(self) -> None:
        world = drawn_from(*"ab")
        decline(world, "a", "b")
        for device_id in "def":
            world.check_in(device_id)
        assert asked(world) == ["d", "e"], "two are enough"
        all_work(world, "d", "e")
        assert world.rounds == [("run", 1, 2, "training")]

    @pytest.mark.parametrize("gone", [ban, leave])
    def test_asks_nobody_who_is_offline_barred_or_was_asked_too_recently(
        self, gone: Callable[[World, str], None]
    ) -> None:
        world = drawn_from(*"abcdef", pace_s=1000.0, deadline_s=600.0)
        first, _ = asked(world)
        decline(world, first)
        used = {first, *asked(world)}
        all_work(world)
        (spare,) = set("abcdef") - used - {*asked(world)}
        assert run(world).round == 2
        gone(world, spare)
        decline(world, asked(world)[0])
        world.pass_time(REST_S - 1)
        assert len(asked(world)) == 1
        world.pass_time(1)
        assert len(asked(world)) == 2, "who declined is asked again for the same round"

    @pytest.mark.parametrize("gone", [ban, forget])
    def test_asks_another_for_one_that_is_banned_or_forgotten(
        self, gone: Callable[[World, str], None]
    ) -> None:
        world = drawn_from(*"abcd")
        first, second = asked(world)
        gone(world, first)
        (other,) = set(asked(world)) - {second}
        assert other != first

    def test_asks_another_for_one_that_was_lost_once_its_grace_is_over(self) -> None:
        world = drawn_from(*"abcd")
        first, second = asked(world)
        world.carry_out()
        world.leave(first)
        assert asked(world) == [first, second]
        world.pass_time(1)
        (other,) = set(asked(world)) - {second}
        assert other != first
        world.check_in(first)
        assert asked(world) == sorted([first, second, other]), "who comes back is still asked"
        all_work(world, first, second)
        assert world.rounds == [("run", 1, 2, "training")]

    def test_another_attempt_asks_the_same_devices_whatever_their_pace(self) -> None:
        world = drawn_from("a", "b", pace_s=1e6)
        all_work(world, "a")
        world.pass_time(10 + REST_S)
        assert asked(world) == ["b"]
        world.carry_out()
        world.work("b")
        world.feed(e.UpdatesLost(at_s=world.now_s, campaign="run", device_ids=("a",)))
        assert asked(world) == ["a"], "its update is lost"
        all_work(world, "a")
        assert world.rounds == [("run", 1, 2, "training")]
        assert asked(world) == []


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["check in", "decline", "decline", "leave", "work", "time"]),
        st.sampled_from("abcdef"),
    ),
    max_size=50,
)


def hopeful(world: World) -> Collection[str]:
    """Devices of which the open round has, or may still get, an update."""
    campaign = run(world)

    def is_hoped_for(device: Device) -> bool:
        work = device.assignment
        is_lost = not device.online and world.now_s >= device.seen_s + campaign.settings.grace_s
        return is_at_work(device) and known(work).round == campaign.round and not is_lost

    at_work = {d for d, device in world.fleet.devices.items() if is_hoped_for(device)}
    return at_work | {*campaign.updates}


@given(ACTIONS, st.sampled_from([1.0, 1.5]), st.sampled_from([0.0, 20.0]))
def test_a_short_round_asks_whoever_is_there_and_nobody_who_declined(
    history: list[tuple[str, str]], over_select: float, pace_s: float
) -> None:
    settings: dict[str, Any] = {
        "over_select": over_select,
        "pace_s": pace_s,
        "deadline_s": 15.0,
        "rounds": 3,
    }
    world = drawn_from("a", "b", grace_s=2.0, **settings)
    declined: dict[str, float] = {}
    for kind, device_id in history:
        world.carry_out()
        match kind:
            case "check in":
                world.check_in(device_id)
            case "decline" if device_id in asked(world):
                world.decline(device_id)
                if world.clients[device_id].online:
                    declined[device_id] = world.now_s + REST_S
            case "leave":
                world.leave(device_id)
            case "work":
                world.work(device_id)
            case "time":
                world.pass_time(1 + "abcdef".index(device_id))
        world.carry_out()
        world.ring()
        resting = {d for d, until_s in declined.items() if world.now_s < until_s}
        assert resting.isdisjoint(asked(world)), "who declined is asked again"
        if run(world).phase != "training":
            continue
        campaign, devices = run(world), world.fleet.devices
        paced = {d for d, device in devices.items() if world.now_s < paced_until(campaign, device)}
        there = {d for d, device in devices.items() if device.online and not is_at_work(device)}
        free = {d for d in there - paced if world.now_s >= devices[d].rests_until_s}
        assert len(hopeful(world)) >= 2 or free <= {*campaign.updates}, (
            "a short round lets a device idle"
        )
