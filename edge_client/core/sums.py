"""A device's half of a secret sum: it masks its numbers, and seals the seeds of its masks. Pure.

The answer is stored before it is sent, and the same question gets the same bytes again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from wire.arrays.tensors import Array, Tensors
from wire.errors import ShoalError
from wire.identity.certificates import TlsPublicKey, key_digest
from wire.secret.masks import SEED_BYTES, masked
from wire.secret.messages import (
    UPLOAD_BYTES,
    Share,
    SumQuestion,
    digest_of,
    purpose_of,
    seeds_of,
)
from wire.secret.sealing import seal

Draw = Callable[[int], bytes]
"""Function that returns so many random bytes."""


class Declined(ShoalError):
    """SumQuestion that the policy of the device's owner forbids."""


@dataclass(frozen=True)
class SecretPolicy:
    """Policy of a device's owner for secret sums."""

    helpers: Sequence[TlsPublicKey]
    """Keys of the helpers that the owner has pinned, in any order."""
    min_sum: int = 5


def check_question(question: SumQuestion, policy: SecretPolicy) -> None:
    """Check a question against the owner's policy.

    Raises:
        Declined: the sum may be over fewer devices, or other helpers would open it.
    """
    if question.min_sum < policy.min_sum:
        raise Declined(
            f"min_sum must be at least {policy.min_sum}, the owner's limit, got {question.min_sum}"
        )
    pinned = {key_digest(key) for key in policy.helpers}
    if len(set(question.helpers)) < len(question.helpers) or set(question.helpers) != pinned:
        raise Declined(
            f"helpers must be the {len(pinned)} that the owner has pinned, got "
            f"{', '.join(digest[:12] for digest in question.helpers)}"
        )


def answer(
    question: SumQuestion,
    numbers: Mapping[str, Array],
    device_id: str,
    policy: SecretPolicy,
    draw: Draw,
) -> tuple[Share, Tensors]:
    """Return a device's share, to be signed, and its masked integers by part.

    Args:
        question: the question.
        numbers: float32 (n,) by part, of the lengths in the question.
        device_id: the device's id.
        policy: the owner's policy.
        draw: source of random bytes.

    Raises:
        Declined: as `check_question`.
    """
    check_question(question, policy)
    keys = {key_digest(key): key for key in policy.helpers}
    count, upload = len(question.helpers), draw(UPLOAD_BYTES)
    seeds = [draw(SEED_BYTES) for _ in range(count)]
    values = {}
    for part, wanted in question.parts.items():
        uniform = np.frombuffer(draw(4 * wanted.count), "<u4") / 2.0**32
        integers = question.fixed.encode(numbers[part], wanted.clip, uniform)
        values[part] = masked(integers, seeds, part)
    purpose = purpose_of(question.digest, device_id, upload)
    sealed = tuple(
        seal(b"".join(seeds[j] for j in seeds_of(number, count)), keys[helper], purpose)
        for number, helper in enumerate(question.helpers)
    )
    return Share(question.digest, device_id, upload, digest_of(values), sealed), values
