"""A device's half of a secret sum: it masks its numbers, and seals the seeds of its masks. Pure.

The answer is stored before it is sent, and the same question gets the same bytes again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from wire.arrays import names
from wire.arrays.tensors import Array, Tensors
from wire.errors import Malformed, ShoalError
from wire.identity.certificates import TlsPublicKey, key_digest
from wire.messages import Metrics, Plan
from wire.secret.masks import SEED_BYTES, masked
from wire.secret.messages import ACCURACY, LOSS, SCALARS, about_of, digest_of, purpose_of, seeds_of
from wire.secret.noise import Draw, discrete_gaussian, rounded_within
from wire.secret.question import UPLOAD_BYTES, Noise, Share, SumQuestion
from wire.secret.sealing import seal

LEAST_SUM = 5
"""Smallest number of devices of a sum, unless the owner's policy has another one."""


class Declined(ShoalError):
    """SumQuestion that the policy of the device's owner forbids."""


@dataclass(frozen=True)
class SecretPolicy:
    """Policy of a device's owner for secret sums."""

    helpers: Sequence[TlsPublicKey]
    """Keys of the helpers that the owner has pinned, in any order."""
    min_sum: int = LEAST_SUM
    """Smallest number of devices of a sum in which the device takes part."""


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


def check_about(question: SumQuestion, plan: Plan, now_s: float) -> None:
    """Check that a question is about a plan, and open.

    The device then signs which model it started from, and a helper holds all sums about that model
    against each other.

    Args:
        question: the question.
        plan: the plan that the device has carried out.
        now_s: the aggregator's time, as well as the device knows it.

    Raises:
        Declined: it is about another bundle, model or list of verbs, or it is closed.
    """
    if question.about != about_of(plan.bundle, plan.model, plan.verbs):
        raise Declined("the question is not about the bundle, model and verbs of its plan")
    if now_s >= question.closes_at_s:
        late = now_s - question.closes_at_s
        raise Declined(f"the question was closed {late:.0f} s ago")


def numbers_of(
    question: SumQuestion, update: Tensors, received: Tensors, measured: Sequence[Metrics] = ()
) -> Tensors:
    """Return a device's numbers float32 (n,) by part: its changes, accuracy and loss.

    Args:
        question: the question.
        update: ``delta/NAME`` and ``statistic/NAME``; tensors that are not in it have not changed.
        received: model that the device received.
        measured: metrics of the received model on its test windows, and those of its training. The
            first ones that are over any windows count, so that every device has some.

    Raises:
        Malformed: a part is no tensor of the model, or has another size; or accuracy or loss have
            another clip than theirs (`SCALARS`).
    """
    metrics = next((each for each in measured if each.num_examples), Metrics())
    scalars = {ACCURACY: metrics.accuracy, LOSS: metrics.mean_loss}
    numbers: Tensors = {}
    for part, wanted in question.parts.items():
        if part in scalars:
            if wanted != SCALARS[part]:
                raise Malformed(f"question: part {part!r} must be {SCALARS[part]}, got {wanted}")
            value = np.float32(scalars[part])
            numbers[part] = np.array([value if np.isfinite(value) else 0], np.float32)
            continue
        if part not in received or names.role_of(part) not in names.EXCHANGED:
            raise Malformed(f"question: part {part!r} is no exchanged tensor of the model")
        change = _change(part, update, received).astype(np.float32).ravel()
        if len(change) != wanted.count:
            raise Malformed(
                f"question: part {part!r} has {wanted.count} numbers, the tensor {len(change)}"
            )
        finite = np.where(np.isfinite(change), change, np.float32(0))
        numbers[part] = np.clip(finite, -wanted.clip, wanted.clip)
    return numbers


def integers_of(question: SumQuestion, numbers: Mapping[str, Array], draw: Draw) -> Tensors:
    """Return the integers (n,) of a device's numbers by part, before they are masked."""
    if question.noise is not None:
        return _with_noise(question, question.noise, numbers, draw)
    integers = {}
    for part, wanted in question.parts.items():
        uniform = np.frombuffer(draw(4 * wanted.count), "<u4") / 2.0**32
        integers[part] = question.fixed.encode(numbers[part], wanted.clip, uniform)
    return integers


def answer(
    question: SumQuestion,
    numbers: Mapping[str, Array],
    device_id: str,
    policy: SecretPolicy,
    draw: Draw,
    rounding: Draw | None = None,
) -> tuple[Share, Tensors]:
    """Return a device's share, to be signed, and its masked integers by part.

    Args:
        question: the question.
        numbers: float32 (n,) by part, of the lengths in the question (`numbers_of`).
        device_id: the device's id.
        policy: the owner's policy.
        draw: source of random bytes.
        rounding: source of those that round the numbers; None for the same one.

    Raises:
        Declined: as `check_question`.
    """
    check_question(question, policy)
    keys = {key_digest(key): key for key in policy.helpers}
    integers = integers_of(question, numbers, rounding or draw)
    count, upload = len(question.helpers), draw(UPLOAD_BYTES)
    seeds = [draw(SEED_BYTES) for _ in range(count)]
    values = {part: masked(integers[part], seeds, part) for part in question.parts}
    purpose = purpose_of(question.digest, device_id, upload)
    sealed = tuple(
        seal(b"".join(seeds[j] for j in seeds_of(number, count)), keys[helper], purpose)
        for number, helper in enumerate(question.helpers)
    )
    return Share(question.digest, device_id, upload, digest_of(values), sealed), values


def _with_noise(
    question: SumQuestion, noise: Noise, numbers: Mapping[str, Array], draw: Draw
) -> Tensors:
    """Return the integers (n,) by part with noise: all parts together are clipped and rounded."""
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = np.concatenate(
            [
                numbers[part].astype(np.float64) * question.fixed.scale(wanted.clip)
                for part, wanted in question.parts.items()
            ]
        )
    # a clip near 0 makes infinite ones, which no rounding would bring within the norm
    rounded = rounded_within(np.where(np.isfinite(scaled), scaled, 0), noise.norm, draw)
    drawn = discrete_gaussian(noise.deviation, len(rounded), draw)
    ends = np.cumsum([wanted.count for wanted in question.parts.values()])[:-1]
    integers = np.split((rounded + drawn).astype(question.fixed.dtype), ends)
    return dict(zip(question.parts, integers, strict=True))


def _change(key: str, update: Tensors, received: Tensors) -> Array:
    if names.role_of(key) == names.STATISTIC:
        return update.get(key, received[key]) - received[key]
    return update.get(names.delta(names.name_of(key)), np.zeros_like(received[key]))
