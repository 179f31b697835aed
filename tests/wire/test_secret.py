"""Sums over masked integers are exact, and a sealed text opens for one key and one purpose."""

import io
import json
from typing import Any, Literal

import msgspec
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from edge_client.core.sums import integers_of
from tests.wire import secret_vectors
from wire.codec import decode, encode
from wire.errors import Malformed, Untrusted
from wire.identity.certificates import has_signed, key_digest
from wire.secret.fixed import FixedPoint
from wire.secret.masks import SEED_BYTES, mask, masked
from wire.secret.messages import purpose_of, seeds_of
from wire.secret.question import BITS, LEAST_BOUND, UPLOAD_BYTES, Share, SumQuestion
from wire.secret.sealing import seal, unseal

DRAWS = np.random.default_rng(0)
VECTORS = json.loads(secret_vectors.FILE.read_text())
ANSWERS = [case for case in VECTORS["answers"] if not case["problem"]]


class TestFixedPoint:
    @given(
        bits=st.sampled_from(BITS),
        numbers=st.lists(st.floats(width=32), min_size=1, max_size=40),
        clip=st.floats(1e-4, 1e4),
    )
    def test_a_sum_of_the_most_devices_does_not_wrap(
        self, bits: int, numbers: list[float], clip: float
    ) -> None:
        fixed = FixedPoint(bits, most=len(numbers))
        uniform = DRAWS.random(len(numbers))
        integers = fixed.encode(np.array(numbers, np.float32), clip, uniform)
        total = integers.sum(keepdims=True, dtype=fixed.dtype)
        exact = sum(int(v) for v in integers.view(f"<i{bits // 8}"))
        assert total.view(f"<i{bits // 8}")[0] == exact
        assert fixed.decode(total, clip)[0] == pytest.approx(exact / fixed.scale(clip))

    def test_numbers_are_right_in_the_mean(self) -> None:
        fixed, numbers = FixedPoint(16, 1000), np.full(200_000, 0.1, np.float32)
        integers = fixed.encode(numbers, 0.25, DRAWS.random(len(numbers)))
        assert fixed.decode(integers, 0.25).mean() == pytest.approx(0.1, abs=5e-4)

    def test_what_is_not_finite_is_nothing_and_what_is_too_large_is_cut(self) -> None:
        fixed = FixedPoint(32, 10)
        numbers = np.array([np.nan, np.inf, -np.inf, 9.0, -9.0, 0.0], np.float32)
        decoded = fixed.decode(fixed.encode(numbers, 1.0, np.zeros(6)), 1.0)
        assert decoded == pytest.approx([0, 0, 0, 1, -1, 0], abs=1e-6)

    @pytest.mark.parametrize(("bits", "most"), [(16, 4095), (32, 268_435_455)])
    def test_a_question_to_more_devices_than_its_bits_can_sum_is_none(
        self, bits: Literal[16, 32], most: int
    ) -> None:
        question = SumQuestion("a" * 64, {}, bits, most, 5, ("b" * 64,), 0.0)
        assert question.fixed.bound == LEAST_BOUND
        with pytest.raises(ValueError, match=f"at most {most} with {bits} bits, got {most + 1}"):
            msgspec.structs.replace(question, most=most + 1)
        text = encode(question).replace(b'"most":%d' % most, b'"most":%d' % (most + 1))
        with pytest.raises(Malformed, match=f"at most {most} with {bits} bits"):
            decode(text, SumQuestion)


class TestMasks:
    @pytest.mark.parametrize("bits", BITS)
    @pytest.mark.parametrize("count", [1, 7, 1000, 1_048_577])
    def test_masks_come_off_the_sum(self, bits: int, count: int) -> None:
        dtype = FixedPoint(bits, 3).dtype
        values = DRAWS.integers(0, 1 << bits, (3, count)).astype(dtype)
        seeds = [[DRAWS.bytes(SEED_BYTES) for _ in range(3)] for _ in values]
        total = np.zeros(count, dtype)
        for each, own in zip(values, seeds, strict=True):
            total += masked(each, own, "change")
        for own in seeds:
            for seed in own:
                total -= mask(seed, "change", count, dtype)
        assert (total == values.sum(axis=0, dtype=dtype)).all()

    def test_parts_have_masks_of_their_own(self) -> None:
        seed, dtype = bytes(SEED_BYTES), np.dtype("<u2")
        assert (mask(seed, "a", 64, dtype) != mask(seed, "b", 64, dtype)).sum() > 60

    def test_a_mask_is_uniform(self) -> None:
        drawn = mask(b"\1" * SEED_BYTES, "change", 1 << 16, np.dtype("<u2"))
        counts = np.bincount(drawn >> 8, minlength=256)
        assert ((counts - 256) ** 2 / 256).sum() < 350  # chi-square of 255 degrees: mean 255


class TestSealing:
    def test_a_text_opens_for_its_key_and_its_purpose_alone(self) -> None:
        key, other = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
        sealed = seal(b"seeds", key.public_key(), b"question 1")
        assert unseal(sealed, key, b"question 1") == b"seeds"
        for wrong in (
            (sealed, other, b"question 1"),
            (sealed, key, b"question 2"),
            (sealed[:-1] + bytes([sealed[-1] ^ 1]), key, b"question 1"),
            (b"\4" + bytes(64) + sealed[65:], key, b"question 1"),
            (sealed[:40], key, b"question 1"),
            (b"", key, b"question 1"),
        ):
            with pytest.raises(Untrusted, match="not sealed to this key for this purpose"):
                unseal(*wrong)

    def test_the_texts_of_the_vectors_open(self) -> None:
        for number, case in enumerate(VECTORS["sealed"]):
            key, purpose = secret_vectors.HELPERS[(20 + number) % 3], bytes.fromhex(case["purpose"])
            assert unseal(bytes.fromhex(case["sealed"]), key, purpose).hex() == case["text"]


@pytest.mark.parametrize("case", ANSWERS, ids=lambda case: case["name"])
class TestVectorsOfAnswers:
    def test_each_helper_opens_the_seeds_of_the_others(self, case: dict[str, Any]) -> None:
        share = msgspec.json.decode(case["share"], type=Share)
        helpers = case["question"]["helpers"]
        drawn = bytes.fromhex(case["drawn"])[-SEED_BYTES * len(helpers) :]
        keys = {key_digest(key.public_key()): key for key in secret_vectors.HELPERS}
        purpose = purpose_of(case["digest"], share.device_id, share.upload)
        for number, sealed in enumerate(share.sealed):
            seeds = [drawn[SEED_BYTES * j :][:SEED_BYTES] for j in seeds_of(number, len(helpers))]
            assert unseal(sealed, keys[helpers[number]], purpose) == b"".join(seeds)

    def test_these_seeds_hide_the_numbers(self, case: dict[str, Any]) -> None:
        question = msgspec.convert(case["question"], SumQuestion)
        drawn = io.BytesIO(bytes.fromhex(case["drawn"]))
        numbers = {
            part: np.array(bits, np.uint32).view(np.float32)
            for part, bits in case["numbers"].items()
        }
        integers = integers_of(question, numbers, drawn.read)
        assert drawn.read(UPLOAD_BYTES) == msgspec.json.decode(case["share"], type=Share).upload
        seeds = [drawn.read(SEED_BYTES) for _ in question.helpers]
        for part, values in case["values"].items():
            assert masked(integers[part], seeds, part).tolist() == values

    def test_the_device_has_signed_its_share(self, case: dict[str, Any]) -> None:
        key, share = secret_vectors.DEVICE_KEY.public_key(), case["share"].encode()
        assert has_signed(key, case["signature"], secret_vectors.SIGNED + share)
        assert not has_signed(key, case["signature"], share)
