"""Records of closed rounds, and what is taken back of them."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from aggregator.fleet import events as e
from aggregator.fleet.records import Fleet, Placed
from aggregator.transfer.offered import needed, offered
from aggregator.view.round_record import RoundRecord, records_of, without_kept
from tests.fleet.recorded import KEPT, Recorded, over
from tests.fleet.world import Client, digest_of, metrics_of
from wire.messages import Metrics, Policy


def test_every_closed_round_has_one_record() -> None:
    world = Recorded("a", "b", preparing=True, rounds=2)
    for _ in range(4):
        world.answer("a", "b")
    assert [(r.round, r.phase) for r in world.records.values()] == [
        (1, "preparing"),
        (2, "training"),
        (3, "training"),
        (4, "evaluating"),
    ]
    last = world.records[4]
    assert last.evaluated == {"a": metrics_of(0.5), "b": metrics_of(0.5)}
    assert (last.bytes_up, last.bytes_down) == (200, 100)
    assert last.trained == Metrics(4, 2.0, 2)
    assert last.groups == {"a": "1", "b": "0"}
    assert msgspec.json.decode(msgspec.json.encode(last), type=RoundRecord) == last


def test_events_that_are_stored_together_give_the_same_records() -> None:
    world = over()
    together = {record.round: record for _, record in records_of(Fleet(), world.steps)}
    assert together == world.records


def test_notes_and_views_of_a_round_are_in_its_record() -> None:
    world = Recorded("a", "b")
    world.carry_out()
    for device_id in "ab":
        world.work(device_id)
    campaign = world.campaign
    end = e.Aggregated(
        at_s=9.0, campaign="run", round=1, version=campaign.version, notes={"p": 1}, views="v"
    )
    world.feed(end)
    record = world.records[1]
    assert (record.notes, record.views, record.closed_at_s) == ({"p": 1}, "v", 9.0)


def test_an_aborted_evaluation_has_a_record_and_an_aborted_round_of_training_none() -> None:
    world = Recorded("a", "b", rounds=2)
    world.answer("a")
    world.feed(e.Directed(at_s=world.now_s, campaign="run", order="abort"))
    assert world.records == {}
    world = Recorded("a", "b", keeps=True)
    world.answer("a", "b")
    world.answer("a", kept=KEPT)
    world.feed(e.Directed(at_s=world.now_s, campaign="run", order="abort"))
    assert (sorted(world.records), [*world.records[2].personal_models]) == ([1, 2], ["a"])


def test_the_last_answer_of_an_evaluation_after_which_training_goes_on_is_in_its_record() -> None:
    world = Recorded("a", "b", keeps=True)
    world.answer("a", "b")
    settings = replace(world.campaign.next_settings, rounds=2)
    world.feed(e.Configured(at_s=world.now_s, campaign="run", settings=settings))
    world.ring()
    world.answer("a", "b", kept=KEPT)
    assert (world.campaign.phase, world.campaign.round) == ("training", 3)
    assert world.records[2].personal_models == {"a": KEPT, "b": KEPT}


def test_devices_without_labels_are_in_the_record_with_how_sure_their_groups_are() -> None:
    world = Recorded("a", "b", surveys=True, rounds=2)
    world.clients["u"] = Client(num_train=0)
    world.check_in("u")
    world.answer("u")
    world.answer("a", "b")
    record = world.records[1]
    assert record.groups == {"a": "1", "b": "0", "u": "1"}
    assert record.placed == {"u": Placed("1", 1.0)}
    assert sorted(record.evaluated) == ["a", "b"]
    assert (record.bytes_up, record.bytes_down) == (300, 150), "the survey came, too"
    world.answer("a", "b")
    assert world.records[2].bytes_up == 200, "once"


class TestPersonalModels:
    def test_one_that_comes_late_is_in_the_record(self) -> None:
        world = over()
        assert sorted(world.records[2].personal_models) == ["a", "b"]
        closed_at_s = world.records[2].closed_at_s
        world.check_in("c")
        world.pass_time(100)
        world.answer("c", kept=KEPT)
        assert sorted(world.records[2].personal_models) == ["a", "b", "c"]
        assert world.records[2].closed_at_s == closed_at_s

    def test_one_that_is_lost_is_not_until_the_device_has_chosen_again(self) -> None:
        world = over()
        world.clients["a"].kept.clear()
        world.check_in("a")
        record = world.records[2]
        assert (sorted(record.personal_models), sorted(record.evaluated)) == (["b"], ["b"])
        world.pass_time(60)
        world.answer("a", kept=KEPT)
        assert sorted(world.records[2].personal_models) == ["a", "b"]

    @pytest.mark.parametrize("kept", [None, ("e" * 64, digest_of("run-1-1"))])
    def test_a_device_that_holds_it_or_does_not_tell_has_lost_nothing(
        self, kept: tuple[str, ...] | None
    ) -> None:
        world = over()
        before = world.campaign.updates
        world.say("a", personal_models=kept)
        assert world.campaign.updates is before

    def test_what_an_owner_does_not_permit_to_tell_any_more_is_not(self) -> None:
        world = over()
        world.say("a", policy=Policy(unreported=("choose",)))
        record = world.records[2]
        assert (sorted(record.personal_models), record.evaluated["a"]) == (["b"], metrics_of(0.5))
        world.say("b", policy=Policy(min_windows=1001))
        record = world.records[2]
        assert (record.personal_models, record.evaluated["b"]) == ({}, Metrics())
        assert sorted(world.campaign.updates) == ["a", "b"]

    def test_nor_in_an_open_round(self) -> None:
        world = Recorded("a", "b")
        world.answer("a", kept=KEPT)
        world.say("a", policy=Policy(min_windows=1001))
        update = world.campaign.updates["a"]
        assert (update.personal_model, update.evaluated) == (None, Metrics()), "it counts as before"
        world.answer("b")
        assert world.campaign.trained == 1

    def test_after_a_return_to_earlier_models_a_new_record_begins(self) -> None:
        world = over(keep_models=2)
        own: dict[str, Any] = {"campaign": "run", "to": 0}
        world.feed(e.RolledBack(at_s=world.now_s, **own))
        assert (world.records[3].phase, world.records[3].personal_models) == ("evaluating", {})
        world.settle()
        assert sorted(world.records[3].evaluated) == ["a", "b"]

    def test_a_record_without_some(self) -> None:
        record = over().records[2]
        assert without_kept(record, {"a"}).personal_models == {"b": KEPT}

    def test_nothing_of_a_forgotten_device_stays(self) -> None:
        world = over()
        world.leave("a")
        world.feed(e.Forgotten(at_s=world.now_s, device_id="a"))
        assert b'"a"' not in msgspec.json.encode(world.records[2])
        assert "a" not in world.campaign.updates


class TestBlobs:
    def test_updates_are_needed_as_long_as_they_count(self) -> None:
        world = Recorded("a", "b", keeps=True)
        world.answer("a")
        (update,) = world.campaign.updates.values()
        assert update.blob in needed(world.campaign, world.fleet)
        world.answer("b")
        assert update.blob not in needed(world.campaign, world.fleet)
        ended = over()
        blobs = {update.blob for update in ended.campaign.updates.values()}
        assert not blobs & needed(ended.campaign, ended.fleet)

    def test_the_model_of_a_late_device_stays_on_offer_while_its_time_lasts(self) -> None:
        world = Recorded("a", "b", "c", "d", rounds=5, cohort=2, over_select=2.0, deadline_s=100.0)
        world.carry_out()
        late = world.clients["c"].plan
        assert late is not None
        world.answer("a", "b")
        assert late.model in offered(world.campaign, world.fleet)
        world.pass_time(101)
        assert late.model not in offered(world.campaign, world.fleet)

    def test_surveys_memories_and_the_models_of_a_finished_campaign_are_needed(self) -> None:
        world = Recorded("a", "b", surveys=True)
        world.clients["u"] = Client(num_train=0)
        world.check_in("u")
        world.settle()
        campaign, (rollout,) = world.campaign, world.fleet.rollouts
        survey = campaign.members["u"].survey
        assert survey is not None
        blobs = {survey.blob, campaign.version.memory, *campaign.models.values()}
        assert blobs <= needed(campaign, world.fleet)
        assert campaign.settings.bundle in offered(campaign, world.fleet)
        assert not rollout.direct
