"""Messages of secret sums (SPEC.md, 'Secret sums'). Pure.

A question asks every device of a cohort for the same numbers. A device answers with masked values
for the aggregator and with a share for the helpers, which has no values. Shares and the answers of
helpers are signed by their senders.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

import msgspec
import numpy as np

from wire.arrays.tensors import Tensors
from wire.codec import digest, encode
from wire.errors import Untrusted
from wire.fields import Digest, Name, Positive, Text
from wire.identity.certificates import TlsKey, TlsPublicKey, has_signed, sign_text
from wire.secret.fixed import FixedPoint, most_of
from wire.verbs import Verb

MOST_HELPERS = 4
UPLOAD_BYTES = 16
"""Number of bytes of the id of an upload, drawn at random."""
WEIGHT = "weight"
"""Name of the part that has a device's number of training windows, by which it counts in a mean."""


class Part(msgspec.Struct, frozen=True):
    """Numbers of one tensor: how many there are, and the largest absolute value of one."""

    count: Positive
    clip: Annotated[float, msgspec.Meta(gt=0)]


class SumQuestion(msgspec.Struct, frozen=True, tag="sum-question"):
    """Question of the aggregator to every device of a cohort, alike for all of them.

    `about` is the digest of what is computed: bundle, model and verbs. `most` is the largest number
    of devices of the sum. `helpers` are the digests of the helpers' keys.
    """

    about: Digest
    parts: dict[str, Part]
    bits: Literal[16, 32]
    most: Positive
    min_sum: Positive
    helpers: Annotated[tuple[Digest, ...], msgspec.Meta(min_length=1, max_length=MOST_HELPERS)]
    closes_at_s: float
    scheme: Literal["masks"] = "masks"

    def __post_init__(self) -> None:
        """Raise ValueError if numbers of `bits` bits are too coarse for a sum over `most`."""
        if self.most > (most := most_of(self.bits)):
            raise ValueError(f"most must be at most {most} with {self.bits} bits, got {self.most}")

    @property
    def digest(self) -> str:
        """Identity of the question: SHA-256 of its bytes."""
        return digest(encode(self))

    @property
    def num_bytes(self) -> int:
        """Number of bytes of its integers, those of one device or of one sum."""
        return sum(part.count for part in self.parts.values()) * self.bits // 8

    @property
    def fixed(self) -> FixedPoint:
        """Fixed point of its integers."""
        return FixedPoint(self.bits, self.most)

    @property
    def quorum(self) -> int:
        """Number of helpers that must agree on a set: all of three or fewer, three of four.

        One helper that sides with the aggregator may agree to two sets. Any two quorums have an
        honest helper in common, which agrees to one.
        """
        return min(len(self.helpers), 3)


class Share(msgspec.Struct, frozen=True, tag="share"):
    """Device to helpers, through the aggregator: sealed seeds of the masks, and no value."""

    question: Digest
    device_id: Name
    upload: Annotated[bytes, msgspec.Meta(min_length=UPLOAD_BYTES, max_length=UPLOAD_BYTES)]
    values: Digest
    """Digest of the masked values, so that the device signs this upload and no other."""
    sealed: tuple[bytes, ...]
    """Seeds for each helper: all but its own, or the only one."""


class SignedShare(msgspec.Struct, frozen=True, tag="signed-share"):
    """Device to aggregator, with tensors ``masked/PART``: its share and its signature."""

    share: Share
    signature: Text


class Agreement(msgspec.Struct, frozen=True, tag="agreement"):
    """Helper to aggregator and helpers: the set is the only one that it opens for the question."""

    helper: Digest
    question: Digest
    set: Digest


class MaskSums(msgspec.Struct, frozen=True, tag="mask-sums"):
    """Helper to aggregator, with tensors ``SEED/PART``: sums of masks over a set.

    `digests` has a digest for every seed that the helper knows, also of sums that another helper
    sends. So a wrong sum is noticed.
    """

    helper: Digest
    set: Digest
    digests: dict[str, Digest]


class SumRefusal(msgspec.Struct, frozen=True, tag="sum-refusal"):
    """Helper to aggregator: the sum of the question is not opened, with the problem.

    The problem begins with one of the reasons of SPEC.md, 'Secret sums'.
    """

    helper: Digest
    question: Digest
    problem: Text


Shares = tuple[tuple[Share, str], ...]
"""Shares of a set of uploads, with their devices' signatures."""
Agreements = tuple[tuple[Agreement, str], ...]
"""Agreements of helpers, with their signatures."""


Answer = Agreement | MaskSums | SumRefusal
"""Answers of a helper."""


class SumRequest(msgspec.Struct, frozen=True, tag="sum-request"):
    """Aggregator to helper, signed: request to open the sum over a set of uploads.

    The helper agrees to the set. If a quorum of helpers has agreed, it opens its sums of masks.
    The shares of the set follow after a line feed. `keys` are the helpers' public keys (DER), in
    the order of the question. `seal_to` is the aggregator's key (DER), to which sums are sealed.
    """

    question: SumQuestion
    set: Digest
    keys: Annotated[tuple[bytes, ...], msgspec.Meta(max_length=MOST_HELPERS)]
    seal_to: bytes
    agreements: Annotated[Agreements, msgspec.Meta(max_length=MOST_HELPERS)] = ()


def about_of(bundle: Digest, model: Digest, verbs: Sequence[Verb]) -> Digest:
    """Return the digest of what a question is about: the bundle, model and verbs of a plan."""
    return digest(msgspec.json.encode([bundle, model, verbs]))


def set_digest(shares: Iterable[Share]) -> str:
    """Return the identity of a set of uploads: it binds every byte of their shares."""
    return digest(msgspec.json.encode(sorted(digest(encode(share)) for share in shares)))


def digest_of(parts: Tensors) -> str:
    """Return the digest of the integers of an upload or a sum, in the order of their names."""
    total = hashlib.sha256()
    for name in sorted(parts):
        values = np.ascontiguousarray(parts[name])
        total.update(msgspec.json.encode([name, values.dtype.str, len(values)]))
        total.update(values.data)
    return total.hexdigest()


def seeds_of(helper: int, num_helpers: int) -> tuple[int, ...]:
    """Return the numbers of the seeds that a helper gets: all but its own, or the only one."""
    return tuple(j for j in range(num_helpers) if j != helper or num_helpers == 1)


def purpose_of(question: str, device_id: str, upload: bytes) -> bytes:
    """Return the purpose for which the seeds of an upload are sealed."""
    return b"shoal/1 seeds\n" + msgspec.json.encode([question, device_id, upload])


def sign(key: TlsKey, message: Share | Answer) -> str:
    """Return the signature of a message, in hexadecimal digits."""
    return sign_text(key, _signed(message))


def check_signature(key: TlsPublicKey, signature: str, message: Share | Answer) -> None:
    """Check the signature of a message.

    Raises:
        Untrusted: the signature was not made with this key for this message.
    """
    if not has_signed(key, signature, _signed(message)):
        kind = type(message).__struct_config__.tag
        raise Untrusted(f"{kind}: its signature was not made with the sender's key")


def _signed(message: Share | Answer) -> bytes:
    return b"shoal/1 secret\n" + encode(message)
