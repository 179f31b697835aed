"""The aggregator's half of a secret sum: what becomes of a closed set, and its sum. Pure.

A `SecretSum` holds facts alone: the set, and what helpers have sent. Its stage and the requests to
send follow from them. So a service that was killed sends the same requests again, and helpers give
the same answers.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Literal

import msgspec
import numpy as np
from msgspec.structs import replace

from algorithms.core.cells import cell_key, cells_of
from wire.arrays.tensors import Tensors
from wire.errors import WireError
from wire.messages import Digest, Name
from wire.secret.messages import (
    Agreement,
    Answer,
    MaskSums,
    ShareCheck,
    SumRefusal,
    SumRequest,
    digest_of,
)
from wire.secret.parts import cut
from wire.secret.question import BITS, Noise, Part, SumQuestion, bits_for

Stage = Literal["opening", "opened", "failed"]
"""Stage of a sum: helpers open its set; they have opened it; or nobody ever will."""


class SecretSum(msgspec.Struct, frozen=True):
    """Sum over a set of devices that is closed for ever, and what helpers have answered."""

    question: SumQuestion
    set: Digest
    """Identity of the set."""
    devices: tuple[Name, ...]
    """Devices of the set."""
    asked_s: float = 0.0
    """Time at which helpers were last asked; 0 if they are to be asked at once."""
    checks: dict[Digest, tuple[Name, ...]] = {}
    """Devices whose shares a helper cannot use, by helper that has checked the set."""
    agreements: dict[Digest, tuple[Agreement, str]] = {}
    """Signed agreements by helper."""
    masks: dict[Digest, Digest] = {}
    """Blobs with the sums of masks, by helper."""
    refusals: dict[Digest, str] = {}
    """Problems of helpers that have refused the set."""
    problem: str = ""
    """Reason that the opened sum cannot be used."""

    @property
    def failure(self) -> str:
        """Reason that the sum has failed; empty if it has not."""
        if self.problem:
            return self.problem
        return "; ".join(f"helper {h[:12]}: {self.refusals[h]}" for h in sorted(self.refusals))

    @property
    def stage(self) -> Stage:
        """Stage of the sum."""
        if self.failure:
            return "failed"
        return "opened" if len(self.masks) == len(self.question.helpers) else "opening"

    @property
    def unusable(self) -> frozenset[Name]:
        """Devices whose shares a helper cannot use."""
        return frozenset().union(*self.checks.values())

    @property
    def checked(self) -> bool:
        """True if all helpers have checked the set, and can use every share."""
        return len(self.checks) == len(self.question.helpers) and not self.unusable

    @property
    def waiting(self) -> frozenset[Digest]:
        """Helpers whose next answer is missing: a check, an agreement or sums of masks."""
        answers: Mapping[Digest, object] = self.masks
        if not self.agreed:
            answers = self.agreements if self.checked else self.checks
        return frozenset(self.question.helpers) - answers.keys()

    @property
    def has_no_agreement(self) -> bool:
        """True if no helper can have agreed to the set, so that it counts in no later sum."""
        all_refuse = self.refusals.keys() >= set(self.question.helpers)
        return not self.agreements and (all_refuse or not self.checked)

    @property
    def agreed(self) -> bool:
        """True if all helpers have agreed to the set."""
        return len(self.agreements) == len(self.question.helpers)


def on_answer(secret: SecretSum, answer: Answer, signature: str, blob: str = "") -> SecretSum:
    """Return the sum after a helper's verified answer; `blob` has the sums of `MaskSums`.

    An answer that came before, or that is about another set, changes nothing. Answers after a
    refusal count, since they tell if any helper has agreed. After the last agreement, helpers are
    to be asked at once.
    """
    helper = answer.helper
    if secret.stage == "opened" or helper not in secret.question.helpers:
        return secret
    match answer:
        case ShareCheck(question=question, set=members, unusable=unusable):
            if (question, members) == (secret.question.digest, secret.set):
                after = replace(secret, checks={**secret.checks, helper: unusable})
                return replace(after, asked_s=0.0) if after.checked > secret.checked else after
        case Agreement(question=question, set=members):
            if (question, members) == (secret.question.digest, secret.set):
                agreements = {**secret.agreements, helper: (answer, signature)}
                after = replace(secret, agreements=agreements)
                return replace(after, asked_s=0.0) if after.agreed > secret.agreed else after
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
    request = SumRequest(
        question,
        secret.set,
        tuple(keys[helper] for helper in question.helpers),
        seal_to,
        agreements if secret.agreed else (),  # else the last one would open without its agreement
        check=not secret.checked,
    )
    return {helper: request for helper in question.helpers if helper in secret.waiting}


Cells = Iterable[Iterable[Name]]
"""Parts into which the sets of earlier sums cut the devices."""


def obstacle(sets: Iterable[Iterable[Name]], cells: Cells, min_sum: int) -> str:
    """Return the reason that helpers would not open sums over these sets; empty if they would.

    Sets that have no device in common may be opened in any order.
    """
    parts = frozenset(map(frozenset, cells))
    for members in sets:
        if reason := _obstacle(frozenset(members), parts, min_sum):
            return reason
        parts = cut(parts, members)
    return ""


def _obstacle(devices: frozenset[Name], parts: frozenset[frozenset[Name]], min_sum: int) -> str:
    if len(devices) < min_sum:
        return f"{min_sum - len(devices)} more: {len(devices)} of {min_sum} devices are there"
    small = min(cut(parts, devices), key=len)
    if len(small) >= min_sum:
        return ""
    named = ", ".join(sorted(small))
    if small & devices:
        return (
            f"{min_sum} or more in place of the {len(small)} that the sum would show apart: {named}"
        )
    return (
        f"{len(small)} that helpers open no sum without, unless {min_sum} or more of those that "
        f"were in the same sums are left out together: {named}"
    )


def cohorts_of(
    cells: Cells,
    ready: Set[Name],
    gone: Callable[[Name], bool],
    min_sum: int,
    key_of: Callable[[Name], str | None],
) -> tuple[dict[str, frozenset[Name]], str]:
    """Return the devices of each of the next sums by key, and what they wait for.

    The sums are over all devices of earlier sums that are not gone for good, so that the same
    devices are in every sum, and over new ones if there are enough of them to hide each other. The
    text is empty if they need not wait.

    Args:
        cells: parts into which earlier sums cut the devices.
        ready: devices that could answer now.
        gone: returns True for a device that will not answer any more.
        min_sum: smallest number of devices of a part.
        key_of: returns the key of the question to a device; None if there is none for it.
    """
    summed = frozenset[Name]().union(*cells)
    stay = _by_key((device for device in summed if not gone(device)), key_of)
    new = _by_key(ready - summed, key_of)
    if absent := frozenset().union(*stay.values()) - ready:
        return stay, f"devices that are in every secret sum: {first_names(absent)}"
    enough = {key: devices for key, devices in new.items() if len(devices) >= min_sum}
    cohorts = {
        key: stay.get(key, frozenset()) | enough.get(key, frozenset())
        for key in sorted(stay.keys() | enough.keys())
    } or {"": max(new.values(), key=len, default=frozenset())}
    return cohorts, obstacle(cohorts.values(), cells, min_sum)


def whole_cells(
    cells: Cells, ready: Set[Name], min_sum: int, key_of: Callable[[Name], str | None]
) -> dict[str, frozenset[Name]]:
    """Return the devices of each of the next sums over cells, by key.

    A part of earlier sums is a cell, and counts whole or not at all. `min_sum` new devices or more
    are divided into new cells. The arguments are those of `cohorts_of`.
    """
    parts = {frozenset(cell) for cell in cells}
    new = ready - frozenset[Name]().union(*parts)
    added = map(frozenset, cells_of(new, min_sum)) if len(new) >= min_sum else ()
    whole = sorted(map(sorted, [*(part for part in parts if part <= ready), *added]))
    starts = [key_of(devices[0]) for devices in whole]
    return {
        cell_key(start, number): frozenset(devices)
        for number, (start, devices) in enumerate(zip(starts, whole, strict=True))
        if start is not None
    }


def _by_key(
    devices: Iterable[Name], key_of: Callable[[Name], str | None]
) -> dict[str, frozenset[Name]]:
    by_key: dict[str, set[Name]] = {}
    for device in devices:
        if (key := key_of(device)) is not None:
            by_key.setdefault(key, set()).add(device)
    return {key: frozenset(members) for key, members in by_key.items()}


def first_names(devices: Iterable[Name]) -> str:
    """Return up to three names of devices and the number of the others, for people."""
    first, others = (ordered := sorted(devices))[:3], ordered[3:]
    return ", ".join(first) + (f" and {len(others)} more" if others else "")


class SumMismatch(WireError):
    """Sums of masks of two helpers that contradict each other: one is wrong, or a device lied."""


def question_of(
    about: Digest,
    parts: Mapping[str, Part],
    num_devices: int,
    min_sum: int,
    helpers: Sequence[str],
    closes_at_s: float,
    bits: Literal[16, 32] | None = None,
    group: str = "",
    noise: Noise | None = None,
) -> SumQuestion:
    """Return the question of a round.

    Args:
        about: digest of what is computed (`wire.secret.messages.about_of`).
        parts: parts of the sum.
        num_devices: largest number of devices of the sum.
        min_sum: smallest number of devices of the sum.
        helpers: digests of the helpers' keys.
        closes_at_s: deadline.
        bits: bits of an integer; None for the fewest.
        group: key of the model that the devices start from, or node of a survey.
        noise: noise of each device.
    """
    bits = bits or (BITS[-1] if noise else bits_for(num_devices))
    return SumQuestion(
        about,
        dict(parts),
        bits,
        num_devices,
        min_sum,
        tuple(helpers),
        closes_at_s,
        group=group,
        noise=noise,
    )


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
        answers: sums of masks of the helpers.

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
