"""A campaign that awaits drift: it begins once, when enough devices say that their data moved."""

from typing import Any

import pytest

from aggregator.fleet.reconcile import Turn
from aggregator.fleet.records import NOT_STARTED
from aggregator.fleet.rounds import DRIFT_SHARE, drift_share, lacking
from tests.fleet.cases import ban, direct, run, world_of
from tests.fleet.world import World
from wire.errors import ConfigError

NAME = "renewal"


def waiting(*device_ids: str, when: str = "drift:share=0.5", **settings: Any) -> World:
    """A finished campaign of these devices, and one that awaits drift."""
    world = world_of(*device_ids)
    usual: dict[str, Any] = {"rounds": 1, "min_devices": 2}
    world.start("run", **usual, keeps=True)
    world.settle()
    world.start(NAME, **usual | settings, when=when)
    world.settle()
    return world


def move(world: World, *device_ids: str) -> None:
    for device_id in device_ids:
        world.clients[device_id].moved = True
        world.check_in(device_id)
    world.ring()


def phases(world: World) -> list[str]:
    return [campaign.phase for campaign in world.fleet.campaigns.values()]


def test_it_begins_with_the_share_and_a_second_look_begins_nothing() -> None:
    world = waiting("a", "b", "c", "d")
    assert (run(world, NAME).phase, run(world, NAME).started_s) == ("waiting", NOT_STARTED)
    world.check_settled()
    move(world, "a")
    assert run(world, NAME).phase == "waiting"
    assert "1 of 4 devices" in lacking(Turn(world.fleet), run(world, NAME)).text
    move(world, "a")  # says it again
    assert run(world, NAME).phase == "waiting"
    move(world, "b")
    assert (run(world, NAME).phase, run(world, NAME).started_s) == ("training", world.now_s)
    world.settle()
    assert phases(world) == ["finished", "finished"]
    plans = len(world.plans)
    move(world, "a", "b", "c", "d")
    world.settle()
    assert (phases(world), len(world.plans)) == (["finished", "finished"], plans)


def test_meanwhile_devices_work_for_the_campaign_before() -> None:
    world = waiting("a", "b")
    world.check_in("late")
    world.settle()
    assert {work.campaign for _, device_id, work in world.plans if device_id == "late"} == {"run"}
    assert world.clients["late"].kept


def test_drift_before_the_order_counts_and_so_it_does_after_a_restart() -> None:
    world = waiting("a", "b", "c", "d")
    move(world, "a")
    world.crash()
    for device_id in "abcd":
        world.check_in(device_id)
    world.ring()
    assert run(world, NAME).phase == "waiting"
    move(world, "d")
    assert run(world, NAME).phase == "training"
    world = world_of("a", "b")
    move(world, "a")
    world.start(NAME, min_devices=2, when="drift")
    world.ring()
    assert run(world, NAME).phase == "training"


def test_devices_that_it_may_not_ask_do_not_count() -> None:
    world = waiting("a", "b", "c", "d", where="id != a")
    move(world, "a", "b")
    assert run(world, NAME).phase == "waiting"
    ban(world, "d")
    world.ring()
    assert run(world, NAME).phase == "training", "one of two, b and c"


def test_a_pause_and_an_abort_are_the_operators() -> None:
    world = waiting("a", "b")
    direct(world, "pause", NAME)
    move(world, "a", "b")
    assert run(world, NAME).phase == "waiting"
    direct(world, "resume", NAME)
    assert run(world, NAME).phase == "training"
    world = waiting("a", "b")
    direct(world, "abort", NAME)
    move(world, "a", "b")
    assert (run(world, NAME).phase, run(world, NAME).ended) == ("finished", "order")


@pytest.mark.parametrize(
    "when", ["Drift", "drift:0.2", "drift:share=0", "drift:share=1.5", "night"]
)
def test_another_text_is_refused(when: str) -> None:
    with pytest.raises(ConfigError, match="when must be drift, or drift:share=NUMBER"):
        drift_share(when)


def test_texts() -> None:
    texts = ("", "drift", "drift:share=.25", "drift:share=1")
    assert [*map(drift_share, texts)] == [0.0, DRIFT_SHARE, 0.25, 1.0]
