"""Payloads of devices, helpers and an aggregator (SPEC.md, 'Secret sums')."""

import msgspec
import numpy as np

from wire.arrays.tensors import Tensors, check_layout
from wire.codec import decode, encode
from wire.errors import Malformed, Untrusted
from wire.identity.certificates import TlsKey, TlsPublicKey, key_digest
from wire.identity.signed import Sign, Verifier
from wire.secret.messages import (
    Answer,
    Shares,
    SumRequest,
    check_signature,
    digest_of,
    seeds_of,
    sign,
)
from wire.secret.question import Share, SignedShare, SumQuestion
from wire.secret.sealing import seal, unseal

_HEADER_LINES = 4
_MASKED = "masked/"


def upload_of(share: Share, values: Tensors, key: TlsKey) -> tuple[SignedShare, Tensors]:
    """Return a device's signed share, and the tensors of its update, which are masked integers."""
    tensors: Tensors = {
        _MASKED + part: np.frombuffer(integers.tobytes(), np.uint8)
        for part, integers in values.items()
    }
    return SignedShare(share, sign(key, share)), tensors


def masked_values(signed: SignedShare, tensors: Tensors, question: SumQuestion) -> Tensors:
    """Return the masked integers (n,) of a device's update, by part.

    The signature of the share is not checked: helpers know the devices' keys.

    Raises:
        WrongLayout: the tensors are not those of an answer to the question.
        Untrusted: the share is for another question, or for other integers.
    """
    dtype = question.fixed.dtype
    expected = [
        (_MASKED + part, "uint8", (wanted.count * dtype.itemsize,))
        for part, wanted in question.parts.items()
    ]
    check_layout(tensors, expected, "masked update")
    values: Tensors = {
        part: np.frombuffer(tensors[_MASKED + part].tobytes(), dtype) for part in question.parts
    }
    if (signed.share.question, signed.share.values) != (question.digest, digest_of(values)):
        raise Untrusted("masked update: its share is for another question, or for other integers")
    return values


def encode_request(request: SumRequest, shares: Shares, sign_message: Sign) -> bytes:
    """Return the payload of a request: the signed message, a line feed, and the shares."""
    return sign_message(request) + b"\n" + msgspec.json.encode(shares)


def decode_request(payload: bytes, verifier: Verifier, now_s: float) -> tuple[SumRequest, Shares]:
    """Return a verified request and its shares, whose signatures are not checked.

    Raises:
        LimitExceeded, Malformed, Untrusted: as `Verifier.open`.
    """
    lines = payload.split(b"\n", _HEADER_LINES)
    request = verifier.open(b"\n".join(lines[:_HEADER_LINES]), SumRequest, now_s)
    try:
        return request, msgspec.json.decode(b"".join(lines[_HEADER_LINES:]), type=Shares)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Malformed(f"shares of a sum request: not readable: {error}") from None


def encode_answer(answer: Answer, key: TlsKey, sealed: bytes = b"") -> bytes:
    """Return the payload of a helper's answer: the message, its signature, and sealed sums."""
    return b"\n".join((encode(answer), sign(key, answer).encode(), sealed))


def decode_answer(payload: bytes, helper: TlsPublicKey) -> tuple[Answer, str, bytes]:
    """Return a helper's verified answer with its signature, and the sealed sums of `MaskSums`.

    Raises:
        LimitExceeded, Malformed: as `wire.codec.decode`.
        Untrusted: the helper has not signed it, or it is in the name of another one.
    """
    text, _, rest = payload.partition(b"\n")
    signed, _, sealed = rest.partition(b"\n")
    answer: Answer = decode(text, Answer)
    signature = signed.decode("ascii", "replace")
    check_signature(helper, signature, answer)
    if answer.helper != (signer := key_digest(helper)):
        raise Untrusted(f"answer in the name of {answer.helper[:12]}, signed by {signer[:12]}")
    return answer, signature, sealed


def seal_sums(sums: Tensors, seal_to: TlsPublicKey, set_name: str) -> bytes:
    """Return sums of masks, by ``SEED/PART``, that only the aggregator can open."""
    names = sorted(sums, key=lambda name: (int(name[: name.index("/")]), name))
    return seal(b"".join(sums[name].tobytes() for name in names), seal_to, _purpose(set_name))


def unseal_sums(sealed: bytes, key: TlsKey, set_name: str) -> bytes:
    """Return the bytes of a helper's sums of masks.

    Raises:
        Untrusted: they were not sealed to this key for this set.
    """
    return unseal(sealed, key, _purpose(set_name))


def read_sums(question: SumQuestion, helper: str, text: bytes) -> Tensors:
    """Return the sums of masks of a helper (its key's digest), by ``SEED/PART``, of their bytes.

    Raises:
        Untrusted: they have another size, or the question does not name the helper.
    """
    if helper not in question.helpers:
        raise Untrusted(f"helper {helper[:12]} is not in the question")
    number, dtype = question.helpers.index(helper), question.fixed.dtype
    sums, at = {}, 0
    for seed in seeds_of(number, len(question.helpers)):
        for part in sorted(question.parts):
            count = question.parts[part].count
            if len(text) < at + count * dtype.itemsize:
                raise Untrusted(f"sums of masks: {len(text)} bytes are too few for the question")
            sums[f"{seed}/{part}"] = np.frombuffer(text, dtype, count, at)
            at += count * dtype.itemsize
    return sums


def _purpose(set_name: str) -> bytes:
    return b"shoal/1 sums\n" + set_name.encode()
