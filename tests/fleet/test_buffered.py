"""Buffered campaigns: assignments outlive their rounds, and each update counts once, with its
staleness."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from aggregator.fleet import events as e
from aggregator.fleet.rounds import counted_updates
from aggregator.transfer.offered import needed, offered
from algorithms.core.keys import NEWCOMER
from tests.fleet.cases import all_work, asked, ban, configure, forget, run, world_of
from tests.fleet.world import World, digest_of
from tests.support.known import known

SIX = [f"d{number}" for number in range(6)]


def buffered(*device_ids: str, **settings: Any) -> World:
    """A campaign in its first round; by default four devices of six are at work, and two updates
    make an aggregation."""
    world = world_of(*(device_ids or SIX))
    usual: dict[str, Any] = {"rounds": 50, "buffer": 2, "concurrency": 4, "deadline_s": 100.0}
    world.start("run", **usual | settings)
    return world


def land(world: World, *device_ids: str) -> None:
    """These devices send their updates; nothing is aggregated."""
    for command in [c for c in world.outbox if isinstance(c, e.SendPlan)]:
        world.outbox.remove(command)
        world.deliver(world.clients[command.device_id], command)
    for device_id in device_ids:
        world.work(device_id)


def rounds_of(world: World) -> dict[str, int]:
    """Return the round of the assignment of each device at work."""
    return {d: known(world.fleet.devices[d].assignment).round for d in asked(world)}


class TestRounds:
    def test_so_many_are_at_work_and_another_is_asked_for_each_that_is_done(self) -> None:
        world = buffered()
        assert len(asked(world)) == 4
        waiting = {*SIX} - {*asked(world)}
        first, second, *slow = asked(world)
        land(world, first)
        (other,) = {*asked(world)} - {second, *slow}
        assert other in waiting
        land(world, second)
        assert (run(world).phase, asked(world)) == ("aggregating", sorted([other, *slow]))
        all_work(world, "nobody")
        assert rounds_of(world).items() >= dict.fromkeys((other, *slow), 1).items()
        assert sorted(rounds_of(world).values()) == [1, 1, 1, 2], "those at work are left alone"

    def test_a_late_update_counts_in_the_open_round_with_its_staleness(self) -> None:
        world = buffered()
        slow = asked(world)[-1]
        for _ in range(3):
            all_work(world, *[d for d in asked(world) if d != slow][:2])
        work = known(world.fleet.devices[slow].assignment)
        assert (run(world).round, work.model) == (4, digest_of("run-0-new"))
        assert work.model not in run(world).models.values()
        assert work.model in offered(run(world), world.fleet) & needed(run(world), world.fleet)
        world.work(slow)
        sent = known(world.clients[slow].update)
        assert run(world).updates[slow].staleness == 3
        assert world.feed(sent) == [e.AcknowledgeUpdate(slow, sent.update.blob)]
        assert {*run(world).updates} == {slow}

    def test_an_update_of_an_assignment_that_the_device_does_not_have_does_not_count(self) -> None:
        world = buffered()
        slow = asked(world)[-1]
        land(world, slow)
        sent = known(world.clients[slow].update)
        all_work(world, *[d for d in asked(world) if d != slow][:1])
        assert run(world).round == 2
        world.feed(sent)
        assert slow not in run(world).updates

    @pytest.mark.parametrize(("group", "start"), [("0", "1"), ("", NEWCOMER)])
    def test_a_stale_update_changes_the_model_of_its_group_of_now_and_a_survey_places_it(
        self, group: str, start: str
    ) -> None:
        world = buffered("a", "b", buffer=1, concurrency=2)
        if group:
            all_work(world, "b")
        assert run(world).members["b"].group == group if group else "b" not in run(world).members
        assert known(world.fleet.devices["b"].assignment).start == (group or NEWCOMER)
        land(world, "a")
        regrouped: dict[str, Any] = {"groups": {"b": "1"}, "round": run(world).round}
        keys = {NEWCOMER: "new", "0": "0", "1": "1"}
        models = {key: digest_of(f"by-hand-{name}") for key, name in keys.items()}
        version = replace(run(world).version, models=models)
        world.feed(e.Aggregated(at_s=world.now_s, campaign="run", version=version, **regrouped))
        land(world, "b")
        update = counted_updates(run(world))["b"]
        assert (update.staleness, update.start) == (1, start)

    def test_an_assignment_that_is_too_old_is_given_up_and_another_device_asked(self) -> None:
        world = buffered(deadline_s=10.0, buffer=6)
        old = asked(world)
        world.pass_time(5)
        land(world, *old[:2])
        fresh = sorted({*asked(world)} - {*old})
        assert len(fresh) == 2
        world.pass_time(5)
        assert run(world).phase == "aggregating", "the round closes with what came by its deadline"
        assert asked(world) == fresh
        assert [world.fleet.devices[d].failures for d in old[2:]] == [1, 1]
        all_work(world, "nobody")
        assert run(world).round == 2
        assert len(asked(world)) == 4
        assert {*asked(world)}.isdisjoint(old[2:])

    def test_one_device_at_a_time_fills_a_larger_buffer(self) -> None:
        world = buffered(concurrency=1, buffer=3)
        for _ in range(2):
            land(world, *asked(world))
            assert (run(world).phase, len(asked(world))) == ("training", 1)
        land(world, *asked(world))
        assert run(world).phase == "aggregating"

    def test_a_lost_device_keeps_its_assignment_and_gives_up_its_place(self) -> None:
        world = buffered(grace_s=5.0)
        before = asked(world)
        lost, work = before[0], known(world.fleet.devices[before[0]].assignment)
        world.leave(lost)
        assert asked(world) == before
        world.pass_time(5)
        assert len(asked(world)) == 4
        assert lost not in asked(world)
        world.outbox.clear()
        world.check_in(lost)
        assert world.outbox == [e.SendPlan(lost, work)]
        land(world, lost)
        assert lost in run(world).updates

    def test_fewer_devices_than_the_buffer_end_a_round_when_all_are_in(self) -> None:
        world = buffered("a", "b", buffer=10)
        for _ in range(2):
            assert run(world).phase == "training"
            land(world, asked(world)[0])
        assert run(world).phase == "aggregating"

    @pytest.mark.parametrize("gone", [ban, forget])
    def test_another_device_is_asked_for_one_that_is_banned_or_forgotten(
        self, gone: Callable[[World, str], None]
    ) -> None:
        world = buffered()
        first = asked(world)[0]
        gone(world, first)
        assert len(asked(world)) == 4
        assert first not in asked(world)

    def test_the_evaluation_asks_everybody_anew(self) -> None:
        world = buffered(rounds=1)
        late = asked(world)[2:]
        all_work(world, *asked(world)[:2])
        assert (asked(world), asked(world, "evaluate")) == ([], SIX)
        assert {known(world.fleet.devices[d].assignment).round for d in SIX} == {2}
        land(world)
        assert {known(world.clients[d].plan).kind for d in late} == {"evaluate"}

    def test_a_smaller_buffer_counts_from_the_next_round_on(self) -> None:
        world = buffered(buffer=3)
        land(world, *asked(world)[:2])
        configure(world, buffer=2)
        assert run(world).phase == "training"
        land(world, asked(world)[0])
        all_work(world, "nobody")
        land(world, *asked(world)[:2])
        assert [count for _, _, count, _ in world.rounds] == [3]
        assert (run(world).phase, run(world).received) == ("aggregating", 2)

    def test_a_round_without_its_quorum_is_looked_at_again_and_nobody_at_work_is_disturbed(
        self,
    ) -> None:
        world = buffered(buffer=4, quorum=0.75, deadline_s=10.0)
        old = asked(world)
        world.pass_time(5)
        land(world, *old[:2])
        fresh = {d: world.fleet.devices[d].assignment for d in asked(world) if d not in old}
        assert len(fresh) == 2
        world.pass_time(5)
        campaign = run(world)
        assert (campaign.phase, campaign.attempt, campaign.received) == ("training", 1, 2)
        assert {d: world.fleet.devices[d].assignment for d in fresh} == fresh
        assert {*fresh} <= {*asked(world)}


def test_an_update_of_earlier_models_that_were_given_up_does_not_count() -> None:
    world = buffered(keep_models=3)
    for _ in range(2):
        all_work(world, *asked(world)[:2])
    slow = next(d for d, number in rounds_of(world).items() if number == 1)
    world.carry_out()
    world.feed(e.RolledBack(at_s=world.now_s, campaign="run", to=0))
    world.work(slow)
    assert not run(world).updates
    world.ring()
    assert {*rounds_of(world).values()} == {3 + 1}
