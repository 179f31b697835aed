"""The aggregator's half of a secret sum: what becomes of a question, and its sum. Pure.

A `SecretSum` holds facts alone: what devices and helpers have sent, and that the set is closed.
Its stage and the requests to send follow from them. So a service that was killed sends the same
requests again, and helpers give the same answers.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Literal

import msgspec
import numpy as np
from msgspec.structs import replace

from wire.arrays.tensors import Tensors
from wire.errors import WireError
from wire.messages import Digest, Name
from wire.secret.fixed import bits_for
from wire.secret.messages import (
    Agreement,
    Answer,
    MaskSums,
    Shares,
    SumRefusal,
    SumRequest,
    digest_of,
    set_digest,
)
from wire.secret.parts import cut
from wire.secret.question import Part, Share, SumQuestion

Stage = Literal["collecting", "opening", "opened", "failed"]
"""Stage of a question.

Devices answer it; helpers open its set; they have opened it; or nobody ever will.
"""


class SecretUpload(msgspec.Struct, frozen=True):
    """Answer of a device to a question: its signed share. `blob` has its masked integers."""

    share: Share
    signature: str
    blob: Digest


class SecretSum(msgspec.Struct, frozen=True):
    """Question to a cohort, and what has come of it."""

    question: SumQuestion
    cohort: tuple[Name, ...]
    """Devices that may answer."""
    uploads: dict[Name, SecretUpload] = {}
    closed: bool = False
    """True if the set is that of the uploads, for ever. Save it before any request is sent."""
    agreements: dict[Digest, tuple[Agreement, str]] = {}
    """Signed agreements by helper."""
    masks: dict[Digest, Digest] = {}
    """Blobs with the sums of masks, by helper."""
    refusals: dict[Digest, str] = {}
    """Problems of helpers that have refused the set."""
    problem: str = ""
    """Reason that the opened sum cannot be used."""

    @property
    def shares(self) -> Shares:
        """Shares of the set."""
        return tuple(
            (self.uploads[d].share, self.uploads[d].signature) for d in sorted(self.uploads)
        )

    @property
    def set(self) -> Digest:
        """Identity of the set."""
        return set_digest(share for share, _ in self.shares)

    @property
    def failure(self) -> str:
        """Reason that the question has failed; empty if it has not."""
        question, least = self.question, self.question.min_sum
        if self.problem:
            return self.problem
        if self.closed and len(self.uploads) < least:
            return f"too-few: {len(self.uploads)} devices answered, at least {least} are needed"
        if len(question.helpers) - len(self.refusals) < question.quorum:
            return "; ".join(f"helper {h[:12]}: {self.refusals[h]}" for h in sorted(self.refusals))
        return ""

    @property
    def stage(self) -> Stage:
        """Stage of the question."""
        if self.failure:
            return "failed"
        if len(self.masks) >= self.question.quorum:
            return "opened"
        return "opening" if self.closed else "collecting"


def on_upload(secret: SecretSum, upload: SecretUpload, now_s: float) -> tuple[SecretSum, str]:
    """Return the sum after an upload, and the reason that it does not count; empty if it does.

    The same upload again changes nothing. The caller has checked the signature of its share.
    """
    share = upload.share
    if share.question != secret.question.digest:
        return secret, "wrong-question: the share is for another question"
    if share.device_id not in secret.cohort:
        return secret, f"not-asked: device {share.device_id} is not in the cohort"
    if before := secret.uploads.get(share.device_id):
        same = before == upload
        return secret, "" if same else "answered-before: the device has sent another answer"
    if secret.closed or now_s >= secret.question.closes_at_s:
        return secret, "closed: the question was closed before"
    return replace(secret, uploads={**secret.uploads, share.device_id: upload}), ""


def on_time(secret: SecretSum, now_s: float) -> SecretSum:
    """Return the sum at a time: closed at the deadline, or if every device has answered."""
    over = now_s >= secret.question.closes_at_s or len(secret.uploads) == len(secret.cohort)
    return replace(secret, closed=True) if over and not secret.closed else secret


def on_answer(secret: SecretSum, answer: Answer, signature: str, blob: str = "") -> SecretSum:
    """Return the sum after a helper's verified answer; `blob` has the sums of `MaskSums`.

    An answer that came before, or that is about another set, changes nothing.
    """
    helper = answer.helper
    if secret.stage != "opening" or helper not in secret.question.helpers:
        return secret
    match answer:
        case Agreement(question=question, set=members):
            if (question, members) == (secret.question.digest, secret.set):
                agreements = {**secret.agreements, helper: (answer, signature)}
                return replace(secret, agreements=agreements)
        case MaskSums(set=members) if members == secret.set:
            return replace(secret, masks={**secret.masks, helper: blob})
        case SumRefusal(question=question, problem=problem):
            if question == secret.question.digest and helper not in secret.masks:
                return replace(secret, refusals={**secret.refusals, helper: problem})
    return secret


def requests_of(
    secret: SecretSum, keys: Mapping[Digest, bytes], seal_to: bytes
) -> dict[Digest, SumRequest]:
    """Return the requests to send now, by helper; repeat them until their answers come.

    Args:
        secret: the sum.
        keys: public keys (DER) by helper.
        seal_to: the aggregator's public key (DER).
    """
    if secret.stage != "opening":
        return {}
    question = secret.question
    agreements = tuple(secret.agreements[helper] for helper in sorted(secret.agreements))
    agreed = len(agreements) >= question.quorum
    request = SumRequest(
        question,
        secret.set,
        tuple(keys[helper] for helper in question.helpers),
        seal_to,
        agreements if agreed else (),  # else the last helper would open without its agreement
    )
    waiting = set(question.helpers) - secret.masks.keys() - secret.refusals.keys()
    if not agreed:
        waiting -= secret.agreements.keys()
    return {helper: request for helper in question.helpers if helper in waiting}


def obstacle(present: Iterable[Name], earlier: Iterable[Iterable[Name]], min_sum: int) -> str:
    """Return the reason that helpers would not open a sum over these devices; empty if they would.

    Ask it before a round, of the devices that could answer. `earlier` are the sets opened before.
    """
    devices = frozenset(present)
    if len(devices) < min_sum:
        return f"{len(devices)} devices are there, at least {min_sum} are needed"
    parts = reduce(cut, earlier, frozenset[frozenset[Name]]())
    small = min(cut(parts, devices), key=len)
    if len(small) >= min_sum:
        return ""
    named = ", ".join(sorted(small))
    if small & devices:
        return f"the sum would show {len(small)} devices apart from all others: {named}"
    return (
        f"{len(small)} devices are absent, and helpers open no sum without them, unless {min_sum} "
        f"or more of those that were in the same sums are absent together: {named}"
    )


class SumMismatch(WireError):
    """Sums of masks of two helpers that contradict each other: one of the two is wrong."""


def question_of(
    about: Digest,
    parts: Mapping[str, Part],
    num_devices: int,
    min_sum: int,
    helpers: Sequence[str],
    closes_at_s: float,
) -> SumQuestion:
    """Return the question of a round.

    Args:
        about: digest of what is computed (`wire.secret.messages.about_of`).
        parts: parts of the sum.
        num_devices: number of devices that are asked.
        min_sum: smallest number of devices of the sum.
        helpers: digests of the helpers' keys.
        closes_at_s: deadline.
    """
    bits = bits_for(num_devices)
    return SumQuestion(about, dict(parts), bits, num_devices, min_sum, tuple(helpers), closes_at_s)


def total_of(question: SumQuestion, uploads: Iterable[Tensors]) -> Tensors:
    """Return the sum of masked integers, by part."""
    totals = {
        part: np.zeros(wanted.count, question.fixed.dtype)
        for part, wanted in question.parts.items()
    }
    for values in uploads:
        for part, total in totals.items():
            total += values[part]
    return totals


def opened(
    question: SumQuestion, total: Tensors, answers: Sequence[tuple[MaskSums, Tensors]]
) -> Tensors:
    """Return the sums (n,) float64 of the devices' numbers, by part.

    Args:
        question: the question.
        total: sum of the masked integers.
        answers: sums of masks of enough helpers to have each seed.

    Raises:
        SumMismatch: two helpers' sums of a seed differ, or a seed's sums are missing.
    """
    integers = {part: values.copy() for part, values in total.items()}
    for j in range(len(question.helpers)):
        digests = {sums.digests[str(j)] for sums, _ in answers if str(j) in sums.digests}
        masks = [
            {part: tensors[f"{j}/{part}"] for part in question.parts}
            for _, tensors in answers
            if all(f"{j}/{part}" in tensors for part in question.parts)
        ]
        if not masks:
            raise SumMismatch(f"sum-mismatch: no helper sent the masks of seed {j}")
        if len(digests) > 1 or digests != {digest_of(masks[0])}:
            raise SumMismatch(f"sum-mismatch: helpers differ about the masks of seed {j}")
        for part, values in integers.items():
            values -= masks[0][part]
    return {
        part: question.fixed.decode(values, question.parts[part].clip)
        for part, values in integers.items()
    }
