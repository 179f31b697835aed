"""Other settings for a campaign that goes on: from when on they count, and what else they open."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from aggregator.fleet import events as e
from tests.fleet.cases import all_work, asked, configure, run, world_of
from tests.fleet.world import CLOSING, TRAIN, World
from tests.support.known import known
from wire.messages import Train

FASTER = {"": (Train(64, 3),), "start:initial": (Train(64, 3),), "closing": CLOSING}


def retune(world: World, **changes: Any) -> None:
    """Give a campaign other settings, with other verbs."""
    settings = replace(run(world).next_settings, **changes)
    own: dict[str, Any] = {"campaign": "run", "settings": settings, "programs": FASTER}
    world.feed(e.Configured(at_s=world.now_s, **own))
    world.ring()


def finished(rounds: int = 1) -> World:
    """A campaign that is over after so many rounds."""
    world = world_of("a")
    world.start("run", rounds=rounds)
    world.settle()
    assert (run(world).phase, run(world).trained) == ("finished", rounds)
    return world


def test_a_finished_campaign_goes_on_for_as_many_rounds_as_it_is_given() -> None:
    world = finished()
    retune(world, rounds=3)
    campaign = run(world)
    assert (campaign.phase, campaign.round, campaign.trained) == ("training", 3, 1)
    assert known(world.fleet.devices["a"].assignment).verbs == FASTER[""]
    for _ in range(2):
        all_work(world)
    assert run(world).phase == "evaluating"
    all_work(world)
    assert run(world).phase == "finished"
    retune(world, rounds=4)
    assert run(world).phase == "training", "and again"


def test_a_finished_campaign_whose_rounds_are_over_stays_finished() -> None:
    world = finished(2)
    retune(world, rounds=1, grace_s=9.0)
    assert (run(world).phase, run(world).settings.grace_s, asked(world)) == ("finished", 9.0, [])


def test_more_rounds_during_the_last_evaluation_follow_it() -> None:
    world = world_of("a")
    world.start("run", rounds=1)
    all_work(world)
    retune(world, rounds=2)
    assert (run(world).phase, asked(world, "evaluate")) == ("evaluating", ["a"])
    all_work(world)
    assert (run(world).phase, run(world).round, asked(world)) == ("training", 3, ["a"])


def test_devices_finish_the_open_round_as_its_plans_say() -> None:
    world = world_of("a")
    world.start("run", rounds=3, deadline_s=100.0)
    work = world.fleet.devices["a"].assignment
    retune(world, batch_size=64, local_epochs=3, hyper={"lr": 1.0}, deadline_s=7.0)
    campaign = run(world)
    assert world.fleet.devices["a"].assignment == work
    assert (campaign.deadline_s, campaign.version.programs[""]) == (101.0, (TRAIN,))
    assert (campaign.settings.batch_size, campaign.next_settings.batch_size) == (32, 64)
    world.pass_time(59)
    all_work(world)
    campaign = run(world)
    assert (campaign.round, campaign.deadline_s) == (2, 67.0)
    assert campaign.settings == campaign.next_settings
    assert (campaign.settings.batch_size, campaign.settings.hyper) == (64, {"lr": 1.0})


def test_a_round_that_waits_for_too_many_ends_at_its_deadline_when_fewer_are_asked_for() -> None:
    world = world_of("a", "b")
    world.start("run", rounds=3, min_devices=2, deadline_s=100.0)
    all_work(world, "a")
    configure(world, min_devices=1)
    assert world.rounds == []
    world.pass_time(100)
    world.carry_out()
    assert world.rounds == [("run", 1, 1, "training")]


def test_a_campaign_that_waits_for_too_many_begins_when_fewer_are_asked_for() -> None:
    world = world_of("a")
    world.start("run", rounds=3, min_devices=2)
    assert run(world).phase == "waiting"
    configure(world, min_devices=1)
    assert (run(world).phase, asked(world)) == ("training", ["a"])


@pytest.mark.parametrize("policy", [{}, {"buffer": 2, "concurrency": 2}])
@given(
    st.dictionaries(st.sampled_from(["rounds", "min_devices", "cohort"]), st.integers(1, 5)),
    st.integers(0, 6),
)
def test_whenever_they_come_the_campaign_ends_with_as_many_rounds_as_it_was_given(
    policy: dict[str, Any], changes: dict[str, Any], when: int
) -> None:
    world = world_of(*"abcde")
    world.start("run", rounds=3, **policy)
    for _ in range(when):
        all_work(world, *asked(world)[:1])
    configure(world, **changes)
    world.settle()
    rounds, campaign = changes.get("rounds", 3), run(world)
    assert (campaign.phase, campaign.settings) == ("finished", campaign.next_settings)
    assert (campaign.settings.rounds, campaign.ended) == (rounds, "rounds")
    assert campaign.trained >= rounds
