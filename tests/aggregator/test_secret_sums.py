"""A question of the aggregator: its stage follows from facts, and a killed service goes on."""

import random
import re
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from aggregator.core.sums import (
    SecretSum,
    cohorts_of,
    obstacle,
    on_answer,
    opened,
    requests_of,
    total_of,
)
from aggregator.fleet.plan import make_plan
from aggregator.service.start import MOST_CHANNELS, check_surveyed
from algorithms.algorithm import SURVEY
from algorithms.composition import read_algorithm
from helper.core.ledger import Ledger, SetRefused
from helper.core.sums import (
    agreement,
    all_agree,
    check_set,
    share_check,
    sum_masks,
    unusable_in,
)
from tests.helper.exchange import AGGREGATOR_KEY, DEVICES, KEYS, Exchange
from tests.support.settings import SETTINGS
from wire.arrays.tensors import Tensors
from wire.codec import digest, encode
from wire.errors import ConfigError
from wire.identity.certificates import key_digest, write_public_key
from wire.messages import PLAN_BYTES, Mask
from wire.secret.messages import (
    Agreement,
    Answer,
    MaskSums,
    ShareCheck,
    Shares,
    SumRefusal,
    SumRequest,
    set_digest,
    sign,
)
from wire.secret.question import Part, SumQuestion
from wire.secret.survey import Axis, Plane, SurveyScale, SurveySum

NAMES = [f"d{number}" for number in range(8)]
SEAL_TO = write_public_key(AGGREGATOR_KEY.public_key())


@dataclass
class World:
    """Real devices and helpers, a service whose memory may be lost, and a network that forgets."""

    num_helpers: int = 3
    question: SumQuestion | None = None
    devices: list[str] = field(default_factory=lambda: DEVICES)
    exchange: Exchange = field(init=False)
    blobs: dict[str, tuple[MaskSums, Tensors]] = field(default_factory=dict)
    sets: list[set[str]] = field(default_factory=lambda: [set() for _ in range(4)])
    """Sets to which each helper has agreed."""

    def __post_init__(self) -> None:
        self.exchange = Exchange(self.num_helpers)
        self.exchange.question = self.question or self.exchange.question
        self.keys = {
            key_digest(key.public_key()): write_public_key(key.public_key())
            for key in self.exchange.keys
        }

    def close(self) -> None:
        """Let the devices answer, as far as they have not, and close their set."""
        for device in self.devices:
            if device not in self.exchange.uploads:
                self.exchange.upload(device)
        members = set_digest(share for share, _ in self.shares)
        self.sum = SecretSum(self.exchange.question, members, tuple(self.devices))

    @property
    def shares(self) -> Shares:
        return self.exchange.shares(self.devices)

    def requests(self) -> dict[str, SumRequest]:
        return requests_of(self.sum, self.keys, SEAL_TO)

    def serve(self, helper: str, request: SumRequest) -> tuple[Answer, str, str]:
        """The answer of a helper to a request, with its signature and the blob of its sums."""
        exchange, number = self.exchange, self.sum.question.helpers.index(helper)
        rules, shares = exchange.rules(number), self.shares
        answer: Answer
        blob = ""
        try:
            unusable = unusable_in(request, shares, rules) if request.check else ()
            if unusable:
                answer = share_check(request, rules, unusable)
                return answer, sign(exchange.keys[number], answer), ""
            members = check_set(request, shares, exchange.ledgers[number], rules)
            if request.check:
                answer = share_check(request, rules)
                return answer, sign(exchange.keys[number], answer), ""
            may_open = all_agree(request, rules)
            if members is not None:
                ledger = exchange.ledgers[number]
                question = request.question.digest
                exchange.ledgers[number] = ledger.after(question, request.set, members)
            self.sets[number].add(request.set)
            if may_open:
                answer, tensors = sum_masks(request, shares, rules)
                blob = digest(f"masks of {helper}".encode())
                self.blobs[blob] = answer, tensors
            else:
                answer = agreement(request, rules)
        except SetRefused as error:
            answer = SumRefusal(helper, request.question.digest, str(error))
        return answer, sign(exchange.keys[number], answer), blob

    def restart(self, saved: bytes) -> None:
        """Go on from what was saved, as a service does that was killed."""
        self.sum = msgspec.json.decode(saved, type=SecretSum)

    def open(self) -> None:
        while requests := self.requests():
            for helper, request in requests.items():
                self.sum = on_answer(self.sum, *self.serve(helper, request))

    def result(self) -> Tensors:
        total = total_of(self.sum.question, [self.exchange.uploads[d][2] for d in self.devices])
        return opened(self.sum.question, total, [self.blobs[b] for b in self.sum.masks.values()])

    def expected(self) -> Tensors:
        question = self.sum.question
        sums = {}
        for part in question.parts:
            each = [self.exchange.integers[device][part] for device in self.devices]
            integers = np.array(each).sum(axis=0, dtype=question.fixed.dtype)
            sums[part] = question.fixed.decode(integers, question.parts[part].clip)
        return sums


@pytest.mark.parametrize("num_helpers", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(6))
def test_one_set_is_opened_whatever_is_lost_or_killed(num_helpers: int, seed: int) -> None:
    """Answers are lost, come twice and late, and the service is killed after
    any step; it has saved its state before it sent anything."""
    rng, world = random.Random(seed), World(num_helpers)
    world.devices = rng.sample(DEVICES, 6)
    world.close()
    late: list[tuple[Answer, str, str]] = []
    for _ in range(100):
        saved = msgspec.json.encode(world.sum)  # then it is sent
        for helper, request in world.requests().items():
            if rng.random() < 0.6:
                continue
            late.append(world.serve(helper, request))
        for answer in rng.sample(late, len(late) // 2):
            world.sum = on_answer(world.sum, *answer)
        if rng.random() < 0.5:
            world.restart(saved)
    assert world.sum.stage == "opened", world.sum.failure
    for part, total in world.expected().items():
        np.testing.assert_array_equal(world.result()[part], total)
    assert {name for sets in world.sets for name in sets} == {world.sum.set}
    assert world.requests() == {}


class TestStages:
    @pytest.mark.parametrize("num_helpers", [1, 2, 3, 4])
    def test_helpers_that_answer_one_after_the_other_open_the_set(self, num_helpers: int) -> None:
        world = World(num_helpers)
        world.close()
        for _ in range(3 * num_helpers):
            if requests := world.requests():
                helper = next(iter(requests))
                world.sum = on_answer(world.sum, *world.serve(helper, requests[helper]))
        assert world.sum.stage == "opened"

    def test_helpers_are_asked_again_at_once_when_the_last_one_has_checked_or_agreed(self) -> None:
        world = World()
        world.close()
        for is_done in (lambda: world.sum.checked, lambda: world.sum.agreed):
            for helper, request in world.requests().items():
                assert request.check is not world.sum.checked
                world.sum = msgspec.structs.replace(world.sum, asked_s=50.0)
                world.sum = on_answer(world.sum, *world.serve(helper, request))
                assert world.sum.asked_s == (0.0 if is_done() else 50.0)
            assert is_done()

    def test_no_helper_agrees_to_a_set_with_a_share_that_one_of_them_cannot_use(self) -> None:
        world = World()
        world.exchange.upload("d1")
        share, _, values = world.exchange.uploads["d1"]
        forged = msgspec.structs.replace(share, sealed=(b"none", *share.sealed[1:]))
        world.exchange.uploads["d1"] = forged, sign(KEYS["d1"], forged), values
        world.close()
        for helper, request in world.requests().items():
            world.sum = on_answer(world.sum, *world.serve(helper, request))
        assert world.sum.unusable == {"d1"}
        assert not world.sum.checked
        assert world.sum.has_no_agreement
        assert world.requests() == {}
        assert all(not ledger.sets for ledger in world.exchange.ledgers)

    @pytest.mark.parametrize(("num_helpers", "refusing"), [(1, 1), (2, 1), (3, 1), (4, 1)])
    def test_a_question_fails_at_the_first_refusal(self, num_helpers: int, refusing: int) -> None:
        world = World(num_helpers)
        world.close()
        for helper in world.sum.question.helpers[:refusing]:
            assert world.sum.stage == "opening"
            refusal = SumRefusal(helper, world.sum.question.digest, "unknown-device: d1")
            world.sum = on_answer(world.sum, refusal, "")
        assert (world.sum.stage, world.requests()) == ("failed", {})
        assert world.sum.failure.startswith("helper ")
        assert "unknown-device: d1" in world.sum.failure

    def test_answers_about_another_set_or_of_strangers_change_nothing(self) -> None:
        world, other = World(), World(devices=DEVICES[1:])
        world.close()
        other.close()
        kinds = set()
        while requests := other.requests():
            for helper, request in requests.items():
                answer = other.serve(helper, request)
                assert on_answer(world.sum, *answer) == world.sum
                other.sum = on_answer(other.sum, *answer)
                kinds.add(type(answer[0]))
        assert kinds == {ShareCheck, Agreement, MaskSums}
        refusal = SumRefusal("f" * 64, world.sum.question.digest, "too-few")
        assert on_answer(world.sum, refusal, "") == world.sum


class TestObstacle:
    @pytest.mark.parametrize(
        ("present", "reason"),
        [
            (DEVICES, ""),
            (DEVICES[:4], "1 more: 4 of 5 devices are there"),
            (DEVICES[1:], "1 that helpers open no sum without, .*: d0"),
            ([*DEVICES, "new"], "5 or more in place of the 1 that the sum would show apart: new"),
            ([f"n{number}" for number in range(5)], ""),
        ],
    )
    def test_it_names_the_devices(self, present: list[str], reason: str) -> None:
        assert re.fullmatch(reason, obstacle([present], [DEVICES], 5))

    @given(
        sets=st.lists(st.sets(st.sampled_from(NAMES)), max_size=4),
        present=st.sets(st.sampled_from(NAMES)),
    )
    def test_it_is_there_exactly_if_a_helper_would_refuse(
        self, sets: list[set[str]], present: set[str]
    ) -> None:
        ledger = Ledger()
        for number, members in enumerate(sets):
            with suppress(SetRefused):
                ledger.check(f"q{number}", "s", members, 3)
                ledger = ledger.after(f"q{number}", "s", members)
        try:
            ledger.check("q", "s", present, 3)
        except SetRefused:
            assert obstacle([present], ledger.parts, 3)
        else:
            assert obstacle([present], ledger.parts, 3) == ""


class TestCohort:
    """The devices of the next sum, from the parts of earlier ones and those that are ready."""

    @pytest.mark.parametrize(
        ("cells", "ready", "gone", "expected", "lack"),
        [
            ([], NAMES[:5], [], NAMES[:5], ""),
            ([], NAMES[:4], [], NAMES[:4], "1 more: 4 of 5 devices are there"),
            ([NAMES[:5]], NAMES, [], NAMES[:5], ""),
            ([NAMES[:3]], NAMES, [], NAMES, "5 or more in place of the 3 .*"),
            ([NAMES[:5]], NAMES[1:5], [], NAMES[:5], "devices that are in every .*: d0"),
            ([NAMES[:5]], NAMES[1:5], NAMES[:1], NAMES[1:5], "1 more: 4 of 5 .*"),
            (
                [NAMES[:6]],
                NAMES[1:6],
                NAMES[:1],
                NAMES[1:6],
                "1 that helpers open no sum without, .*: d0",
            ),
        ],
    )
    def test_it_is_the_same_in_every_round(
        self,
        cells: list[list[str]],
        ready: list[str],
        gone: list[str],
        expected: list[str],
        lack: str,
    ) -> None:
        cohorts, text = cohorts_of(cells, set(ready), lambda d: d in gone, 5, lambda _: "")
        assert re.fullmatch(lack, text)
        assert sorted(cohorts[""]) == sorted(expected)

    def test_new_devices_come_in_when_there_are_enough_of_them(self) -> None:
        old, new = [f"o{n}" for n in range(6)], [f"n{n}" for n in range(5)]
        for ready, expected in ((old + new[:4], old), (old + new, old + new)):
            cohorts, lack = cohorts_of([old], set(ready), lambda _: False, 5, lambda _: "")
            assert (sorted(cohorts[""]), lack) == (sorted(expected), "")

    def test_each_group_has_a_sum_and_too_few_newcomers_of_a_group_wait(self) -> None:
        left, right = [f"l{n}" for n in range(6)], [f"r{n}" for n in range(5)]
        new = [*(f"ln{n}" for n in range(5)), *(f"rn{n}" for n in range(4)), "u"]
        ready = {*left, *right, *new}
        cohorts, lack = cohorts_of(
            [left, right], ready, lambda _: False, 5, lambda d: None if d == "u" else d[0]
        )
        assert lack == ""
        assert sorted(cohorts["l"]) == sorted([*left, *new[:5]])
        assert sorted(cohorts["r"]) == right

    @given(
        sets=st.lists(st.sets(st.sampled_from(NAMES)), max_size=3),
        groups=st.dictionaries(st.sampled_from(NAMES), st.sampled_from("lr"), min_size=3),
        order=st.booleans(),
    )
    def test_helpers_open_the_sums_of_all_groups_in_any_order(
        self, sets: list[set[str]], groups: dict[str, str], order: bool
    ) -> None:
        ledger = Ledger()
        for number, members in enumerate(sets):
            with suppress(SetRefused):
                ledger.check(f"q{number}", "s", members, 3)
                ledger = ledger.after(f"q{number}", "s", members)
        cohorts, lack = cohorts_of(ledger.parts, {*NAMES}, lambda _: False, 3, groups.get)
        if not lack:
            for key in sorted(cohorts, reverse=order):
                ledger.check(key, "s", cohorts[key], 3)
                ledger = ledger.after(key, "s", cohorts[key])


class TestLimitsOfGroups:
    """A campaign that could not find its groups is refused before it starts."""

    def test_more_devices_than_a_survey_sums_are_refused(self) -> None:
        run = replace(SETTINGS, secret=True, min_devices=4_096)
        with pytest.raises(ConfigError, match=r"min_devices must be at most 4095, .*, got 4096"):
            check_surveyed(run, read_algorithm("distfl"))
        check_surveyed(run, read_algorithm("fedavg+uniform"))

    def test_a_model_with_too_many_channels_for_a_plan_is_refused(self) -> None:
        layout = (("response/survey.mean.a", "float32", (MOST_CHANNELS + 1,)),)
        run = replace(SETTINGS, secret=True, responses={"survey": layout})
        with pytest.raises(ConfigError, match=r"1401 BatchNorm channels, .* at most 1400"):
            check_surveyed(run, read_algorithm("distfl"))
        check_surveyed(run, read_algorithm("fedavg+uniform"))

    def test_the_largest_model_that_is_allowed_fits_into_a_plan(self) -> None:
        """Numbers are as long as six digits can be."""
        rng = np.random.default_rng(0)

        def numbers(count: int, size: float) -> tuple[float, ...]:
            return tuple(float(f"{x:.6g}") for x in size * (1 + rng.random(count)))

        scale = SurveyScale(
            tuple(-x for x in numbers(MOST_CHANNELS, 1e-5)),
            numbers(MOST_CHANNELS, 1e-3),
            numbers(32, 1e-5),
            (1.0, 1.0),
        )
        wide, narrow = numbers(64, -1e-3), (*numbers(32, -1e-3), *(0.0,) * 32)
        axes = [Axis(axis, 0.1, 0.1) for axis in [wide] * 4 + [narrow] * 8]
        planes = tuple(Plane("0" * depth, wide, 0.1) for depth in range(5))
        verb = SurveySum("density", "0" * 5, scale, planes, tuple(axes))
        parts = {"bins": Part(12 * 32, 524000.0)}
        question = SumQuestion("a" * 64, parts, 32, 4095, 5, ("b" * 64,) * 4, 1e9, group="0" * 5)
        plan = make_plan(SETTINGS, 1, "d" * 64, "c" * 64, (SURVEY, verb, Mask(question)))
        signatures = 1_000
        assert len(encode(plan)) + signatures <= PLAN_BYTES
