"""A secret sum from the devices' numbers to the sum, with attackers at each party."""

from typing import Literal

import msgspec
import numpy as np
import pytest

from aggregator.core.sums import SumMismatch, opened
from edge_client.core.sums import Declined, SecretPolicy, answer
from helper.core.ledger import Ledger, SetRefused
from helper.core.sums import all_agree, check_set, unusable_in
from tests.helper.exchange import DEVICES, DRAWS, HELPER_KEYS, KEYS, Exchange
from wire.errors import Untrusted
from wire.identity.certificates import new_tls_key
from wire.secret.messages import purpose_of, sign
from wire.secret.sealing import seal


@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize(
    ("num_helpers", "answering"),
    [(1, [0]), (2, [0, 1]), (3, [0, 1]), (3, [1, 2]), (3, [0, 2]), (4, [0, 3]), (4, [1, 2])],
)
@pytest.mark.parametrize("absent", [0, 2])
def test_the_sum_is_that_of_the_integers_to_the_bit(
    bits: Literal[16, 32], num_helpers: int, answering: list[int], absent: int
) -> None:
    exchange = Exchange(num_helpers, bits)
    for device in DEVICES:
        exchange.upload(device)
    present = DEVICES[absent:]
    sums = exchange.opened(present, answering)
    fixed = exchange.question.fixed
    for part, total in sums.items():
        each = np.array([exchange.integers[device][part] for device in present])
        integers = each.sum(axis=0, dtype=fixed.dtype)
        np.testing.assert_array_equal(total, fixed.decode(integers, 0.25))
        numbers = np.array([exchange.numbers[device][part] for device in present], np.float64)
        exact = np.clip(numbers, -0.25, 0.25).sum(axis=0)
        assert np.abs(total - exact).max() <= (len(present) + 1) / fixed.scale(0.25)


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
        assert exchange.agree(0, DEVICES)[0][0].set == exchange.request(DEVICES).set

    @pytest.mark.parametrize(("num_helpers", "needed"), [(1, 1), (2, 2), (3, 3), (4, 4)])
    def test_masks_are_not_opened_before_all_helpers_agree(
        self, num_helpers: int, needed: int
    ) -> None:
        exchange = Exchange(num_helpers)
        for device in DEVICES:
            exchange.upload(device)
        for others in range(num_helpers):
            agreements = sum((exchange.agree(h + 1, DEVICES) for h in range(others)), ())
            request = exchange.request(DEVICES, agreements)
            assert all_agree(request, exchange.rules(0)) is (others + 1 >= needed)

    def test_a_helper_that_has_agreed_to_another_set_stops_the_sum(
        self, exchange: Exchange
    ) -> None:
        here = exchange.agree(0, DEVICES) + exchange.agree(1, DEVICES)
        exchange.ledgers[2] = Ledger()
        there = exchange.agree(2, DEVICES[1:])
        with pytest.raises(SetRefused, match="split-view"):
            exchange.masks(0, DEVICES, here + there)

    def test_seeds_that_the_device_did_not_seal_are_refused_after_the_agreement(
        self, exchange: Exchange
    ) -> None:
        """Whoever knows the seeds of all devices but one would learn the seeds of that one."""
        exchange.agree(0, DEVICES)
        for device in DEVICES[1:]:
            share, signature, values = exchange.uploads[device]
            purpose = purpose_of(share.question, device, share.upload)
            sealed = seal(bytes(64), HELPER_KEYS[0].public_key(), purpose)
            forged = msgspec.structs.replace(share, sealed=(sealed, *share.sealed[1:]))
            exchange.uploads[device] = forged, signature, values
        with pytest.raises(SetRefused, match="untrusted: device d1: share: its signature"):
            exchange.masks(0, DEVICES, ())
        for device in DEVICES[1:]:  # devices that side with the aggregator sign what it likes
            share, _, values = exchange.uploads[device]
            exchange.uploads[device] = share, sign(KEYS[device], share), values
        with pytest.raises(SetRefused, match="opened-before"):
            exchange.masks(0, DEVICES, ())

    @pytest.mark.parametrize("forged", ["upload", "values", "device_id"])
    def test_a_share_that_its_device_did_not_sign_is_refused(
        self, exchange: Exchange, forged: str
    ) -> None:
        share, signature, values = exchange.uploads["d1"]
        other = {"upload": bytes(16), "values": "f" * 64, "device_id": "d2"}[forged]
        exchange.uploads["d1"] = (
            msgspec.structs.replace(share, **{forged: other}),
            signature,
            values,
        )
        with pytest.raises(SetRefused, match=r"untrusted: device d[12]: share: its signature"):
            exchange.agree(0, [d for d in DEVICES if forged != "device_id" or d != "d2"])

    @pytest.mark.parametrize(
        ("texts", "reason"),
        [
            ([], "0 sealed texts, expected 3"),
            ([b"none"] * 3, "sealed text: not sealed to this key for this purpose"),
            ([bytes(63)], "sealed text of 63 bytes, expected 2 seeds"),
        ],
    )
    def test_a_device_without_seeds_is_named_before_the_question_is_used_up(
        self, exchange: Exchange, texts: list[bytes], reason: str
    ) -> None:
        share, _, values = exchange.uploads["d1"]
        if len(texts) == 1:
            purpose = purpose_of(share.question, "d1", share.upload)
            texts = [seal(texts[0], key.public_key(), purpose) for key in exchange.keys]
        forged = msgspec.structs.replace(share, sealed=tuple(texts))
        exchange.uploads["d1"] = forged, sign(KEYS["d1"], forged), values
        with pytest.raises(SetRefused, match=f"untrusted: device d1: {reason}"):
            exchange.agree(0, DEVICES)
        assert exchange.agree(0, ["d0", *DEVICES[2:]])

    def test_a_check_names_every_share_that_cannot_be_used_and_agrees_to_nothing(
        self, exchange: Exchange
    ) -> None:
        share, signature, values = exchange.uploads["d1"]
        forged = msgspec.structs.replace(share, sealed=(b"none", *share.sealed[1:]))
        exchange.uploads["d1"] = forged, sign(KEYS["d1"], forged), values
        exchange.uploads["x1"] = (
            msgspec.structs.replace(share, device_id="x1"),
            signature,
            values,
        )
        devices = [*DEVICES, "x1"]
        request, shares = exchange.request(devices), exchange.shares(devices)
        assert unusable_in(request, shares, exchange.rules(0)) == ("d1", "x1")
        assert unusable_in(request, shares, exchange.rules(1)) == ("x1",), "it can unseal d1's"

    def test_a_made_up_device_is_refused(self, exchange: Exchange) -> None:
        share, _, values = exchange.uploads["d1"]
        invented = msgspec.structs.replace(share, device_id="x1")
        exchange.uploads["x1"] = invented, sign(new_tls_key(), invented), values
        with pytest.raises(SetRefused, match="unknown-device: x1"):
            exchange.agree(0, [*DEVICES, "x1"])

    def test_an_agreement_that_its_helper_did_not_sign_is_refused(self, exchange: Exchange) -> None:
        agreements = sum((exchange.agree(helper, DEVICES) for helper in range(3)), ())
        forged = ((agreements[2][0], sign(new_tls_key(), agreements[2][0])),)
        with pytest.raises(Untrusted, match="agreement: its signature"):
            exchange.masks(0, DEVICES, agreements[:2] + forged)

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"helpers": ("f" * 64,)}, "unknown-helper"),
            ({"parts": {"a": {"count": 2**26, "clip": 1.0}}}, "too-large: 134217728 bytes"),
            ({"most": 3}, "wrong-question"),
        ],
    )
    def test_another_question_than_the_devices_answered_is_refused(
        self, exchange: Exchange, changes: dict[str, object], reason: str
    ) -> None:
        fields = msgspec.to_builtins(exchange.question) | changes
        exchange.question = msgspec.convert(fields, type(exchange.question))
        request = exchange.request(DEVICES) if reason != "unknown-helper" else None
        request = request or msgspec.structs.replace(
            Exchange().request([]), question=exchange.question
        )
        with pytest.raises(SetRefused, match=reason):
            check_set(request, exchange.shares(DEVICES), Ledger(), exchange.rules(0))

    def test_more_devices_than_can_be_summed_are_refused(self, exchange: Exchange) -> None:
        few = Exchange()
        few.question = msgspec.structs.replace(few.question, most=6)
        for device in DEVICES:
            few.upload(device)
        with pytest.raises(SetRefused, match="too-many: 7 devices, at most 6"):
            few.agree(0, DEVICES)

    def test_shares_of_another_set_are_refused(self, exchange: Exchange) -> None:
        request = exchange.request(DEVICES)
        with pytest.raises(SetRefused, match="wrong-set"):
            check_set(request, exchange.shares(DEVICES[1:]), Ledger(), exchange.rules(0))


class TestAggregator:
    def test_a_wrong_sum_of_masks_is_noticed(self) -> None:
        exchange = Exchange()
        for device in DEVICES:
            exchange.upload(device)
        agreements = sum((exchange.agree(helper, DEVICES) for helper in range(3)), ())
        (said, sums), right = (exchange.masks(h, DEVICES, agreements) for h in (0, 1))
        sums["2/change/b"][3] += 1
        with pytest.raises(SumMismatch, match="helpers differ about the masks of seed 2"):
            opened(exchange.question, exchange.total(DEVICES), [(said, sums), right])

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
