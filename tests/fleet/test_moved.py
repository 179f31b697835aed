"""A device whose data have moved: it is surveyed again, in the next round of training, once."""

from typing import Any

import pytest
from msgspec.structs import replace

from aggregator.fleet import events as e
from aggregator.fleet.desired import NEW
from aggregator.fleet.reconcile import REST_S
from aggregator.fleet.records import Assignment
from algorithms.core.keys import NEWCOMER
from tests.fleet.world import Client, World
from wire.messages import Evaluate, Train

SURVEY = Evaluate("inputs", "survey", "initial")


class Moving(World):
    """A world with a campaign of a and b in its second round, in which both have a group."""

    def __init__(self, newcomers_survey: bool = True, **settings: Any) -> None:
        super().__init__()
        self.newcomers_survey, self.left_out = newcomers_survey, tuple[str, ...]()
        for device_id in "ab":
            self.clients[device_id] = Client()
            self.check_in(device_id)
        self.start("run", **{"rounds": 9, "min_devices": 2, "keep_models": 3, **settings})
        self.turn()
        assert self.fleet.campaigns["run"].round == 2

    def feed(self, event: e.Event) -> list[e.Command]:
        """Have something happen; rounds leave these devices out."""
        match event:
            case e.Started():
                record, train = event.record, Train(32)
                programs = {"": (train,), "closing": record.version.programs["closing"]}
                if self.newcomers_survey:
                    programs |= {NEW: (SURVEY, train), "device:a": (Train(32, epochs=5),)}
                version = replace(record.version, programs=programs)
                event = replace(event, record=replace(record, version=version))
            case e.Aggregated():
                event = replace(event, left_out=self.left_out)
        return super().feed(event)

    def turn(self, *device_ids: str, reverted_to: int | None = None) -> None:
        """These devices, or both, send their updates, which are aggregated."""
        self.carry_out()
        for device_id in device_ids or "ab":
            self.work(device_id)
        if reverted_to is not None:
            (command,) = (c for c in self.outbox if isinstance(c, e.Aggregate))
            self.outbox.remove(command)
            self.aggregate(command, reverted_to)
        self.carry_out()
        self.ring()

    def move(self) -> None:
        """The data of a have moved."""
        self.clients["a"].moved = True
        self.check_in("a")

    def plan(self, device_id: str) -> Assignment:
        work = self.fleet.devices[device_id].assignment
        assert work is not None
        return work

    def surveys(self, device_id: str) -> bool:
        return SURVEY in self.plan(device_id).verbs


def test_it_is_a_newcomer_in_the_next_round_and_no_longer_after_it() -> None:
    world = Moving()
    before = world.plan("a")
    world.move()
    assert world.plan("a") == before, "the open round's plan stays what it was"
    world.turn()
    assert [world.plan(d).start for d in "ab"] == [NEWCOMER, "0"]
    assert (world.surveys("a"), world.surveys("b")) == (True, False)
    assert world.plan("a").model == world.fleet.campaigns["run"].models[NEWCOMER]
    world.turn()
    assert [world.plan(d).start for d in "ab"] == ["1", "0"]
    assert not world.fleet.devices["a"].moved
    assert world.plan("a").verbs == (Train(32, epochs=5),)


def test_a_check_in_that_does_not_say_it_takes_nothing_back() -> None:
    world = Moving()
    world.move()
    world.check_in("a")
    world.turn()
    assert world.surveys("a")


@pytest.mark.parametrize("why", ["left out", "reverted"])
def test_it_is_asked_again_if_its_survey_did_not_count(why: str) -> None:
    world = Moving()
    world.move()
    world.turn()
    assert world.surveys("a")
    world.left_out = ("a",) if why == "left out" else ()
    world.turn(reverted_to=1 if why == "reverted" else None)
    assert world.surveys("a")
    world.left_out = ()
    world.turn()
    assert not world.surveys("a")


def test_it_is_asked_again_if_it_did_not_answer() -> None:
    world = Moving()
    world.move()
    world.turn()
    world.carry_out()
    world.work("b")
    world.decline("a")
    world.pass_time(REST_S)
    assert world.surveys("a")


def test_where_newcomers_do_nothing_of_their_own_nothing_changes() -> None:
    world = Moving(newcomers_survey=False)
    world.move()
    world.turn()
    assert [world.plan(d).start for d in "ab"] == ["1", "0"]


def test_it_evaluates_its_groups_model() -> None:
    world = Moving(rounds=2)
    world.move()
    world.turn()
    assert world.fleet.campaigns["run"].phase == "evaluating"
    assert (world.plan("a").kind, world.plan("a").start) == ("evaluate", "1")
