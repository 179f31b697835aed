"""A secret sum from the devices' numbers to the sum, with attackers at each party."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from aggregator.core.sums import SumMismatch, opened, total_of
from edge_client.core.sums import Declined, SecretPolicy, answer
from helper.core.ledger import Ledger, SetRefused
from helper.core.sums import Request, agree, open_masks
from wire.arrays.tensors import Tensors
from wire.errors import Untrusted
from wire.identity.certificates import key_digest, new_tls_key
from wire.secret.messages import Agreement, MaskSums, Part, Question, Share, sign

SIZES = {"change/a": 50, "change/b": 7}
DRAWS = np.random.default_rng(1)
DEVICES = [f"d{number}" for number in range(7)]
KEYS = {device: new_tls_key() for device in DEVICES}
ROSTER = {device: key.public_key() for device, key in KEYS.items()}
HELPER_KEYS = [new_tls_key() for _ in range(4)]


@dataclass
class Exchange:
    """Devices, helpers and an aggregator, all honest."""

    num_helpers: int = 3
    bits: int = 16
    min_sum: int = 5
    ledgers: list[Ledger] = field(default_factory=lambda: [Ledger()] * 4)
    uploads: dict[str, tuple[Share, bytes, Tensors]] = field(default_factory=dict)
    numbers: dict[str, Tensors] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.keys = HELPER_KEYS[: self.num_helpers]
        self.helpers = {key_digest(k.public_key()): k.public_key() for k in self.keys}
        parts = {name: Part(size, 0.25) for name, size in SIZES.items()}
        self.question = self.ask(parts)

    def ask(self, parts: dict[str, Part], about: str = "a" * 64) -> Question:
        names = tuple(key_digest(key.public_key()) for key in self.keys)
        return Question(about, parts, self.bits, 10, self.min_sum, names, 0.0)  # type: ignore[arg-type]

    def upload(self, device: str) -> None:
        numbers = {
            name: DRAWS.uniform(-0.3, 0.3, size).astype(np.float32) for name, size in SIZES.items()
        }
        policy = SecretPolicy([*self.helpers.values()], self.min_sum)
        share, values = answer(self.question, numbers, device, policy, DRAWS.bytes)
        self.uploads[device] = share, sign(KEYS[device], share), values
        self.numbers[device] = numbers

    def request(self, devices: Sequence[str]) -> Request:
        return Request(self.question, [self.uploads[device][:2] for device in devices])

    def agree(self, helper: int, devices: Sequence[str]) -> tuple[Agreement, bytes]:
        own = key_digest(self.keys[helper].public_key())
        agreement, self.ledgers[helper] = agree(
            self.request(devices), self.ledgers[helper], own, ROSTER, self.min_sum
        )
        return agreement, sign(self.keys[helper], agreement)

    def masks(
        self, helper: int, devices: Sequence[str], agreements: Sequence[tuple[Agreement, bytes]]
    ) -> tuple[MaskSums, Tensors]:
        return open_masks(
            self.request(devices), self.ledgers[helper], self.keys[helper], self.helpers, agreements
        )

    def opened(self, devices: Sequence[str], answering: Sequence[int]) -> Tensors:
        agreements = [self.agree(helper, devices) for helper in range(self.num_helpers)]
        answers = [self.masks(helper, devices, agreements) for helper in answering]
        total = total_of(self.question, [self.uploads[device][2] for device in devices])
        return opened(self.question, total, answers)


@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize(
    ("num_helpers", "answering"),
    [(1, [0]), (2, [0, 1]), (3, [0, 1]), (3, [1, 2]), (3, [0, 2]), (4, [0, 3]), (4, [1, 2])],
)
@pytest.mark.parametrize("absent", [0, 2])
def test_the_sum_is_that_of_the_integers_to_the_bit(
    bits: int, num_helpers: int, answering: list[int], absent: int
) -> None:
    exchange = Exchange(num_helpers, bits)
    for device in DEVICES:
        exchange.upload(device)
    present = DEVICES[absent:]
    sums = exchange.opened(present, answering)
    scale = exchange.question.fixed.scale(0.25)
    for part, total in sums.items():
        exact = total * scale
        assert (np.abs(exact - np.rint(exact)) < 1e-6).all()
        numbers = np.array([exchange.numbers[d][part] for d in present], np.float64)
        assert (
            np.abs(total - np.clip(numbers, -0.25, 0.25).sum(axis=0)).max()
            <= (len(present) + 1) / scale
        )


class TestHelper:
    @pytest.fixture
    def exchange(self) -> Exchange:
        exchange = Exchange()
        for device in DEVICES:
            exchange.upload(device)
        return exchange

    def test_a_second_set_of_a_question_is_refused(self, exchange: Exchange) -> None:
        exchange.agree(0, DEVICES)
        with pytest.raises(SetRefused, match="opened-before"):
            exchange.agree(0, DEVICES[1:])
        assert exchange.agree(0, DEVICES)[0].set == exchange.request(DEVICES).set

    def test_masks_are_not_opened_without_all_of_three(self, exchange: Exchange) -> None:
        agreements = [exchange.agree(helper, DEVICES) for helper in (0, 1)]
        with pytest.raises(SetRefused, match="no-quorum: 2 helpers agree, at least 3"):
            exchange.masks(0, DEVICES, agreements)

    def test_a_helper_that_has_agreed_to_two_sets_opens_neither(self, exchange: Exchange) -> None:
        here = [exchange.agree(helper, DEVICES) for helper in (0, 1)]
        other = Exchange(ledgers=[Ledger()] * 4)
        other.question, other.uploads = exchange.question, exchange.uploads
        there = other.agree(2, DEVICES[1:])
        with pytest.raises(SetRefused, match="split-view"):
            exchange.masks(0, DEVICES, [*here, there])

    @pytest.mark.parametrize("forged", ["upload", "values", "device_id"])
    def test_a_share_that_its_device_did_not_sign_is_refused(
        self, exchange: Exchange, forged: str
    ) -> None:
        share, signature, values = exchange.uploads["d1"]
        other = {"upload": bytes(16), "values": "f" * 64, "device_id": "d2"}[forged]
        fields = {name: getattr(share, name) for name in share.__struct_fields__}
        exchange.uploads["d1"] = Share(**{**fields, forged: other}), signature, values
        with pytest.raises(Untrusted, match="share: its signature"):
            exchange.agree(0, [d for d in DEVICES if forged != "device_id" or d != "d2"])

    def test_a_made_up_device_is_refused(self, exchange: Exchange) -> None:
        share, _, values = exchange.uploads["d1"]
        fields = {name: getattr(share, name) for name in share.__struct_fields__}
        invented = Share(**{**fields, "device_id": "x1"})
        exchange.uploads["x1"] = invented, sign(new_tls_key(), invented), values
        with pytest.raises(SetRefused, match="unknown-device: x1"):
            exchange.agree(0, [*DEVICES, "x1"])

    def test_an_agreement_that_its_helper_did_not_sign_is_refused(self, exchange: Exchange) -> None:
        agreements = [exchange.agree(helper, DEVICES) for helper in range(3)]
        forged = agreements[2][0], sign(new_tls_key(), agreements[2][0])
        with pytest.raises(Untrusted, match="agreement: its signature"):
            exchange.masks(0, DEVICES, [*agreements[:2], forged])


class TestAggregator:
    def test_a_wrong_sum_of_masks_is_noticed(self) -> None:
        exchange = Exchange()
        for device in DEVICES:
            exchange.upload(device)
        agreements = [exchange.agree(helper, DEVICES) for helper in range(3)]
        (said, sums), right = (exchange.masks(h, DEVICES, agreements) for h in (0, 1))
        sums["2/change/b"][3] += 1
        total = total_of(exchange.question, [u[2] for u in exchange.uploads.values()])
        with pytest.raises(SumMismatch, match="helpers differ about the masks of seed 2"):
            opened(exchange.question, total, [(said, sums), right])

    def test_one_helper_of_three_cannot_open(self) -> None:
        exchange = Exchange()
        for device in DEVICES:
            exchange.upload(device)
        with pytest.raises(SumMismatch, match="no helper sent the masks of seed 0"):
            exchange.opened(DEVICES, [0])


class TestDevice:
    @pytest.mark.parametrize("min_sum", [2, 4])
    def test_a_smaller_sum_than_the_owner_permits_is_declined(self, min_sum: int) -> None:
        question = Exchange(min_sum=min_sum).question
        policy = SecretPolicy([key.public_key() for key in HELPER_KEYS[:3]], 5)
        with pytest.raises(Declined, match=f"min_sum must be at least 5, .* got {min_sum}"):
            answer(question, {}, "d1", policy, DRAWS.bytes)

    @pytest.mark.parametrize("pinned", [[0, 1], [0, 1, 2, 3], [0, 1, 3]])
    def test_other_helpers_than_those_pinned_are_declined(self, pinned: list[int]) -> None:
        policy = SecretPolicy([HELPER_KEYS[number].public_key() for number in pinned])
        with pytest.raises(Declined, match=f"helpers must be the {len(pinned)} that the owner"):
            answer(Exchange().question, {}, "d1", policy, DRAWS.bytes)
