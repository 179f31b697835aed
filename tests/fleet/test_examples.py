"""Examples, each of one thing that the machine does."""

from typing import Any

import pytest
from msgspec.structs import replace

from aggregator.core.steps import Gate, Step
from aggregator.fleet import events as e
from aggregator.fleet import rounds
from aggregator.fleet import step as machine
from aggregator.fleet.reconcile import REST_S
from tests.fleet.cases import all_work, asked, ban, configure, direct, run, world_of
from tests.fleet.world import TRAIN, Client, World, digest_of
from tests.support.known import known


class TestRounds:
    def test_a_campaign_trains_evaluates_and_gives_its_models(self) -> None:
        world = world_of("a", "b", "c")
        world.start("run", rounds=2, min_devices=2)
        world.settle()
        assert (run(world).phase, run(world).ended, run(world).trained) == ("finished", "rounds", 2)
        assert [count for _, _, count, _ in world.rounds] == [3, 3]
        assert {client.model for client in world.clients.values()} == {
            digest_of("run-2-0"),
            digest_of("run-2-1"),
        }
        assert not world.timers, "nothing is left to wait for"

    def test_the_first_round_waits_for_enough_devices(self) -> None:
        world = world_of("a")
        world.start("run", min_devices=2)
        assert run(world).phase == "waiting"
        assert asked(world) == []
        world.check_in("b")
        assert (run(world).phase, asked(world)) == ("training", ["a", "b"])

    def test_a_deadline_with_too_few_updates_opens_the_round_again_and_keeps_what_came(
        self,
    ) -> None:
        world = world_of("a", "b")
        world.start("run", min_devices=2, deadline_s=100.0)
        all_work(world, "a")
        world.pass_time(99)
        assert (run(world).phase, run(world).attempt) == ("training", 0)
        world.pass_time(1)
        assert run(world).attempt == 1
        assert set(run(world).updates) == {"a"}
        world.pass_time(REST_S)
        assert asked(world) == ["b"], "who has answered is not asked again"
        all_work(world, "b")
        assert world.rounds == [("run", 1, 2, "training")]

    def test_an_update_that_is_late_for_its_deadline_counts_if_the_round_is_still_open(
        self,
    ) -> None:
        world = world_of("a", "b")
        world.start("run", min_devices=2, deadline_s=100.0)
        world.carry_out()
        world.pass_time(101)
        all_work(world)
        assert world.rounds == [("run", 1, 2, "training")]

    def test_a_round_waits_for_a_lost_device_for_its_grace_and_no_longer(self) -> None:
        world = world_of("a", "b", "c")
        world.start("run", min_devices=1, grace_s=30.0)
        all_work(world, "a", "b")
        world.leave("c")
        world.pass_time(29)
        world.carry_out()
        assert world.rounds == []
        world.pass_time(1)
        world.carry_out()
        assert world.rounds == [("run", 1, 2, "training")]

    def test_a_device_that_is_back_within_its_grace_is_sent_its_plan_again(self) -> None:
        world = world_of("a", "b")
        world.start("run", min_devices=2)
        plan = world.fleet.devices["a"].assignment
        world.leave("a")
        world.check_in("a")
        assert [
            c.assignment for c in world.outbox if isinstance(c, e.SendPlan) and c.device_id == "a"
        ] == [plan] * 2

    def test_over_select_asks_more_and_is_over_with_the_first(self) -> None:
        world = world_of(*"abcdef")
        world.start("run", min_devices=1, cohort=4, over_select=1.5)
        assert len(asked(world)) == 6
        all_work(world, *"abcd")
        world.carry_out()
        assert world.rounds == [("run", 1, 4, "training")]
        late = known(world.clients["e"].plan)
        all_work(world, "e")
        assert (late.round, run(world).round) == (1, 2)
        assert "e" not in run(world).updates, "what is late is acknowledged and dropped"
        assert world.acknowledged == world.admitted

    def test_what_comes_while_a_round_is_aggregated_counts_in_no_synchronous_round(self) -> None:
        world = world_of("a", "b", "c")
        world.start("run", min_devices=1, cohort=2, over_select=1.5)
        world.carry_out()
        for device_id in "abc":
            world.work(device_id)
        assert run(world).phase == "aggregating"
        assert set(run(world).updates) == {"a", "b"}

    def test_what_happens_while_a_large_fleet_is_asked_does_not_keep_others_from_being_asked(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(rounds, "CHUNK", 1)
        world = world_of(*"abcd")
        world.start("run", rounds=1, min_devices=4)
        all_work(world, "a")
        world.feed(e.Tick(at_s=world.now_s, keys=("b",)))  # before the timer of campaigns rings
        world.settle()
        assert world.rounds == [("run", 1, 4, "training")]

    def test_no_round_is_aggregated_below_its_quorum(self) -> None:
        world = world_of(*"abcd")
        world.start("run", min_devices=1, cohort=4, quorum=0.75, deadline_s=100.0)
        all_work(world, "a", "b")
        world.pass_time(100)
        assert (run(world).attempt, run(world).phase, world.rounds) == (1, "training", [])
        world.pass_time(REST_S)
        all_work(world, "c")
        world.pass_time(100)
        world.carry_out()
        assert world.rounds == [("run", 1, 3, "training")]

    def test_a_round_that_is_short_of_devices_asks_another_one_at_once(self) -> None:
        world = world_of(*"abcd")
        world.start("run", min_devices=3, cohort=3)
        world.carry_out()
        first = asked(world)
        world.decline(first[0])
        assert len(asked(world)) == 3
        assert first[0] not in asked(world)

    def test_preparations_do_not_count_as_rounds_of_training(self) -> None:
        world = world_of("a", "b")
        world.start("run", preparing=True, rounds=1, min_devices=2)
        world.settle()
        assert [(count, phase) for _, _, count, phase in world.rounds] == [
            (2, "preparing"),
            (2, "training"),
        ]

    def test_lost_updates_are_asked_for_again(self) -> None:
        world = world_of("a", "b")
        world.start("run", min_devices=2)
        world.carry_out()
        world.work("a")
        world.work("b")
        assert run(world).phase == "aggregating"
        world.feed(e.UpdatesLost(at_s=world.now_s, campaign="run", device_ids=("a",)))
        assert asked(world) == ["a"]
        all_work(world)
        assert world.rounds == [("run", 1, 2, "training")]

    @pytest.mark.parametrize("policy", [{}, {"cohort": 6}, {"buffer": 6, "concurrency": 6}])
    def test_a_large_fleet_is_looked_at_and_asked_bit_by_bit(
        self, policy: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(rounds, "CHUNK", 2)
        monkeypatch.setattr(machine, "SWEPT", 2)
        world = world_of(*"abcdef")
        world.start("run", rounds=1, min_devices=1, **policy)
        assert (run(world).width, asked(world), world.most) == (6, list("abcdef"), 2)
        world.settle()
        assert run(world).phase == "finished"


class TestWhomItAsks:
    def test_one_that_fails_is_asked_less_and_less_often_and_one_update_ends_that(self) -> None:
        world = world_of("a", "b")
        world.start("run", rounds=1000, min_devices=1)
        rests = []
        for _ in range(4):
            world.carry_out()
            while "a" not in asked(world):
                all_work(world, "b")
                world.pass_time(1)
            at_s = world.now_s
            world.carry_out()
            world.decline("a")
            rests.append(world.fleet.devices["a"].rests_until_s - at_s)
        assert rests == [REST_S, 2 * REST_S, 4 * REST_S, 8 * REST_S]
        while "a" not in asked(world):
            all_work(world, "b")
            world.pass_time(1)
        all_work(world, "a")
        assert world.fleet.devices["a"].failures == 0

    def test_one_that_says_something_else_of_itself_is_asked_at_once(self) -> None:
        world = world_of("a")
        world.start("run", min_devices=1)
        world.carry_out()
        world.decline("a")
        assert asked(world) == []
        world.clients["a"].num_train = 11
        world.check_in("a")
        assert asked(world) == ["a"]

    def test_a_device_is_asked_at_its_pace(self) -> None:
        world = world_of("a", "b")
        world.start("run", rounds=2, min_devices=2, pace_s=1000.0)
        all_work(world)
        world.carry_out()
        assert run(world).phase == "waiting"
        world.pass_time(999)
        assert asked(world) == []
        world.pass_time(1)
        assert asked(world) == ["a", "b"]

    def test_devices_are_asked_in_the_hours_and_plans_end_with_them(self) -> None:
        world = world_of("a", "b")
        world.start("run", min_devices=2, hours="22:00-01:00")
        assert world.clients["a"].plan is None
        assert asked(world) == ["a", "b"], "at one second past midnight"
        assert world.assigned("a").deadline_s == 601
        world.pass_time(3500)
        assert world.assigned("a").deadline_s <= 3600
        world.pass_time(200)
        assert (run(world).phase, asked(world)) == ("waiting", [])
        world.pass_time(79_200 - world.now_s)
        assert asked(world) == ["a", "b"]

    def test_only_devices_that_the_campaign_selects_are_asked(self) -> None:
        world = world_of("a", "b", "c")
        world.clients["b"].battery = 10
        world.check_in("b")
        world.start("run", min_devices=1, where="battery >= 50")
        assert asked(world) == ["a", "c"]
        world.clients["b"].battery = 90
        world.check_in("b")
        world.settle()
        assert "b" in run(world).members

    def test_what_a_banned_device_has_sent_does_not_count(self) -> None:
        world = world_of("a", "b", "c")
        world.start("run", min_devices=2)
        all_work(world, "a")
        ban(world, "a")
        assert "a" not in run(world).updates
        world.carry_out()
        ban(world, "b")
        assert asked(world) == ["c"], "nobody waits for it"
        ban(world, "b", ends=True)
        world.settle()
        assert all(count == 2 for _, _, count, _ in world.rounds)
        assert not world.clients["a"].model
        ban(world, "a", ends=True)
        world.settle()
        assert world.clients["a"].model, (
            "once it is not banned any more it gets what the others have"
        )

    def test_a_closed_round_with_too_few_updates_after_a_ban_is_opened_again(self) -> None:
        world = world_of("a", "b", "c")
        world.start("run", min_devices=2, cohort=2)
        world.carry_out()
        for device_id in asked(world):
            world.work(device_id)
        assert run(world).phase == "aggregating"
        ban(world, min(run(world).updates))
        assert (run(world).phase, run(world).attempt) == ("training", 1)

    def test_nothing_is_left_of_a_device_that_is_forgotten(self) -> None:
        world = world_of("a", "b", "c")
        world.start("run", rounds=2, min_devices=1)
        all_work(world)
        world.leave("a")
        world.feed(e.Forgotten(at_s=world.now_s, device_id="a"))
        assert "'a'" not in repr(world.fleet)

    def test_a_device_whose_owner_withdraws_is_asked_for_nothing_until_it_checks_in(self) -> None:
        world = world_of("a", "b")
        world.start("run", min_devices=1)
        world.leave("a", withdrawn=True)
        world.feed(e.Seen(at_s=world.now_s, device_id="a", online=True))
        assert asked(world) == ["b"]
        world.check_in("a")
        world.settle()
        assert world.holds_what_is_wanted("a")


class TestWithoutLabels:
    def test_one_without_labels_says_what_its_inputs_are_like_and_is_placed(self) -> None:
        world = world_of("a", "b")
        world.clients["u"] = Client(num_train=0)
        world.check_in("u")
        world.start("run", rounds=2, min_devices=2, surveys=True)
        assert (asked(world), asked(world, "survey")) == (["a", "b"], ["u"])
        world.settle()
        assert all(count == 2 for _, _, count, _ in world.rounds)
        assert {d for d, m in run(world).members.items() if m.survey} == {"u"}
        assert world.clients["u"].model == digest_of("run-2-1")

    def test_one_that_comes_when_the_campaign_is_over_is_placed_and_then_keeps(self) -> None:
        world = world_of("a", "b")
        world.start("run", rounds=1, min_devices=2, surveys=True, keeps=True)
        world.settle()
        world.clients["u"] = Client(num_train=0)
        world.check_in("u")
        world.settle()
        assert run(world).members["u"].current_group == "1"
        assert world.clients["u"].kept == [digest_of("run-1-1")]

    def test_it_is_placed_after_a_crash_too(self) -> None:
        world = world_of("a", "b")
        world.start("run", rounds=1, min_devices=2, surveys=True)
        world.settle()
        world.clients["u"] = Client(num_train=0)
        world.check_in("u")
        world.carry_out()
        world.work("u")
        world.crash()
        world.settle()
        assert run(world).members["u"].current_group == "1"

    def test_one_that_has_nothing_to_tell_is_asked_again_later(self) -> None:
        world = world_of("a", "b")
        world.clients["u"] = Client(num_train=0, empty=True)
        world.check_in("u")
        world.start("run", rounds=1, min_devices=2, surveys=True)
        all_work(world)
        assert world.fleet.devices["u"].rests_until_s == world.now_s + REST_S

    def test_one_that_has_labels_by_now_trains_as_a_newcomer(self) -> None:
        world = world_of("a", "b")
        world.clients["u"] = Client(num_train=0)
        world.check_in("u")
        world.start("run", rounds=3, min_devices=2, surveys=True)
        all_work(world)
        world.clients["u"].num_train = 10
        world.check_in("u")
        assert run(world).members["u"].survey is None
        world.settle()
        starts = (w.start for _, d, w in world.plans if d == "u" and w.kind == "train")
        assert next(starts) == "initial"

    def test_one_whose_data_have_moved_trains_as_a_newcomer_once(self) -> None:
        world = world_of("a", "b")
        world.start("run", rounds=4, min_devices=2)
        all_work(world)  # the next round has asked it already when it says so
        world.clients["a"].moved = True
        world.check_in("a")
        world.settle()
        trained = {
            work.serial: work.start
            for _, d, work in world.plans
            if d == "a" and work.kind == "train"
        }
        assert list(trained.values()) == ["initial", "1", "initial", "1"], (
            "its group is known again"
        )


class TestBuffered:
    def test_fast_devices_do_not_wait_and_what_is_stale_counts(self) -> None:
        world = world_of(*"abc")
        world.start("run", rounds=9, min_devices=1, buffer=1, concurrency=3)
        world.carry_out()
        for _ in range(2):
            all_work(world, "a")
            all_work(world, "b")
        assert run(world).trained >= 2
        number = run(world).round
        world.work("c")
        assert run(world).updates["c"].staleness == number - 1
        world.settle()
        assert run(world).phase == "finished"

    def test_as_many_as_the_policy_says_are_at_work_at_any_time(self) -> None:
        world = world_of(*"abcdef")
        world.start("run", rounds=5, min_devices=1, buffer=2, concurrency=3)
        assert len(asked(world)) == 3
        all_work(world, asked(world)[0])
        assert len(asked(world)) == 3
        world.carry_out()
        world.decline(asked(world)[0])
        assert len(asked(world)) == 3

    def test_what_is_in_flight_is_given_up_with_the_models_that_it_started_from(self) -> None:
        world = world_of(*"abc")
        world.start("run", rounds=9, min_devices=1, buffer=1, concurrency=3)
        all_work(world, "a")
        all_work(world, "a")
        all_work(world, "b")
        held = [v.round for v in run(world).history]
        world.feed(e.RolledBack(at_s=world.now_s, campaign="run", to=held[0]))
        world.ring()
        assert all(world.assigned(d).round == run(world).round for d in asked(world))

    def test_a_round_ends_with_what_there_is_by_its_deadline_though_others_are_at_work(
        self,
    ) -> None:
        world = world_of(*"abcd")
        world.start("run", rounds=9, min_devices=1, buffer=3, concurrency=2, deadline_s=100.0)
        world.pass_time(50)
        all_work(world, asked(world)[0])
        assert len(asked(world)) == 2, "one of them was asked in the midst of the round"
        world.pass_time(50)
        assert run(world).phase == "aggregating"
        world.carry_out()
        assert world.rounds == [("run", 1, 1, "training")]

    def test_what_started_from_models_that_the_round_gives_up_does_not_count(self) -> None:
        world = world_of(*"abc")
        world.start("run", rounds=9, min_devices=1, buffer=1, concurrency=3)
        all_work(world, "a")
        all_work(world, "a")
        late = known(world.clients["b"].plan)
        world.work("a")
        world.aggregate(next(c for c in world.outbox if isinstance(c, e.Aggregate)), reverted_to=1)
        world.outbox.clear()
        world.ring()
        assert run(world).models["0"] == digest_of("run-1-0")
        assert late.serial in {c.assignment.serial for c in world.outbox if isinstance(c, e.Cancel)}
        world.work("b")
        assert "b" not in run(world).updates


class TestTheEnd:
    def test_a_device_that_was_away_at_the_end_keeps_what_the_others_keep(self) -> None:
        world = world_of("a", "b", "c")
        world.start("run", rounds=1, min_devices=2, keeps=True, grace_s=1.0)
        world.leave("c")
        world.settle()
        assert run(world).phase == "finished"
        world.check_in("c")
        world.settle()
        assert world.clients["c"].kept == [world.clients["c"].model]

    def test_one_that_has_lost_what_it_kept_is_asked_again_and_rests_longer_each_time(self) -> None:
        world = world_of("a", "b")
        world.start("run", rounds=1, min_devices=2, keeps=True)
        world.settle()
        rests = []
        for _ in range(3):
            world.clients["a"].kept.clear()
            world.check_in("a")
            rests.append(world.fleet.devices["a"].rests_until_s - world.now_s)
            world.settle()
            assert world.clients["a"].kept == [world.clients["a"].model]
        assert rests == [REST_S, 2 * REST_S, 4 * REST_S]
        world.check_in("a")
        assert world.fleet.devices["a"].failures == 0, "it says that it holds it"

    def test_what_a_device_keeps_late_says_nothing_of_the_models_of_a_later_end(self) -> None:
        world = world_of("a", "b")
        world.start("run", rounds=1, min_devices=1, keeps=True, deadline_s=1000.0)
        all_work(world)
        all_work(world, "a")
        world.pass_time(900)
        world.check_in("c")
        world.pass_time(100)
        assert (run(world).phase, asked(world, "personalise")) == ("finished", ["c"])
        configure(world, rounds=2, deadline_s=10.0)
        all_work(world, "a")
        world.pass_time(100)
        all_work(world, "a")
        assert run(world).phase == "evaluating"
        world.work("c")
        assert "c" not in run(world).updates

    def test_a_full_disk_is_tried_again(self) -> None:
        world = world_of("a", "b")
        world.start("run", rounds=1, min_devices=2, keeps=True)
        all_work(world)
        world.carry_out()
        world.decline("a")
        world.settle()
        assert world.clients["a"].kept == [world.clients["a"].model]

    def test_after_a_return_to_earlier_models_everybody_has_and_keeps_those(self) -> None:
        world = world_of("a", "b")
        world.start("run", rounds=2, min_devices=2, keeps=True)
        world.settle()
        world.feed(
            e.RolledBack(at_s=world.now_s, campaign="run", to=1, groups={"a": "1", "b": "0"})
        )
        world.settle()
        assert [world.clients[d].model for d in "ab"] == [
            digest_of("run-1-1"),
            digest_of("run-1-0"),
        ]
        assert all(client.model in client.kept for client in world.clients.values())

    @pytest.mark.parametrize(
        ("settings", "ended", "trained"),
        [
            ({"rounds": 2}, "rounds", 2),
            ({"patience": 2}, "patience", 3),
            ({"days": 1.0, "pace_s": 50_000.0}, "days", 2),
        ],
    )
    def test_the_first_part_of_the_budget_that_is_spent_ends_the_training(
        self, settings: dict[str, Any], ended: str, trained: int
    ) -> None:
        world = world_of("a", "b")
        world.start("run", min_devices=2, **({"rounds": 100} | settings))
        world.settle()
        assert (run(world).ended, run(world).trained) == (ended, trained)

    def test_a_campaign_that_is_over_goes_on_with_more_rounds(self) -> None:
        world = world_of("a", "b")
        world.start("run", rounds=1, min_devices=2)
        world.settle()
        configure(world, rounds=3)
        world.settle()
        assert (run(world).trained, world.clients["a"].model) == (
            3,
            digest_of(f"run-{run(world).version.round}-1"),
        )

    def test_an_aborted_campaign_asks_nobody_and_gives_no_models(self) -> None:
        world = world_of("a", "b")
        world.start("run", min_devices=2)
        world.carry_out()
        direct(world, "abort")
        world.settle()
        assert (run(world).ended, asked(world)) == ("order", [])
        assert world.clients["a"].plan is None, "it was told that its work is in vain"
        assert not world.clients["a"].model


class TestOrders:
    def test_other_settings_count_from_the_next_round_on(self) -> None:
        world = world_of("a", "b", "c")
        world.start("run", rounds=3, min_devices=1)
        configure(world, cohort=1)
        assert asked(world) == ["a", "b", "c"]
        all_work(world)
        world.carry_out()
        world.ring()
        assert len(asked(world)) == 1

    def test_other_settings_count_in_an_open_round_that_is_opened_again(self) -> None:
        world = world_of("a", "b")
        world.start("run", rounds=3, min_devices=2)
        old = run(world).version.programs
        new = {key: (replace(TRAIN, epochs=7),) for key in old}
        settings = replace(run(world).next_settings, deadline_s=50.0)
        at_s = world.now_s
        world.feed(e.Configured(at_s=at_s, campaign="run", settings=settings, programs=new))
        assert run(world).version.programs == old, "devices finish the round by its plans"
        world.carry_out()
        for device_id in ("a", "b"):
            world.decline(device_id)
        world.pass_time(run(world).deadline_s - world.now_s + 1)
        world.ring()
        assert (run(world).round, run(world).attempt) == (1, 1)
        assert run(world).version.programs == new
        assert run(world).settings.deadline_s == 50.0

    def test_a_paused_campaign_leaves_its_devices_to_others(self) -> None:
        world = world_of("a", "b")
        world.start("one", rounds=1, min_devices=2)
        all_work(world)
        world.start("two", rounds=3, min_devices=2)
        direct(world, "pause", "two")
        world.settle()
        assert [(run(world, name).phase, run(world, name).trained) for name in ("one", "two")] == [
            ("finished", 1),
            ("waiting", 0),
        ]
        direct(world, "resume", "two")
        world.settle()
        assert run(world, "two").phase == "finished"

    def test_a_later_campaign_has_the_devices_first_and_gives_them_back(self) -> None:
        world = world_of("a", "b")
        world.start("one", rounds=3, min_devices=2)
        world.start("two", rounds=2, min_devices=2)
        world.settle()
        assert [(name, count) for name, _, count, _ in world.rounds] == [
            ("one", 2),
            *[("two", 2)] * 2,
            *[("one", 2)] * 2,
        ]
        assert world.clients["a"].model == digest_of("one-3-1"), (
            "devices have what came to its end last"
        )

    def test_a_campaign_returns_to_the_models_of_an_earlier_round(self) -> None:
        world = world_of("a", "b")
        world.start("run", rounds=9, min_devices=2)
        for _ in range(3):
            all_work(world)
        world.carry_out()
        world.feed(
            e.RolledBack(at_s=world.now_s, campaign="run", to=1, groups={"a": "1", "b": "0"})
        )
        world.ring()
        assert run(world).models["0"] == digest_of("run-1-0")
        assert {world.assigned(d).model for d in asked(world)} == {
            digest_of("run-1-0"),
            digest_of("run-1-1"),
        }


class TestReleases:
    def staged(self, count: int = 20, **settings: Any) -> World:
        """A fleet in which a second campaign has trained better models, which are given to few
        devices first."""
        world = world_of(*(f"d{number}" for number in range(count)))
        world.start("old", rounds=1, min_devices=2)
        world.settle()
        world.start("new", rounds=1, min_devices=2, auto=False, **settings)
        world.settle()
        return world

    def order(self, world: World, order: Any, release: int = 0) -> None:
        at: dict[str, Any] = {"at_s": world.now_s}
        if order == "release":
            world.release("new")
        elif order == "return":
            earlier = world.fleet.releases[release]
            own: dict[str, Any] = {"campaign": earlier.campaign, "group": earlier.group}
            world.feed(e.Returned(**at, release=release, salt="s", **own))
        else:
            world.feed(e.Steered(**at, campaign="new", order=order))

    def having(self, world: World, prefix: str) -> list[str]:
        return [
            d
            for d, client in world.clients.items()
            if client.model.startswith(prefix.encode().hex())
        ]

    def test_a_release_reaches_more_devices_step_by_step(self) -> None:
        world = self.staged(steps=(Step(0.1), Step(0.5), Step(1.0)))
        reached = list[int]()
        self.order(world, "release")
        while world.fleet.rollouts[-1].phase == "running":
            world.pass_time(1)
            world.carry_out()
            if not reached or len(self.having(world, "new")) > reached[-1]:
                reached.append(len(self.having(world, "new")))
        assert reached[-1] == 20
        assert len(reached) == 3
        assert 0 < reached[0] < reached[1] < 20

    def test_a_share_that_holds_nobody_is_widened_until_it_does(self) -> None:
        world = self.staged(
            3,
            steps=(
                Step(0.001),
                Step(1.0),
            ),
            gate=Gate(quorum=1.0),
        )
        for client in world.clients.values():
            client.spoils = "none"
        self.order(world, "release")
        world.pass_time(30)
        assert len([c for c in world.outbox if isinstance(c, e.OfferRelease)]) >= 1
        assert world.fleet.rollouts[-1].step == 0

    def test_canaries_come_first_and_a_release_that_fails_there_is_taken_back(self) -> None:
        world = self.staged(
            steps=(
                Step(tags=("canary",)),
                Step(1.0),
            )
        )
        for device_id in ("d1", "d2", "d3"):
            world.feed(e.Tagged(at_s=world.now_s, device_id=device_id, tags=("canary",)))
            world.clients[device_id].drop = 0.5
        self.order(world, "release")
        world.ring()
        offered = {c.device_id for c in world.outbox if isinstance(c, e.OfferRelease)}
        assert offered == {"d1", "d2", "d3"}
        world.settle()
        assert (world.fleet.rollouts[-1].phase, world.fleet.rollouts[-1].reason) == (
            "failed",
            "accuracy fell by 0.500 on 3 devices; at most 0.02 is allowed",
        )
        assert self.having(world, "new") == []
        assert self.having(world, "old") == list(world.clients), "everybody has again what it had"

    def test_a_release_that_cannot_be_used_on_many_devices_is_taken_back(self) -> None:
        world = self.staged(
            steps=(
                Step(0.5),
                Step(1.0),
            ),
            gate=Gate(max_failures=0.2),
        )
        for client in list(world.clients.values())[::2]:
            client.spoils = digest_of("new-1-0")
        for client in list(world.clients.values())[1::2]:
            client.spoils = digest_of("new-1-1")
        self.order(world, "release")
        world.settle()
        assert world.fleet.rollouts[-1].phase == "failed"
        assert self.having(world, "new") == []

    def test_silent_devices_do_not_hold_a_step_up_for_ever(self) -> None:
        world = self.staged(steps=(Step(1.0),), gate=Gate(patience_s=100.0))
        self.order(world, "release")
        world.ring()
        offers = [c for c in world.outbox if isinstance(c, e.OfferRelease)]
        for command in offers[:5]:
            world.deliver(world.clients[command.device_id], command)
        world.outbox.clear()
        world.pass_time(99)
        phases = [world.fleet.rollouts[-1].phase]
        world.pass_time(1)
        assert [*phases, world.fleet.rollouts[-1].phase] == ["running", "done"]

    def test_the_operator_pauses_goes_on_takes_a_step_and_ends_a_rollout(self) -> None:
        world = self.staged(
            steps=(
                Step(0.3),
                Step(1.0),
            )
        )
        self.order(world, "release")
        self.order(world, "pause")
        world.settle()
        assert self.having(world, "new") == []
        self.order(world, "resume")
        world.ring()
        self.order(world, "promote")
        world.settle()
        assert len(self.having(world, "new")) == 20
        self.order(world, "return", release=1)
        world.settle()
        assert {client.model for client in world.clients.values()} >= {digest_of("old-1-0")}

    def test_a_later_rollout_supersedes_and_its_failure_brings_back_what_was_there_before_both(
        self,
    ) -> None:
        world = self.staged(
            steps=(
                Step(0.5),
                Step(1.0),
            ),
            gate=Gate(patience_s=1e9),
        )
        self.order(world, "release")
        world.ring()
        configure(world, "new", rounds=2)
        world.outbox = [c for c in world.outbox if not isinstance(c, e.OfferRelease)]
        for client in world.clients.values():
            client.drop = 0.3
        world.settle()
        self.order(world, "release")
        world.settle()
        assert {r.phase for r in world.fleet.rollouts if r.campaign == "new"} == {"failed"}
        assert len(self.having(world, "old")) == 20

    def test_a_device_that_knows_a_greater_number_than_the_service_is_offered_a_greater_one_yet(
        self,
    ) -> None:
        world = self.staged(4, steps=(Step(1.0),))
        world.clients["d0"].offered = world.clients["d0"].serial = (
            10_000  # of a service that was restored from an old backup
        )
        world.check_in("d0")
        world.settle()
        assert world.clients["d0"].serial == 10_001

    def test_a_device_that_has_trained_gets_the_models_though_it_is_not_selected_any_more(
        self,
    ) -> None:
        world = world_of("a", "b", "c")
        world.start("run", rounds=2, min_devices=2, where="battery >= 50")
        all_work(world)
        for device_id in "cd":
            world.clients[device_id] = Client(battery=10)
            world.check_in(device_id)
        world.settle()
        assert (bool(world.clients["c"].model), bool(world.clients["d"].model)) == (True, False)


class TestAfterACrash:
    def test_the_service_goes_on_with_a_new_epoch(self) -> None:
        world = world_of(*"abc")
        world.start("run", rounds=2, min_devices=2)
        world.carry_out(1)
        world.crash()
        world.ring()
        plans = {c.device_id: c for c in world.outbox if isinstance(c, e.SendPlan)}
        assert plans.keys() == set("abc")
        assert world.fleet.epoch == 2
        world.settle()
        assert run(world).phase == "finished"

    def test_an_aggregation_that_was_lost_is_made_again(self) -> None:
        world = world_of("a", "b")
        world.start("run", rounds=1, min_devices=2)
        world.carry_out()
        world.work("a")
        world.work("b")
        world.crash()
        world.ring()
        world.settle()
        assert world.rounds == [("run", 1, 2, "training")]

    def test_an_update_that_comes_again_is_acknowledged_and_counts_once(self) -> None:
        world = world_of("a", "b", "c")
        world.start("run", min_devices=3)
        world.carry_out()
        world.work("a")
        sent = known(world.clients["a"].update)
        for _ in range(3):
            assert [c for c in world.feed(sent) if isinstance(c, e.AcknowledgeUpdate)] == [
                e.AcknowledgeUpdate("a", sent.update.blob)
            ]
        assert len(run(world).updates) == 1

    def test_a_device_that_was_never_here_is_acknowledged_too(self) -> None:
        world = world_of("a")
        world.start("run", min_devices=1)
        world.carry_out()
        world.work("a")
        last = world.events[-1]
        assert isinstance(last, e.Updated)
        sent = replace(last, device_id="x", serial=9)
        commands = World().feed(sent)
        assert commands == [e.AcknowledgeUpdate("x", sent.update.blob)]
