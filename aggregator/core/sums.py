"""The aggregator's half of a secret sum: integers are added, masks come off. Pure."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from wire.arrays.tensors import Tensors
from wire.codec import digest
from wire.errors import WireError
from wire.messages import Verb
from wire.secret.fixed import bits_for
from wire.secret.messages import MaskSums, Part, SumQuestion, digest_of


class SumMismatch(WireError):
    """Sums of masks of two helpers that contradict each other: one of the two is wrong."""


def question_of(
    computed: tuple[str, str, Sequence[Verb]],
    parts: Mapping[str, Part],
    num_devices: int,
    min_sum: int,
    helpers: Sequence[str],
    closes_at_s: float,
) -> SumQuestion:
    """Return the question of a round.

    Args:
        computed: digests of bundle and model, and the verbs.
        parts: parts of the sum.
        num_devices: number of devices that are asked.
        min_sum: smallest number of devices of the sum.
        helpers: digests of the helpers' keys.
        closes_at_s: deadline.
    """
    about, bits = digest(msgspec.json.encode(computed)), bits_for(num_devices)
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
