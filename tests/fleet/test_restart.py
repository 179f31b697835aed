"""Restarts: a fleet that was stored and loaded goes on as the fleet in memory does."""

import random
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from hypothesis import given

from aggregator.fleet import events as e
from aggregator.fleet import rounds
from aggregator.fleet import step as machine
from aggregator.fleet.records import Fleet
from aggregator.fleet.step import step
from aggregator.storage.fleet_store import FleetStore
from tests.fleet.histories import COUNT, MANY, RANDOM, check_again, check_rest, history, lived
from tests.fleet.parts import underived, untimed
from tests.fleet.world import World


class Restarting(World):
    """A world whose fleet is loaded after every event, beside the one in memory."""

    def feed(self, event: e.Event) -> list[e.Command]:
        """Have something happen, and compare both fleets, and what both do after a restart."""
        commands = super().feed(event)
        check_same(self.fleet, loaded(self))
        return commands


def loaded(world: World) -> Fleet:
    """The fleet as a store in its place finds it."""
    assert world.store is not None
    return world.store.load()


def check_same(fleet: Fleet, stored: Fleet) -> None:
    """Check that a fleet was stored with all that is not derived, that what is derived is equal
    where nothing is left to look at, and that both do the same after a restart."""
    assert underived(stored) == underived(fleet)
    due = [device.wake_s for device in fleet.devices.values()]
    if not fleet.sweep and not any(0 < at_s <= fleet.at_s for at_s in due):
        assert stored == untimed(fleet)
    assert resumed(stored) == resumed(fleet)


def resumed(fleet: Fleet) -> tuple[Fleet, list[list[e.Command]]]:
    """A fleet after a restart, once every device was looked at, and the commands of each event."""
    at_s, commands = fleet.at_s, list[list[e.Command]]()
    fleet, first = step(fleet, e.Resumed(at_s=at_s, epoch=fleet.epoch + 1))
    commands.append(first)
    while fleet.sweep:
        fleet, others = step(fleet, e.Tick(at_s=at_s, keys=("",)))
        commands.append(others)
    return fleet, commands


@contextmanager
def in_memory() -> Iterator[FleetStore]:
    """A store whose database is gone at the end."""
    with closing(FleetStore("sqlite://")) as store:
        yield store


@MANY
@given(RANDOM, COUNT)
def test_a_restart_at_any_event_gives_the_same_commands(rng: random.Random, count: int) -> None:
    with in_memory() as store:
        lived(history(rng, count), Restarting(store))


@pytest.mark.full
@MANY
@given(RANDOM, COUNT)
def test_a_stored_fleet_comes_to_rest(rng: random.Random, count: int) -> None:
    with in_memory() as store:
        world = lived(history(rng, count), World(store))
        check_again(world)
        check_rest(world)
        assert store.load() == untimed(world.fleet)


@pytest.mark.representatives("0-2", "0-500")
@pytest.mark.parametrize("chunk", [2, 500])
@pytest.mark.parametrize("seed", range(4))
def test_long_histories_with_restarts(
    seed: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "CHUNK", chunk)
    monkeypatch.setattr(machine, "SWEPT", chunk)
    with in_memory() as store:
        world = lived(history(random.Random(seed), 300), Restarting(store))
        check_again(world)
        check_rest(world)
