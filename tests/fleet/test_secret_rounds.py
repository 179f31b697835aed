"""Rounds in secret mode: the same devices in each, one set a question, helpers asked until its sum
is open."""

import random

import pytest
from msgspec.structs import replace

from aggregator.core.pool import DevicePool
from aggregator.fleet import events as e
from aggregator.fleet import sums
from aggregator.fleet.step import step
from algorithms.core.keys import NEWCOMER
from tests.fleet.cases import all_work, asked, direct, run
from tests.fleet.secret_world import HELPERS, TEN, Secret
from tests.fleet.world import Client
from tests.support.known import known
from wire.messages import CheckIn


def test_every_device_answers_one_question_a_round_and_none_is_tested_at_the_end() -> None:
    world = Secret(*TEN)
    world.do_all()
    assert run(world).phase == "finished"
    assert [question.most for question in world.asked] == [10, 10, 10]
    assert len({question.about for question in world.asked}) == 3
    assert {work.kind for _, _, work in world.plans} == {"train"}
    assert run(world).cells == (TEN,)


def test_fewer_devices_than_a_sum_needs_are_not_asked() -> None:
    world = Secret(*TEN[:4])
    world.do_all()
    assert world.asked == []
    assert world.lack == "1 more: 4 of 5 devices are there"


def test_a_round_waits_for_a_device_of_earlier_rounds() -> None:
    world = Secret(*TEN)
    all_work(world)
    world.leave("d3")
    world.do_all()
    assert run(world).round == 2, "it was open when the device left"
    world.pass_time(200)
    world.do_all()
    assert (run(world).phase, run(world).round) == ("waiting", 2)
    assert world.lack == "devices that are in every secret sum: d3"
    world.check_in("d3")
    world.pass_time(200)
    world.do_all()
    assert run(world).phase == "finished"


def test_the_first_round_closes_at_its_deadline_over_those_that_answered() -> None:
    world = Secret(*TEN)
    all_work(world, *TEN[:7])
    world.pass_time(150)
    assert run(world).phase == "aggregating"
    world.do_all(*TEN[:7])
    assert run(world).cells == (TEN[:7],), "three others are too few to come in later"
    assert run(world).round > 1


def test_an_answer_to_the_question_of_an_earlier_attempt_does_not_count() -> None:
    world = Secret(*TEN)
    world.carry_out()
    for device_id in TEN[:4]:
        world.work(device_id)
    late = world.clients["d9"]
    plan = known(late.plan)
    world.pass_time(101)
    assert run(world).attempt == 1
    assert not run(world).updates, "they answer the question of the first attempt"
    world.carry_out()
    late.plan, late.update = plan, None
    world.work("d9")
    assert "d9" not in run(world).updates
    world.pass_time(200)
    world.do_all()
    assert run(world).phase == "finished"


@pytest.mark.parametrize(("excluded", "goes_on"), [(1, False), (4, False), (5, True), (6, False)])
def test_devices_leave_for_good_when_as_many_leave_as_a_sum_needs(
    excluded: int, goes_on: bool
) -> None:
    world = Secret(*TEN, rounds=2)
    all_work(world)
    world.pass_time(1)
    for device_id in TEN[:excluded]:
        world.feed(e.Excluded(at_s=world.now_s, campaign="run", device_id=device_id))
    world.pass_time(300)
    world.do_all()
    world.pass_time(300)
    assert (run(world).phase == "finished") == goes_on, world.lack
    if not goes_on:
        assert "no sum without" in world.lack or "more: " in world.lack


def test_new_devices_come_in_when_they_can_hide_each_other() -> None:
    world = Secret(*TEN, rounds=4)
    all_work(world)
    for number in range(5):
        world.clients[f"n{number}"] = Client()
        world.check_in(f"n{number}")
    world.do_all()
    assert [question.most for question in world.asked][-1] == 15
    assert len(run(world).cells) == 2


def test_two_attempts_before_one_end_of_the_hours_have_questions_of_their_own() -> None:
    world = Secret(*TEN, rounds=1, hours="00:00-23:00 UTC", deadline_s=1e6)
    world.down = {HELPERS[0].digest}
    world.do_all()
    world.now_s += 1.0
    world.clients["n1"] = Client()
    world.check_in("n1")
    world.leave("d4", withdrawn=True)
    world.down.clear()
    world.do_all()
    first, second = world.asked
    assert (first.about, first.most) == (second.about, second.most)
    assert first.digest != second.digest
    assert run(world).phase == "finished", world.lack


class TestHelpers:
    def test_they_are_asked_again_until_they_answer(self) -> None:
        world = Secret(*TEN, rounds=1)
        world.down = {HELPERS[0].digest}
        world.do_all()
        assert run(world).phase == "aggregating"
        assert world.lack == "helpers to open its secret sum: n"
        world.down.clear()
        world.pass_time(11)
        world.carry_out()
        world.ring()
        assert run(world).phase == "finished"

    def test_a_refused_sum_pauses_the_campaign_until_a_person_resumes_it(self) -> None:
        world = Secret(*TEN, rounds=1)
        world.refusal = "unknown-device: d7 is not in the roster"
        world.do_all()
        assert run(world).paused
        assert world.lack.startswith("you to mend its secret sum and resume it: helper ")
        assert "unknown-device: d7 is not in the roster" in world.lack
        world.refusal = ""
        world.now_s += 1.0
        direct(world, "resume")
        world.do_all()
        assert run(world).phase == "finished"
        assert len(world.asked) == 2, "another attempt has another question"

    def test_a_set_that_all_have_refused_binds_nobody(self) -> None:
        world = Secret(*TEN, rounds=1)
        world.refusal = "unknown-device: d7 is not in the roster"
        world.do_all()
        world.refusal = ""
        world.feed(e.Excluded(at_s=world.now_s, campaign="run", device_id="d7"))
        direct(world, "resume")
        world.do_all()
        assert run(world).phase == "finished", (world.lack, run(world).cells, run(world).sums)
        assert "d7" not in run(world).cells[0]

    def test_a_device_whose_share_a_helper_cannot_use_is_left_out_before_any_agrees(self) -> None:
        world = Secret(*TEN, rounds=3)
        world.unusable = {"d7"}
        world.do_all()
        assert run(world).phase == "finished", world.lack
        assert run(world).cells == (tuple(d for d in TEN if d != "d7"),)
        assert [question.most for question in world.asked] == [10, 9, 9], "it waits for others"

    def test_one_that_was_in_earlier_sums_is_named(self) -> None:
        world = Secret(*TEN, rounds=3)
        all_work(world)
        world.unusable = {"d7"}
        world.do_all()
        assert run(world).paused
        assert "untrusted: helpers cannot use the shares of d7" in world.lack
        world.unusable.clear()
        world.now_s += 1.0
        direct(world, "resume")
        world.do_all()
        assert run(world).phase == "finished"

    def test_a_sum_that_cannot_be_used_pauses_the_campaign(self) -> None:
        world = Secret(*TEN, rounds=1)
        world.down = {HELPERS[0].digest}
        world.do_all()
        where = {"campaign": "run", "key": NEWCOMER, "problem": "sum-mismatch: helpers differ"}
        world.feed(e.SumFailed(at_s=world.now_s, round=1, **where))
        assert run(world).paused
        world.down.clear()
        world.now_s += 1.0
        direct(world, "resume")
        world.do_all()
        assert run(world).phase == "finished"

    def test_an_owner_who_withdraws_while_helpers_open_the_sum_is_not_in_the_next_model(
        self,
    ) -> None:
        world = Secret(*TEN, rounds=1)
        while not any(ledger.sets for ledger in world.ledgers.values()):
            world.carry_out(1)
            for device_id in TEN:
                world.work(device_id)
            if sums.stage_of(run(world)) == "opening":
                world.down = {HELPERS[0].digest} if run(world).sums[NEWCOMER].checked else set()
        world.leave("d4", withdrawn=True)
        assert (run(world).phase, run(world).attempt) == ("waiting", 1)
        world.down.clear()
        world.do_all()
        assert "1 that helpers open no sum without" in world.lack, (
            "two helpers have agreed to the set"
        )

    def test_one_who_withdraws_before_a_helper_has_agreed_is_missed_by_no_sum(self) -> None:
        world = Secret(*TEN, rounds=1)
        world.down = {HELPERS[0].digest}
        world.do_all()
        world.leave("d4", withdrawn=True)
        world.down.clear()
        world.do_all()
        assert run(world).phase == "finished"
        assert "d4" not in run(world).cells[0]


@pytest.mark.parametrize("seed", range(12))
def test_helpers_never_refuse_and_the_campaign_ends_whatever_is_lost_or_killed(seed: int) -> None:
    rng, world = random.Random(seed), Secret(*TEN)
    for _ in range(150):
        device_id = rng.choice(TEN)
        match rng.randrange(8):
            case 0:
                world.leave(device_id)
            case 1:
                world.check_in(device_id)
            case 2:
                world.crash()
            case 3:
                world.carry_out(rng.randrange(4), lose=True)
            case 4:
                world.down = set(rng.sample([h.digest for h in HELPERS], rng.randrange(3)))
            case 5:
                world.pass_time(rng.choice([1.0, 15.0, 120.0]))
            case _:
                world.carry_out(rng.randrange(6))
                world.work(device_id)
        assert not run(world).paused, run(world).sums
        sets = [each.sets for each in world.ledgers.values()]
        for question in {digest for each in sets for digest in each}:
            assert len({each[question] for each in sets if question in each}) == 1
    world.down.clear()
    for device_id in TEN:
        world.check_in(device_id)
    for _ in range(30):
        world.pass_time(400)
        world.do_all()
    assert run(world).phase == "finished", (run(world).phase, world.lack, asked(world))
    world.check_settled()


def test_no_event_of_a_large_cohort_looks_at_all_its_devices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count, looks = 200, 0
    contains = DevicePool.__contains__

    def counted(pool: DevicePool, device_id: str) -> bool:
        nonlocal looks
        looks += 1
        return contains(pool, device_id)

    names = sorted(f"d{number:03}" for number in range(count))
    fleet = Secret(names[0], min_devices=count).fleet
    fleet.campaigns["run"] = replace(fleet.campaigns["run"], cells=(tuple(names),))
    events: list[e.Event] = [
        e.CheckedIn(at_s=2.0, device_id=name, facts=CheckIn(name, 10, 5)) for name in names[1:]
    ]
    monkeypatch.setattr(DevicePool, "__contains__", counted)
    plans = 0
    for event in [*events, *(e.Tick(at_s=3.0, keys=("",)) for _ in range(count))]:
        fleet, commands = step(fleet, event)
        plans += sum(isinstance(command, e.SendPlan) for command in commands)
    assert plans == count
    assert looks < 20 * count
