"""Rounds in secret mode: the same devices in each, one set a question, helpers asked until its sum
is open."""

import random
from typing import Any

import pytest
from msgspec.structs import replace

from aggregator.core.pool import DevicePool
from aggregator.core.sums import requests_of
from aggregator.fleet import events as e
from aggregator.fleet.reconcile import Turn
from aggregator.fleet.records import Fleet
from aggregator.fleet.rounds import lacking
from aggregator.fleet.step import step
from algorithms.core.keys import NEWCOMER
from helper.core.ledger import Ledger, SetRefused
from tests.fleet.cases import all_work, asked, direct, run
from tests.fleet.world import Client, World, asks_for_sum, digest_of
from tests.support.known import known
from wire.identity.certificates import new_tls_key, write_public_key
from wire.messages import CheckIn, Mask
from wire.secret.messages import Agreement, Answer, MaskSums, SumRefusal
from wire.secret.named_keys import NamedKey
from wire.secret.question import Part, SumQuestion

HELPERS = tuple(
    NamedKey(name, write_public_key(new_tls_key().public_key())) for name in ("n", "s", "e")
)
PARTS = {key: {"shared/w": Part(3, 0.25)} for key in (NEWCOMER, "0")}
TEN = tuple(f"d{number}" for number in range(10))


class Secret(World):
    """A service in secret mode, with helpers that keep real ledgers."""

    def __init__(self, *device_ids: str, **settings: Any) -> None:
        super().__init__()
        self.ledgers = {helper.digest: Ledger() for helper in HELPERS}
        self.down: set[str] = set()
        """Helpers that do not answer."""
        self.refusal = ""
        """Problem for which every helper refuses any set."""
        self.asked: list[SumQuestion] = []
        """Questions of the plans, in order."""
        for device_id in device_ids:
            self.clients[device_id] = Client()
            self.check_in(device_id)
        usual: dict[str, Any] = {"rounds": 3, "min_devices": 2, "deadline_s": 100.0}
        settings = usual | {"secret": True, "min_sum": 5, "helpers": HELPERS} | settings
        self.start("run", parts=PARTS, **settings)

    def aggregate(self, command: e.Aggregate, *_: Any, **__: Any) -> None:
        campaign = self.fleet.campaigns[command.campaign]
        secret = known(campaign.sum)
        assert secret.stage == "opened"
        assert set(secret.devices) == set(campaign.updates)
        models = {"initial": digest_of("first"), "0": digest_of(f"model{command.round}")}
        version = replace(campaign.version, round=command.round, models=models, newcomers="0")
        groups = {d: "0" for d in secret.devices if self.group(campaign, d) != "0"}
        self.feed(
            e.Aggregated(
                at_s=self.now_s,
                campaign=command.campaign,
                round=command.round,
                version=version,
                groups=groups,
            )
        )

    def feed(self, event: e.Event) -> list[e.Command]:
        commands = super().feed(event)
        for command in commands:
            if isinstance(command, e.SendPlan) and asks_for_sum(command.assignment):
                mask = command.assignment.verbs[-1]
                assert isinstance(mask, Mask)
                if mask.question not in self.asked:
                    self.asked.append(mask.question)
        return commands

    def carry_out(self, count: int = 10**6, lose: bool = False) -> None:
        while self.outbox and count > 0:
            count -= 1
            if isinstance(self.outbox[0], e.AskHelpers):
                self.outbox.pop(0)
                if not lose:
                    self.answer()
            else:
                super().carry_out(1, lose)

    def check_received(self, before: Fleet, event: e.Event) -> None:
        """Answers to a question that was never opened are lost, in each further attempt."""
        campaign = self.fleet.campaigns.get("run")
        if campaign is None or campaign.attempt == 0:
            super().check_received(before, event)

    def answer(self) -> None:
        """Let the helpers answer the requests that the service would send now."""
        secret = run(self).sum
        if secret is None:
            return
        keys = {helper.digest: helper.der for helper in HELPERS}
        for helper, request in requests_of(secret, keys, b"").items():
            if helper in self.down:
                continue
            answer: Answer
            ledger, question = self.ledgers[helper], request.question
            try:
                if self.refusal:
                    raise SetRefused(self.refusal)
                known_set = ledger.check(
                    question.digest, request.set, set(secret.devices), question.min_sum
                )
                if not known_set:
                    self.ledgers[helper] = ledger.after(
                        question.digest, request.set, secret.devices
                    )
                if request.agreements:
                    answer = MaskSums(helper, request.set, {})
                else:
                    answer = Agreement(helper, question.digest, request.set)
            except SetRefused as error:
                answer = SumRefusal(helper, question.digest, str(error))
            blob = digest_of(f"masks{helper[:4]}") if isinstance(answer, MaskSums) else ""
            self.feed(
                e.SumAnswered(
                    at_s=self.now_s, campaign="run", answer=answer, signature="", blob=blob
                )
            )

    def do_all(self, *device_ids: str) -> None:
        """Let these devices, or all, do their work until nobody has any."""
        for _ in range(20):
            all_work(self, *device_ids)

    @property
    def lack(self) -> str:
        return lacking(Turn(self.fleet), run(self)).text


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
        assert run(world).phase == "finished", (world.lack, run(world).cells, run(world).sum)
        assert "d7" not in run(world).cells[0]

    def test_a_sum_that_cannot_be_used_pauses_the_campaign(self) -> None:
        world = Secret(*TEN, rounds=1)
        world.down = {HELPERS[0].digest}
        world.do_all()
        problem = "sum-mismatch: helpers differ"
        world.feed(e.SumFailed(at_s=world.now_s, campaign="run", round=1, problem=problem))
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
        world.down = {HELPERS[0].digest}
        world.do_all()
        world.leave("d4", withdrawn=True)
        assert (run(world).phase, run(world).attempt) == ("waiting", 1)
        world.down.clear()
        world.do_all()
        assert "1 that helpers open no sum without" in world.lack, (
            "two helpers have agreed to the set"
        )


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
        assert not run(world).paused, run(world).sum
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
