"""Messages of secret sums (SPEC.md, 'Secret sums'). Pure.

A question asks every device of a cohort for the same numbers. A device answers with masked values
for the aggregator and with a share for the helpers, which has no values. Shares, agreements and
sums of masks are signed by their senders.
"""

import hashlib
from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec
import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
)

from wire.arrays.tensors import Tensors
from wire.errors import Untrusted
from wire.fields import Digest, Name, Positive
from wire.secret.fixed import FixedPoint

MOST_HELPERS = 4
UPLOAD_BYTES = 16
"""Number of bytes of the id of an upload, drawn at random."""


class Part(msgspec.Struct, frozen=True):
    """Numbers of one tensor: how many there are, and the largest absolute value of one."""

    count: Positive
    clip: Annotated[float, msgspec.Meta(gt=0)]


class Question(msgspec.Struct, frozen=True, tag="question"):
    """What the aggregator asks of every device of a cohort, alike for all of them.

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

    @property
    def digest(self) -> str:
        """Identity of the question: SHA-256 of its bytes."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()

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
    """By helper: all seeds but its own, or the only one."""


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


def set_digest(question: str, shares: Iterable[Share]) -> str:
    """Return the identity of a set of uploads that answer a question."""
    members = sorted((share.device_id, share.upload, share.values) for share in shares)
    return hashlib.sha256(msgspec.json.encode([question, members])).hexdigest()


def digest_of(parts: Tensors) -> str:
    """Return the digest of the integers of an upload or a sum, in the order of their names."""
    digest = hashlib.sha256()
    for name in sorted(parts):
        values = np.ascontiguousarray(parts[name])
        digest.update(msgspec.json.encode([name, values.dtype.str, len(values)]))
        digest.update(values.data)
    return digest.hexdigest()


def seeds_of(helper: int, num_helpers: int) -> tuple[int, ...]:
    """Return the numbers of the seeds that a helper gets: all but its own, or the only one."""
    return tuple(j for j in range(num_helpers) if j != helper or num_helpers == 1)


def purpose_of(question: str, device_id: str, upload: bytes) -> bytes:
    """Return the purpose for which the seeds of an upload are sealed."""
    return b"shoal/1 seeds\n" + msgspec.json.encode([question, device_id, upload])


def sign(key: EllipticCurvePrivateKey, message: Share | Agreement | MaskSums) -> bytes:
    """Return the signature of a message."""
    return key.sign(_signed(message), ECDSA(hashes.SHA256()))


def check_signature(
    key: EllipticCurvePublicKey, signature: bytes, message: Share | Agreement | MaskSums
) -> None:
    """Check the signature of a message.

    Raises:
        Untrusted: the signature was not made with this key for this message.
    """
    try:
        key.verify(signature, _signed(message), ECDSA(hashes.SHA256()))
    except InvalidSignature:
        kind = type(message).__struct_config__.tag
        raise Untrusted(f"{kind}: its signature was not made with the sender's key") from None


def _signed(message: Share | Agreement | MaskSums) -> bytes:
    return b"shoal/1 secret\n" + msgspec.json.encode(message)
