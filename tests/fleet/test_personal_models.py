"""Devices that make and choose personal models after the last round: which are asked for it, those
that missed the end, and those that fail."""

import logging
from typing import Any

import pytest

from aggregator.fleet import events as e
from aggregator.fleet.desired import without_labels
from aggregator.fleet.reconcile import LONGEST_REST_S, REST_S
from aggregator.fleet.records import Assignment
from shoal.commands.serve import log_rounds
from tests.fleet.cases import ban, configure, direct, run, world_of
from tests.fleet.recorded import KEPT, Recorded, over
from tests.fleet.world import CLOSING, Client, World, digest_of


def ended(**settings: Any) -> World:
    """A campaign of a and b that is over, and in which devices choose personal models."""
    world = world_of("a", "b")
    usual = {"rounds": 1, "min_devices": 2, "keeps": True, "deadline_s": 100.0, "min_batch": 5}
    world.start("run", **usual | settings)
    world.settle()
    assert run(world).phase == "finished"
    return world


def work_of(world: World, device_id: str) -> Assignment | None:
    """Return the assignment of a device, unless its time is over."""
    work = world.fleet.devices[device_id].assignment
    return None if work is None or work.lapsed else work


def come(world: World, device_id: str, **facts: Any) -> Assignment | None:
    """Have a device check in. Return its assignment."""
    world.clients.setdefault(device_id, Client())
    for name, value in facts.items():
        setattr(world.clients[device_id], name, value)
    world.check_in(device_id)
    world.ring()
    return work_of(world, device_id)


def test_the_log_says_that_a_campaign_is_over_and_what_devices_chose(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world, observe = over(), log_rounds()
    with caplog.at_level(logging.INFO, "shoal"):
        for event, fleet in world.steps:
            observe(fleet, event)
    ends = [r.getMessage() for r in caplog.records if "Campaign finished" in r.getMessage()]
    chosen = f"personal_models={KEPT.candidate} (2)"
    assert ends == [f"Campaign finished: campaign=run devices=2 {chosen}"]


class TestWhoIsAsked:
    def test_a_device_that_comes_after_the_end_chooses_by_the_models_of_now(self) -> None:
        world = ended()
        work = come(world, "late")
        assert work is not None
        assert (work.kind, work.verbs, work.round) == ("personalise", CLOSING, run(world).round)
        assert work.model == run(world).models["0"]
        assert work.deadline_s == world.now_s + 100.0
        world.settle()
        assert world.clients["late"].kept == [work.model]
        assert come(world, "late") is None

    @pytest.mark.parametrize("num_train", [0, 4])
    def test_a_device_with_too_few_labels_keeps_what_needs_none_and_chooses_again_once_it_has_them(
        self, num_train: int
    ) -> None:
        world = ended()
        work = come(world, "u", num_train=num_train)
        assert work is not None
        assert work.verbs == without_labels(CLOSING)
        world.settle()
        assert come(world, "u") is None
        assert come(world, "u", num_train=5) is not None

    def test_a_device_chooses_anew_once_its_labels_have_grown_by_a_quarter(self) -> None:
        world = ended()
        first = come(world, "late", num_train=40)
        assert first is not None
        world.settle()
        for num_train in (41, 50, 30, 0):
            assert come(world, "late", num_train=num_train) is None
        again = come(world, "late", num_train=51)
        assert again is not None
        assert (again.kind, again.serial > first.serial) == ("personalise", True)
        world.settle()
        assert come(world, "late", num_train=60) is None, "it has chosen by 51"

    def test_nobody_is_asked_who_may_not_be_or_where_devices_choose_nothing_or_after_an_abort(
        self,
    ) -> None:
        world = ended(where="battery >= 50")
        assert come(world, "x", battery=10) is None
        assert come(world, "x", battery=90) is not None
        assert come(ended(keeps=False), "x") is None
        world = world_of("a", "b")
        world.start("run", min_devices=2, keeps=True)
        direct(world, "abort")
        assert come(world, "x") is None

    def test_at_another_hour_nobody_is_asked_and_everybody_has_a_model(self) -> None:
        world = ended()
        configure(world, hours="22:00-06:00")
        world.pass_time(12 * 3600.0 - world.now_s)
        assert come(world, "late") is None
        world.carry_out()
        assert world.clients["late"].model
        world.pass_time(10 * 3600.0 - 1)
        assert work_of(world, "late") is None
        world.pass_time(1)
        assert work_of(world, "late") is not None

    def test_the_time_of_a_plan_ends_with_the_hours(self) -> None:
        world = ended()
        configure(world, hours="22:00-06:00")
        world.pass_time(24 * 3600.0 + 6 * 3600.0 - 5.0 - world.now_s)
        work = come(world, "late")
        assert work is not None
        assert work.deadline_s == 24 * 3600.0 + 6 * 3600.0
        world.pass_time(REST_S + 10)
        assert work_of(world, "late") is None
        world.pass_time(16 * 3600.0)
        assert work_of(world, "late") is not None


class TestMissedEvaluation:
    def test_a_device_that_comes_during_the_evaluation_takes_part_in_it(self) -> None:
        world = Recorded("a", "b", keeps=True, deadline_s=100.0)
        world.answer("a", "b")
        assert run(world).phase == "evaluating"
        assert come(world, "new") is not None
        world.settle()
        assert sorted(world.records[2].evaluated) == ["a", "b", "new"]

    def test_who_was_away_goes_on_with_its_plan_when_it_is_back(self) -> None:
        world = ended()
        work = come(world, "late")
        world.carry_out()
        world.leave("late")
        world.pass_time(50)
        assert come(world, "late") == work

    def test_who_is_away_when_its_time_is_over_is_asked_anew_when_it_is_back(self) -> None:
        world = ended()
        first = come(world, "late")
        world.leave("late")
        world.pass_time(100 + REST_S)
        assert work_of(world, "late") is None
        again = come(world, "late")
        assert first is not None
        assert again is not None
        assert again.serial > first.serial


class TestInVain:
    def test_who_declines_has_its_model_and_is_asked_again_once_it_says_something_else_of_itself(
        self,
    ) -> None:
        world = ended()
        come(world, "late")
        world.carry_out()
        world.decline("late")
        world.carry_out()
        assert world.clients["late"].model
        world.pass_time(REST_S - 1)
        assert come(world, "late") is None, "it says the same of itself"
        assert come(world, "late", num_train=11) is not None

    def test_who_fails_or_is_too_late_is_asked_again_after_a_rest_that_grows(self) -> None:
        world, rests = ended(), []
        come(world, "late")
        for attempt in range(15):
            world.carry_out()
            if attempt % 2:
                world.pass_time(100)
            else:
                world.decline("late")
            assert work_of(world, "late") is None
            rests.append(world.fleet.devices["late"].rests_until_s - world.now_s)
            world.clients["late"].plan = None
            world.pass_time(rests[-1] - 1)
            assert work_of(world, "late") is None
            world.pass_time(1)
            assert work_of(world, "late") is not None
        assert rests == [min(REST_S * 2**n, LONGEST_REST_S) for n in range(15)]

    def test_a_retry_that_is_gone_waits_until_it_is_back(self) -> None:
        world = ended()
        come(world, "late")
        world.carry_out()
        world.decline("late")
        world.leave("late")
        world.pass_time(REST_S)
        assert work_of(world, "late") is None
        assert come(world, "late") is not None

    @pytest.mark.parametrize("order", ["ban", "forget"])
    def test_a_banned_or_forgotten_device_works_on_nothing(self, order: str) -> None:
        world = ended()
        come(world, "late")
        world.carry_out()
        if order == "ban":
            ban(world, "late")
            assert work_of(world, "late") is None
        else:
            world.feed(e.Forgotten(at_s=world.now_s, device_id="late"))
            assert "late" not in world.fleet.devices
        world.clients["late"].plan = None
        world.settle()
        assert "late" not in run(world).updates


class TestOtherModels:
    def test_after_a_rollback_all_that_are_there_choose_anew_and_the_others_when_they_are_back(
        self,
    ) -> None:
        world = over(keep_models=2)
        world.leave("b")
        world.feed(e.RolledBack(at_s=world.now_s, campaign="run", to=0))
        world.ring()
        work = work_of(world, "a")
        assert work is not None
        assert work.model == digest_of("run-0-new")
        assert come(world, "b") is not None
        assert (world.records[3].evaluated, world.records[3].personal_models) == ({}, {}), (
            "what was said is of models that are given up"
        )

    def test_models_of_rounds_are_compared_as_they_are_and_not_by_what_devices_choose_of_them(
        self,
    ) -> None:
        world = over(keep_models=2)
        assert run(world).version.evaluated == {}, (
            "nobody has said how the last models answer by themselves"
        )
        (first,) = run(world).history
        assert first.evaluated
        world.feed(e.RolledBack(at_s=world.now_s, campaign="run", to=0))
        world.settle()
        assert run(world).updates
        assert run(world).version.evaluated == first.evaluated

    def test_a_campaign_that_trains_on_asks_for_late_choices_after_its_new_end(self) -> None:
        world = ended()
        come(world, "late")
        configure(world, rounds=2)
        work = work_of(world, "late")
        assert work is not None
        assert work.kind == "train"
        world.settle()
        assert run(world).phase == "finished"
        kept = {d: client.kept[-1:] for d, client in world.clients.items()}
        assert all(kept[d] == [world.clients[d].model] for d in ("a", "b", "late"))
