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

from aggregator.core.sums import (
    SecretSum,
    SecretUpload,
    obstacle,
    on_answer,
    on_time,
    on_upload,
    opened,
    requests_of,
    total_of,
)
from helper.core.ledger import Ledger, SetRefused
from helper.core.sums import agreement, check_set, has_quorum, sum_masks
from tests.helper.exchange import AGGREGATOR_KEY, DEVICES, Exchange
from wire.arrays.tensors import Tensors
from wire.codec import digest
from wire.identity.certificates import key_digest, write_public_key
from wire.secret.messages import (
    Agreement,
    Answer,
    MaskSums,
    SumRefusal,
    SumRequest,
    digest_of,
    sign,
)

CLOSES_AT_S = 100.0
NAMES = [f"d{number}" for number in range(8)]
SEAL_TO = write_public_key(AGGREGATOR_KEY.public_key())


@dataclass
class World:
    """Real devices and helpers, a service whose memory may be lost, and a network that forgets."""

    num_helpers: int = 3
    exchange: Exchange = field(init=False)
    blobs: dict[str, tuple[MaskSums, Tensors]] = field(default_factory=dict)
    sets: list[set[str]] = field(default_factory=lambda: [set() for _ in range(4)])
    """Sets to which each helper has agreed."""

    def __post_init__(self) -> None:
        self.exchange = Exchange(self.num_helpers)
        question = msgspec.structs.replace(self.exchange.question, closes_at_s=CLOSES_AT_S)
        self.exchange.question = question
        self.keys = {
            key_digest(key.public_key()): write_public_key(key.public_key())
            for key in self.exchange.keys
        }
        self.sum = SecretSum(question, tuple(DEVICES))

    def upload(self, device: str, now_s: float = 0.0) -> str:
        if device not in self.exchange.uploads:
            self.exchange.upload(device)
        share, signature, values = self.exchange.uploads[device]
        upload = SecretUpload(share, signature, digest_of(values))
        self.sum, reason = on_upload(self.sum, upload, now_s)
        return reason

    def requests(self) -> dict[str, SumRequest]:
        return requests_of(self.sum, self.keys, SEAL_TO)

    def serve(self, helper: str, request: SumRequest) -> tuple[Answer, str, str]:
        """The answer of a helper to a request, with its signature and the blob of its sums."""
        exchange, number = self.exchange, self.sum.question.helpers.index(helper)
        rules, shares = exchange.rules(number), self.sum.shares
        answer: Answer
        blob = ""
        try:
            members = check_set(request, shares, exchange.ledgers[number], rules)
            may_open = has_quorum(request, rules)
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
        total = total_of(
            self.sum.question, [self.exchange.uploads[d][2] for d in sorted(self.sum.uploads)]
        )
        return opened(self.sum.question, total, [self.blobs[b] for b in self.sum.masks.values()])

    def expected(self) -> Tensors:
        question = self.sum.question
        sums = {}
        for part in question.parts:
            each = [self.exchange.integers[device][part] for device in self.sum.uploads]
            integers = np.array(each).sum(axis=0, dtype=question.fixed.dtype)
            sums[part] = question.fixed.decode(integers, question.parts[part].clip)
        return sums


@pytest.mark.parametrize("num_helpers", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(6))
def test_one_set_is_opened_whatever_is_lost_or_killed(num_helpers: int, seed: int) -> None:
    """Answers are lost, come twice and late, helpers are away, and the service is killed after
    any step; it has saved its state before it sent anything."""
    rng, world = random.Random(seed), World(num_helpers)
    away = world.sum.question.helpers[3:]  # one of four may be away for ever
    devices = rng.sample(DEVICES, 6)
    late: list[tuple[Answer, str, str]] = []
    saved = msgspec.json.encode(world.sum)
    for now_s in range(0, 200):
        for device in rng.sample(devices, 2):
            world.upload(device, now_s)
        world.upload(DEVICES[0], 150.0)
        world.sum = on_time(world.sum, now_s)
        saved = msgspec.json.encode(world.sum)  # then it is sent
        for helper, request in world.requests().items():
            if helper in away or rng.random() < 0.6:
                continue
            late.append(world.serve(helper, request))
        for answer in rng.sample(late, len(late) // 2):
            world.sum = on_answer(world.sum, *answer)
        if rng.random() < 0.5:
            world.restart(saved)
    assert world.sum.stage == "opened", world.sum.failure
    assert set(world.sum.uploads) == set(devices)
    for part, total in world.expected().items():
        np.testing.assert_array_equal(world.result()[part], total)
    assert {name for sets in world.sets for name in sets} == {world.sum.set}
    assert world.requests() == {}


class TestStages:
    def test_a_question_is_closed_early_if_every_device_has_answered(self) -> None:
        world = World()
        for device in DEVICES[1:]:
            assert world.upload(device) == ""
        world.sum = on_time(world.sum, 1.0)
        assert (world.sum.stage, world.requests()) == ("collecting", {})
        assert world.upload(DEVICES[0]) == ""
        world.sum = on_time(world.sum, 1.0)
        assert {*world.requests()} == {*world.sum.question.helpers}
        world.open()
        assert world.sum.stage == "opened"

    @pytest.mark.parametrize("num_helpers", [1, 2, 3, 4])
    def test_helpers_that_answer_one_after_the_other_open_the_set(self, num_helpers: int) -> None:
        world = World(num_helpers)
        for device in DEVICES:
            world.upload(device)
        world.sum = on_time(world.sum, 0.0)
        for _ in range(2 * num_helpers):
            if requests := world.requests():
                helper = next(iter(requests))
                world.sum = on_answer(world.sum, *world.serve(helper, requests[helper]))
        assert world.sum.stage == "opened"

    def test_a_closed_set_takes_no_device_even_if_the_clock_goes_back(self) -> None:
        world = World()
        for device in DEVICES[1:]:
            world.upload(device)
        world.sum = on_time(world.sum, CLOSES_AT_S)
        assert world.upload(DEVICES[0], 50.0).startswith("closed: ")
        assert world.upload(DEVICES[1], 150.0) == "", "the same bytes again"
        assert on_time(world.sum, 50.0).stage == "opening"

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"question": "f" * 64}, "wrong-question"),
            ({"device_id": "stranger"}, "not-asked: device stranger is not in the cohort"),
            ({"upload": bytes(16)}, "answered-before"),
        ],
    )
    def test_an_upload_that_does_not_count_has_a_reason(
        self, changes: dict[str, object], reason: str
    ) -> None:
        world = World()
        world.upload("d1")
        upload = world.sum.uploads["d1"]
        share = msgspec.structs.replace(upload.share, **changes)
        forged = msgspec.structs.replace(upload, share=share)
        after, said = on_upload(world.sum, forged, 0.0)
        assert said.startswith(reason)
        assert after == world.sum

    def test_too_few_devices_fail_and_no_helper_is_asked(self) -> None:
        world = World()
        for device in DEVICES[:4]:
            world.upload(device)
        world.sum = on_time(world.sum, CLOSES_AT_S)
        assert (world.sum.stage, world.requests()) == ("failed", {})
        assert world.sum.failure == "too-few: 4 devices answered, at least 5 are needed"

    @pytest.mark.parametrize(("num_helpers", "refusing"), [(1, 1), (2, 1), (3, 1), (4, 2)])
    def test_a_question_fails_when_no_quorum_can_be_left(
        self, num_helpers: int, refusing: int
    ) -> None:
        world = World(num_helpers)
        for device in DEVICES:
            world.upload(device)
        world.sum = on_time(world.sum, 0.0)
        for helper in world.sum.question.helpers[:refusing]:
            assert world.sum.stage == "opening"
            refusal = SumRefusal(helper, world.sum.question.digest, "unknown-device: d1")
            world.sum = on_answer(world.sum, refusal, "")
        assert (world.sum.stage, world.requests()) == ("failed", {})
        assert world.sum.failure.startswith("helper ")
        assert "unknown-device: d1" in world.sum.failure

    def test_answers_about_another_set_or_of_strangers_change_nothing(self) -> None:
        world, other = World(), World()
        for device in DEVICES:
            world.upload(device)
        for device in DEVICES[1:]:
            other.upload(device)
        world.sum, other.sum = on_time(world.sum, 0.0), on_time(other.sum, CLOSES_AT_S)
        kinds = set()
        while requests := other.requests():
            for helper, request in requests.items():
                answer = other.serve(helper, request)
                assert on_answer(world.sum, *answer) == world.sum
                other.sum = on_answer(other.sum, *answer)
                kinds.add(type(answer[0]))
        assert kinds == {Agreement, MaskSums}
        refusal = SumRefusal("f" * 64, world.sum.question.digest, "too-few")
        assert on_answer(world.sum, refusal, "") == world.sum


class TestObstacle:
    @pytest.mark.parametrize(
        ("present", "reason"),
        [
            (DEVICES, ""),
            (DEVICES[:4], "4 devices are there, at least 5 are needed"),
            (DEVICES[1:], "1 devices are absent, and helpers open no sum without them, .*: d0"),
            ([*DEVICES, "new"], "the sum would show 1 devices apart from all others: new"),
            ([f"n{number}" for number in range(5)], ""),
        ],
    )
    def test_it_names_the_devices(self, present: list[str], reason: str) -> None:
        assert re.fullmatch(reason, obstacle(present, [DEVICES, DEVICES], 5))

    @given(
        sets=st.lists(st.sets(st.sampled_from(NAMES)), max_size=4),
        present=st.sets(st.sampled_from(NAMES)),
    )
    def test_it_is_there_exactly_if_a_helper_would_refuse(
        self, sets: list[set[str]], present: set[str]
    ) -> None:
        ledger, earlier = Ledger(), []
        for number, members in enumerate(sets):
            with suppress(SetRefused):
                ledger.check(f"q{number}", "s", members, 3)
                ledger = ledger.after(f"q{number}", "s", members)
                earlier.append(members)
        try:
            ledger.check("q", "s", present, 3)
        except SetRefused:
            assert obstacle(present, earlier, 3)
        else:
            assert obstacle(present, earlier, 3) == ""
