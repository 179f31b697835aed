"""A helper's work: it agrees to one set for each question, and adds up masks. It sees no value."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from helper.core.ledger import Ledger, SetRefused
from wire.arrays.tensors import Tensors
from wire.identity.certificates import TlsKey, TlsPublicKey, key_digest
from wire.secret.masks import SEED_BYTES, mask
from wire.secret.messages import (
    Agreement,
    MaskSums,
    Question,
    Share,
    check_signature,
    digest_of,
    purpose_of,
    seeds_of,
    set_digest,
)
from wire.secret.sealing import unseal


@dataclass(frozen=True)
class Request:
    """Request to open the sum over a set: the question, and the signed shares of its uploads."""

    question: Question
    shares: Sequence[tuple[Share, bytes]]

    @property
    def set(self) -> str:
        """Identity of the set."""
        return set_digest(self.question.digest, (share for share, _ in self.shares))


def agree(
    request: Request,
    ledger: Ledger,
    own: str,
    devices: Mapping[str, TlsPublicKey],
    min_sum: int,
) -> tuple[Agreement, Ledger]:
    """Return the agreement to a set, and the ledger to store before the agreement is sent.

    Args:
        request: the set.
        ledger: what was agreed to before.
        own: digest of the helper's key.
        devices: keys of the fleet's devices.
        min_sum: the helper's own smallest number of devices of a sum.

    Raises:
        SetRefused: a rule forbids it.
        Untrusted: a share was not signed by its device.
    """
    question = request.question
    if own not in question.helpers:
        raise SetRefused(f"unknown-helper: the question does not name the helper {own[:12]}")
    uploads: dict[str, bytes] = {}
    for share, signature in request.shares:
        if share.question != question.digest:
            raise SetRefused(f"wrong-question: device {share.device_id} answered another question")
        if share.device_id not in devices:
            raise SetRefused(f"unknown-device: {share.device_id} is not in the roster")
        if share.device_id in uploads:
            raise SetRefused(f"opened-before: device {share.device_id} is in the set twice")
        check_signature(devices[share.device_id], signature, share)
        uploads[share.device_id] = share.upload
    if len(uploads) > question.most:
        raise SetRefused(f"too-many: {len(uploads)} devices, at most {question.most} can be summed")
    least = max(min_sum, question.min_sum)
    ledger = ledger.agree(question.digest, request.set, uploads, least)
    return Agreement(own, question.digest, request.set), ledger


def open_masks(
    request: Request,
    ledger: Ledger,
    key: TlsKey,
    helpers: Mapping[str, TlsPublicKey],
    agreements: Sequence[tuple[Agreement, bytes]],
) -> tuple[MaskSums, Tensors]:
    """Return the sums of masks over a set that a quorum of helpers has agreed to.

    Args:
        request: the set.
        ledger: what this helper has agreed to.
        key: key to which the seeds were sealed.
        helpers: keys of all helpers, by digest.
        agreements: agreements of helpers, with their signatures.

    Raises:
        SetRefused: too few helpers agree, or this one has not agreed.
        Untrusted: an agreement was not signed by its helper, or a seed was not sealed to this one.
    """
    question, own = request.question, key_digest(key.public_key())
    if ledger.sets.get(question.digest) != request.set:
        raise SetRefused("not-agreed: this helper has not agreed to the set")
    agreeing = {own}
    for agreement, signature in agreements:
        if agreement.helper not in question.helpers or agreement.helper not in helpers:
            raise SetRefused(f"unknown-helper: {agreement.helper[:12]}")
        check_signature(helpers[agreement.helper], signature, agreement)
        if (agreement.question, agreement.set) != (question.digest, request.set):
            raise SetRefused(f"split-view: helper {agreement.helper[:12]} agreed to another set")
        agreeing.add(agreement.helper)
    if len(agreeing) < question.quorum:
        raise SetRefused(
            f"no-quorum: {len(agreeing)} helpers agree, at least {question.quorum} are needed"
        )
    number = question.helpers.index(own)
    seeds = seeds_of(number, len(question.helpers))
    sums: Tensors = {
        f"{j}/{part}": np.zeros(wanted.count, question.fixed.dtype)
        for j in seeds
        for part, wanted in question.parts.items()
    }
    for share, _ in request.shares:
        text = unseal(
            share.sealed[number], key, purpose_of(share.question, share.device_id, share.upload)
        )
        for at, j in enumerate(seeds):
            seed = text[at * SEED_BYTES : (at + 1) * SEED_BYTES]
            for part, wanted in question.parts.items():
                sums[f"{j}/{part}"] += mask(seed, part, wanted.count, question.fixed.dtype)
    digests = {
        str(j): digest_of({part: sums[f"{j}/{part}"] for part in question.parts}) for j in seeds
    }
    return MaskSums(own, request.set, digests), sums
