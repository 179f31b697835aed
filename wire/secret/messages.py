"""Messages between an aggregator and helpers, and the signatures of secret sums. Pure.

SPEC.md, 'Secret sums'. Shares and the answers of helpers are signed by their senders.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec
import numpy as np

from wire.arrays.tensors import Tensors
from wire.codec import digest, encode
from wire.errors import Untrusted
from wire.fields import Digest, Name, Text
from wire.identity.certificates import TlsKey, TlsPublicKey, has_signed, sign_text
from wire.secret.question import MOST_HELPERS, Part, Share, SumQuestion
from wire.verbs import Mask, Verb

ACCURACY, LOSS = "accuracy", "loss"
"""Names of the parts that have the accuracy and the mean loss of the received model."""
SCALARS = {ACCURACY: Part(1, 1.0), LOSS: Part(1, 16.0)}
"""These parts. With other clips, sums over the same devices would tell single values."""


class ShareCheck(msgspec.Struct, frozen=True, tag="share-check"):
    """Helper to aggregator: the devices of a set whose shares the helper cannot use.

    It is no agreement to the set.
    """

    helper: Digest
    question: Digest
    set: Digest
    unusable: tuple[Name, ...]


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


Answer = ShareCheck | Agreement | MaskSums | SumRefusal
"""Answers of a helper."""


class SumRequest(msgspec.Struct, frozen=True, tag="sum-request"):
    """Aggregator to helper, signed: request to open the sum over a set of uploads.

    The helper checks the set if `check` is True. Otherwise it agrees to the set, and if all helpers
    have agreed, it opens its sums of masks.
    The shares of the set follow after a line feed. `keys` are the helpers' public keys (DER), in
    the order of the question. `seal_to` is the aggregator's key (DER), to which sums are sealed.
    """

    question: SumQuestion
    set: Digest
    keys: Annotated[tuple[bytes, ...], msgspec.Meta(max_length=MOST_HELPERS)]
    seal_to: bytes
    agreements: Annotated[Agreements, msgspec.Meta(max_length=MOST_HELPERS)] = ()
    check: bool = False


def about_of(bundle: Digest, model: Digest, verbs: Sequence[Verb]) -> Digest:
    """Return the digest of what a question is about: a bundle, a model and verbs."""
    before = [verb for verb in verbs if not isinstance(verb, Mask)]
    return digest(msgspec.json.encode([bundle, model, before]))


def set_digest(shares: Iterable[Share]) -> str:
    """Return the identity of a set of uploads: it binds every byte of their shares."""
    return set_of(digest(encode(share)) for share in shares)


def set_of(digests: Iterable[Digest]) -> str:
    """Return the identity of a set from the digest of each share."""
    return digest(msgspec.json.encode(sorted(digests)))


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
