"""Devices without labels: none trains or is waited for; each describes its inputs once, and is
placed in a group."""

from typing import Any

import pytest
from msgspec.structs import replace

from aggregator.fleet import events as e
from aggregator.fleet.desired import group_of, placed_of
from aggregator.fleet.reconcile import REST_S
from aggregator.fleet.records import Campaign, Member, Placed
from aggregator.transfer.offered import needed, offered
from aggregator.view.round_record import all_placed, groups_of
from tests.fleet.world import SURVEY, Client, World, digest_of
from wire.messages import Evaluate

ONLY = Placed("0", 1.0)
"""The place of devices of which nothing is known, in `World`."""


def world_with(*device_ids: str, **settings: Any) -> World:
    """A campaign of a and b, which have labels, and of these, which have none."""
    world = World()
    for device_id in ("a", "b"):
        world.clients[device_id] = Client()
        world.check_in(device_id)
    for device_id in device_ids:
        world.clients[device_id] = Client(num_train=0)
        world.check_in(device_id)
    world.start("run", **{"rounds": 3, "min_devices": 2, "surveys": True} | settings)
    return world


def campaign(world: World) -> Campaign:
    return world.fleet.campaigns["run"]


def member(world: World, device_id: str) -> Member:
    return campaign(world).members.get(device_id, Member())


def at_work(world: World, kind: str) -> list[str]:
    """Devices that work on an assignment of this kind."""
    works = {d: device.assignment for d, device in world.fleet.devices.items()}
    return sorted(d for d, w in works.items() if w and not w.lapsed and w.kind == kind)


def answer(world: World, *device_ids: str) -> None:
    world.carry_out()
    for device_id in device_ids:
        world.work(device_id)
    world.carry_out()
    world.ring()


class TestSurvey:
    def test_a_device_without_labels_opens_no_round(self) -> None:
        world = world_with("u", min_devices=3)
        assert (campaign(world).phase, at_work(world, "train")) == ("waiting", [])
        assert at_work(world, "survey") == ["u"]

    def test_it_describes_its_inputs_once_from_the_bundles_model_and_trains_in_no_round(
        self,
    ) -> None:
        world = world_with("u")
        work = world.fleet.devices["u"].assignment
        assert work is not None
        assert (work.verbs, work.model) == (SURVEY, digest_of("run-0-new"))
        answer(world, "u")
        assert "u" not in campaign(world).updates
        for _ in range(2):
            answer(world, "a", "b")
            assert (at_work(world, "train"), at_work(world, "survey")) == (["a", "b"], [])

    def test_where_inputs_tell_nothing_nobody_is_asked(self) -> None:
        assert at_work(world_with("u", surveys=False), "survey") == []

    def test_its_assignment_outlives_the_round_and_is_told_again_when_it_is_back(self) -> None:
        world = world_with("u")
        work = world.fleet.devices["u"].assignment
        answer(world, "a", "b")
        world.leave("u")
        world.check_in("u")
        assert (campaign(world).round, world.fleet.devices["u"].assignment) == (2, work)
        answer(world, "u")
        survey = member(world, "u").survey
        assert survey is not None
        assert survey.round == 2

    def test_one_that_is_overdue_rests(self) -> None:
        world = world_with("u", deadline_s=100.0)
        world.pass_time(100)
        assert at_work(world, "survey") == []
        world.pass_time(REST_S)
        assert at_work(world, "survey") == ["u"]

    def test_no_more_work_on_it_at_a_time_than_a_round_trains(self) -> None:
        world = world_with("u", "v", "w", "x", cohort=2)
        first = at_work(world, "survey")
        assert len(first) == 2
        answer(world, first[0])
        assert len(at_work(world, "survey")) == 2

    def test_in_a_buffered_campaign_it_takes_nobodys_place(self) -> None:
        world = world_with("u", buffer=2, concurrency=2)
        assert (at_work(world, "train"), at_work(world, "survey")) == (["a", "b"], ["u"])

    def test_an_owner_who_forbids_it_is_asked_once(self) -> None:
        world = world_with("u")
        work = world.fleet.devices["u"].assignment
        assert work is not None
        own: dict[str, Any] = {"device_id": "u", "serial": work.serial}
        world.feed(e.AssignmentDeclined(at_s=world.now_s, forbidden=True, **own))
        assert world.fleet.devices["u"].failures == 0, "it does everything else at once"
        world.pass_time(10 * REST_S)
        world.check_in("u")
        assert at_work(world, "survey") == []
        answer(world, "a", "b")
        assert placed_of(campaign(world), "u", world.fleet.devices["u"]) == ONLY

    def test_a_survey_that_is_lost_is_asked_for_again_and_the_round_needs_nothing(self) -> None:
        world = world_with("u")
        answer(world, "u")
        for device_id in "ab":
            world.work(device_id)
        world.feed(e.UpdatesLost(at_s=world.now_s, campaign="run", device_ids=("u",)))
        world.carry_out()
        assert (campaign(world).round, at_work(world, "survey")) == (2, ["u"])

    def test_its_bytes_and_its_model_are_needed(self) -> None:
        world = world_with("u")
        assert digest_of("run-0-new") in offered(campaign(world), world.fleet)
        answer(world, "u")
        answer(world, "a", "b")
        survey = member(world, "u").survey
        assert survey is not None
        assert survey.blob in needed(campaign(world), world.fleet)

    def test_settings_decide_anew_who_can_train(self) -> None:
        world = world_with("u", min_batch=0)
        assert at_work(world, "train") == ["a", "b", "u"]
        settings = replace(campaign(world).next_settings, min_batch=2)
        world.feed(e.Configured(at_s=world.now_s, campaign="run", settings=settings))
        world.ring()
        answer(world, "a", "b", "u")
        assert (at_work(world, "train"), at_work(world, "survey")) == (["a", "b"], ["u"])


class TestPlaced:
    def test_it_is_in_its_group_after_the_round_and_is_given_that_groups_model(self) -> None:
        world = world_with("u", rounds=1)
        answer(world, "u")
        answer(world, "a", "b")
        assert member(world, "u").placed == Placed("1", 1.0)
        work = world.fleet.devices["u"].assignment
        assert work is not None
        assert (work.kind, work.model, work.verbs[-1]) == (
            "evaluate",
            digest_of("run-1-1"),
            Evaluate(graph="evaluate", split="test"),
        )
        answer(world, "a", "b", "u")
        world.settle()
        assert world.clients["u"].model == digest_of("run-1-1")

    def test_one_that_has_described_nothing_is_in_the_group_of_those(self) -> None:
        world = world_with("u")
        answer(world, "a", "b")
        placed = all_placed(world.fleet, campaign(world))
        assert placed == {"u": ONLY}
        assert groups_of(campaign(world), placed) == {"a": "1", "b": "0", "u": "0"}

    def test_a_group_that_is_gone_is_nobodys(self) -> None:
        world = world_with("u")
        answer(world, "u")
        answer(world, "a", "b")
        models = {k: m for k, m in campaign(world).models.items() if k != "1"}
        version = replace(campaign(world).version, models=models)
        after = replace(campaign(world), version=version)
        assert group_of(after, "u", world.fleet.devices["u"]) == "0"

    def test_where_there_are_no_groups_any_more_nobody_is_placed(self) -> None:
        world = world_with("u")
        answer(world, "u")
        answer(world, "a", "b")
        world.carry_out()
        for device_id in "ab":
            world.work(device_id)
        version = campaign(world).version
        end: dict[str, Any] = {"campaign": "run", "round": 2, "version": version}
        world.feed(e.Aggregated(at_s=world.now_s, **end))
        assert (member(world, "u").placed, campaign(world).default) == (None, None)

    def test_one_whose_data_have_moved_stays_until_it_has_described_them(self) -> None:
        world = world_with("u")
        answer(world, "u")
        answer(world, "a", "b")
        world.clients["u"].moved = True
        world.check_in("u")
        assert at_work(world, "survey") == ["u"]
        assert member(world, "u").placed == Placed("1", 1.0)
        answer(world, "u")
        assert not world.fleet.devices["u"].moved

    def test_one_that_has_labels_by_now_is_placed_by_its_inputs_no_more(self) -> None:
        world = world_with("u")
        answer(world, "u")
        answer(world, "a", "b")
        world.clients["u"].num_train = 12
        world.check_in("u")
        assert member(world, "u") == Member()
        assert group_of(campaign(world), "u", world.fleet.devices["u"]) == "initial"
        answer(world, "a", "b")
        assert at_work(world, "train") == ["a", "b", "u"]

    def test_one_that_describes_its_inputs_in_the_evaluation_is_placed_by_them(self) -> None:
        world = world_with("u", rounds=1)
        answer(world, "a", "b")
        assert campaign(world).phase == "evaluating"
        answer(world, "u")
        assert member(world, "u").placed is not None
        crashed = world_with("u", rounds=1)
        answer(crashed, "a", "b")
        crashed.carry_out()
        crashed.work("u")
        crashed.crash()
        crashed.settle()
        assert member(crashed, "u").placed is not None

    def test_one_with_labels_that_comes_after_training_is_placed_by_its_inputs_too(self) -> None:
        world = world_with(rounds=1)
        answer(world, "a", "b")
        world.clients["c"] = Client(num_train=50)
        world.check_in("c")
        assert (campaign(world).phase, at_work(world, "survey")) == ("evaluating", ["c"])
        answer(world, "c")
        assert member(world, "c").placed == Placed("1", 1.0) != campaign(world).default
        world.check_in("c")
        assert member(world, "c").placed == Placed("1", 1.0), "its labels do not undo it"
        assert world.assigned("c").model == digest_of("run-1-1")
        answer(world, "a", "b", "c")
        world.settle()
        assert world.clients["c"].model == digest_of("run-1-1")

    def test_one_with_labels_that_training_has_met_is_not(self) -> None:
        world = world_with(rounds=1)
        answer(world, "a", "b")
        world.settle()
        assert {work.kind for _, _, work in world.plans} == {"train", "evaluate"}

    def test_one_that_was_placed_after_training_trains_if_that_goes_on(self) -> None:
        world = world_with(rounds=1)
        answer(world, "a", "b")
        world.clients["c"] = Client(num_train=50)
        world.check_in("c")
        answer(world, "c")
        settings = replace(campaign(world).next_settings, rounds=2)
        world.feed(e.Configured(at_s=world.now_s, campaign="run", settings=settings))
        answer(world, "a", "b", "c")
        assert "c" in at_work(world, "train")
        device = world.fleet.devices["c"]
        assert placed_of(campaign(world), "c", device) is None

    @pytest.mark.parametrize("num_train", [0, 50])
    def test_one_that_comes_late_is_not_left_with_the_model_from_before_training(
        self, num_train: int
    ) -> None:
        world = world_with(rounds=1)
        world.settle()
        world.clients["late"] = Client(num_train=num_train)
        world.check_in("late")
        world.settle()
        assert world.clients["late"].model == digest_of("run-1-0")

    def test_an_owner_of_labels_who_forbids_training_has_a_trained_model_until_he_permits_it(
        self,
    ) -> None:
        world = world_with(rounds=5)
        world.clients["f"] = Client()
        world.check_in("f")
        answer(world, "a", "b")
        work = world.fleet.devices["f"].assignment
        assert work is not None
        own: dict[str, Any] = {"device_id": "f", "serial": work.serial}
        world.feed(e.AssignmentDeclined(at_s=world.now_s, forbidden=True, **own))
        device = world.fleet.devices["f"]
        assert placed_of(campaign(world), "f", device) == ONLY
        world.clients["f"].num_train = 11
        world.check_in("f")
        assert placed_of(campaign(world), "f", world.fleet.devices["f"]) is None
