"""A helper's work: it agrees to one set for each question, and adds up masks. It sees no value."""

from collections.abc import Mapping, Set
from dataclasses import dataclass

import numpy as np

from helper.core.ledger import Ledger, SetRefused, UnusableShare
from wire.arrays.tensors import Tensors
from wire.errors import Untrusted
from wire.identity.certificates import TlsKey, TlsPublicKey, key_digest, read_public_key
from wire.pieces import MOST_BYTES
from wire.secret.masks import SEED_BYTES, mask
from wire.secret.messages import (
    Agreement,
    MaskSums,
    ShareCheck,
    Shares,
    SumRequest,
    check_signature,
    digest_of,
    purpose_of,
    seeds_of,
    set_digest,
)
from wire.secret.question import Share
from wire.secret.sealing import unseal


@dataclass(frozen=True)
class Rules:
    """Key of a helper, the fleet's devices, and its smallest sum: nothing of a request."""

    key: TlsKey
    devices: Mapping[str, TlsPublicKey]
    min_sum: int

    @property
    def name(self) -> str:
        """Digest of the helper's key."""
        return key_digest(self.key.public_key())


def unusable_in(request: SumRequest, shares: Shares, rules: Rules) -> tuple[str, ...]:
    """Return the devices of a set whose shares are not what they should have sent, sorted."""
    return tuple(
        sorted({share.device_id for share, s in shares if _problem(request, share, s, rules)})
    )


def check_set(request: SumRequest, shares: Shares, ledger: Ledger, rules: Rules) -> Set[str] | None:
    """Return the devices of a set to agree to, or None if the helper has agreed to it before.

    Raises:
        SetRefused: a rule forbids it.
        UnusableShare: a share is not what its device should have sent.
    """
    question = request.question
    if rules.name not in question.helpers:
        raise SetRefused(f"unknown-helper: the question does not name {rules.name[:12]}")
    if question.num_bytes > MOST_BYTES:
        raise SetRefused(
            f"too-large: {question.num_bytes} bytes of integers, at most {MOST_BYTES} are summed"
        )
    if set_digest(share for share, _ in shares) != request.set:
        raise SetRefused("wrong-set: the shares are not those of the set")
    devices: set[str] = set()
    for share, signature in shares:
        if share.question != question.digest:
            raise SetRefused(f"wrong-question: device {share.device_id} answered another question")
        if share.device_id in devices:
            raise SetRefused(f"opened-before: device {share.device_id} is in the set twice")
        if problem := _problem(request, share, signature, rules):
            raise UnusableShare(problem)
        devices.add(share.device_id)
    if len(devices) > question.most:
        raise SetRefused(f"too-many: {len(devices)} devices, at most {question.most} can be summed")
    least = max(rules.min_sum, question.min_sum)
    return None if ledger.check(question.digest, request.set, devices, least) else devices


def _problem(request: SumRequest, share: Share, signature: str, rules: Rules) -> str:
    """Return the reason that a device's share cannot be used; empty if it can."""
    if share.device_id not in rules.devices:
        return f"unknown-device: {share.device_id} is not in the roster"
    try:
        check_signature(rules.devices[share.device_id], signature, share)
        _seeds(request, share, rules)  # else a set that nobody can open uses up the question
    except Untrusted as error:
        return f"untrusted: device {share.device_id}: {error}"
    return ""


def all_agree(request: SumRequest, rules: Rules) -> bool:
    """Return True if all helpers agree to the set of a request.

    Raises:
        SetRefused: a helper agreed to another set, or the question does not name it.
        Untrusted: an agreement was not signed by its helper.
    """
    question, agreeing = request.question, {rules.name}
    keys = {key_digest(key): key for key in map(read_public_key, request.keys)}
    for agreement, signature in request.agreements:
        if agreement.helper not in question.helpers or agreement.helper not in keys:
            raise SetRefused(f"unknown-helper: {agreement.helper[:12]}")
        check_signature(keys[agreement.helper], signature, agreement)
        if (agreement.question, agreement.set) != (question.digest, request.set):
            raise SetRefused(f"split-view: helper {agreement.helper[:12]} agreed to another set")
        agreeing.add(agreement.helper)
    return len(agreeing) == len(question.helpers)


def sum_masks(request: SumRequest, shares: Shares, rules: Rules) -> tuple[MaskSums, Tensors]:
    """Return the sums of masks over a set that has passed `check_set` and `all_agree`."""
    question, dtype = request.question, request.question.fixed.dtype
    numbers = seeds_of(question.helpers.index(rules.name), len(question.helpers))
    sums: Tensors = {
        f"{j}/{part}": np.zeros(wanted.count, dtype)
        for j in numbers
        for part, wanted in question.parts.items()
    }
    for share, _ in shares:
        for j, seed in zip(numbers, _seeds(request, share, rules), strict=True):
            for part, wanted in question.parts.items():
                sums[f"{j}/{part}"] += mask(seed, part, wanted.count, dtype)
    digests = {
        str(j): digest_of({part: sums[f"{j}/{part}"] for part in question.parts}) for j in numbers
    }
    return MaskSums(rules.name, request.set, digests), sums


def _seeds(request: SumRequest, share: Share, rules: Rules) -> list[bytes]:
    """Return the seeds that a device has sealed to this helper.

    Raises:
        Untrusted: they were not sealed to this helper for this upload, or are of another number.
    """
    helpers = request.question.helpers
    number, expected = helpers.index(rules.name), len(seeds_of(0, len(helpers)))
    if len(share.sealed) != len(helpers):
        raise Untrusted(f"{len(share.sealed)} sealed texts, expected {len(helpers)}")
    purpose = purpose_of(share.question, share.device_id, share.upload)
    text = unseal(share.sealed[number], rules.key, purpose)
    if len(text) != expected * SEED_BYTES:
        raise Untrusted(f"sealed text of {len(text)} bytes, expected {expected} seeds")
    return [text[at : at + SEED_BYTES] for at in range(0, len(text), SEED_BYTES)]


def agreement(request: SumRequest, rules: Rules) -> Agreement:
    """Return this helper's agreement to the set of a request."""
    return Agreement(rules.name, request.question.digest, request.set)


def share_check(request: SumRequest, rules: Rules, unusable: tuple[str, ...] = ()) -> ShareCheck:
    """Return this helper's check of the set of a request."""
    return ShareCheck(rules.name, request.question.digest, request.set, unusable)
