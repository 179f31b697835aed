"""Question of a secret sum, and a device's share of the answer (SPEC.md, 'Secret sums'). Pure.

A question asks every device of a cohort for the same numbers. A device answers with masked values
for the aggregator and with a share for the helpers, which has no values.
"""

import hashlib
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from wire.fields import Digest, MaybeName, Name, Positive, Text

LEAST_DEVIATION, MOST_DEVIATION = 4.0, 65536.0
"""Range of the standard deviation of a device's noise.

From the least on, a sum of discrete Gaussians differs from a discrete Gaussian by less than e^-150
of a probability. The most limits the memory of a table.
"""
REACH = 10
"""Largest noise, in standard deviations. Larger noise would have a chance below 2^-72."""

if TYPE_CHECKING:
    from wire.secret.fixed import FixedPoint

MOST_HELPERS = 4
UPLOAD_BYTES = 16
"""Number of bytes of the id of an upload, drawn at random."""


BITS: tuple[Literal[16, 32], ...] = (16, 32)
"""Sizes of an integer, in bits."""
LEAST_BOUND = 8
"""Smallest bound of an integer before it is summed; numbers would be too coarse below."""


def most_of(bits: int) -> int:
    """Return the largest number of devices of a sum of integers of so many bits."""
    return ((1 << (bits - 1)) - 1) // LEAST_BOUND


def bits_for(num_devices: int) -> Literal[16, 32]:
    """Return the smallest number of bits with which so many devices can be summed."""
    return 16 if num_devices <= most_of(16) else 32


class Part(msgspec.Struct, frozen=True):
    """Numbers of one tensor: how many there are, and the largest absolute value of one."""

    count: Positive
    clip: Annotated[float, msgspec.Meta(gt=0)]


class Noise(msgspec.Struct, frozen=True):
    """Noise that each device adds to its integers, so that their sum is differentially private."""

    norm: Annotated[float, msgspec.Meta(gt=0)]
    """Largest Euclidean norm of a device's numbers as integers, before they are rounded."""
    deviation: Annotated[float, msgspec.Meta(ge=LEAST_DEVIATION, le=MOST_DEVIATION)]
    """Standard deviation of a device's noise on each integer."""


class SumQuestion(msgspec.Struct, frozen=True, tag="sum-question"):
    """Question of the aggregator to every device of a cohort, alike for all of them.

    `about` is the digest of what is computed: bundle, model and verbs. `group` tells questions to
    several groups apart, which may train the same model. `most` is the largest number
    of devices of the sum. `helpers` are the digests of the helpers' keys. All of them must agree on
    a set: each then knows of every set, and no sets that some opened without the others combine.
    """

    about: Digest
    parts: dict[str, Part]
    bits: Literal[16, 32]
    most: Positive
    min_sum: Positive
    helpers: Annotated[tuple[Digest, ...], msgspec.Meta(min_length=1, max_length=MOST_HELPERS)]
    closes_at_s: float
    scheme: Literal["masks"] = "masks"
    group: MaybeName = ""
    noise: Noise | None = None
    """Noise in shares; the clip of each part is then the largest norm of all parts together."""

    def __post_init__(self) -> None:
        """Raise ValueError if integers of `bits` bits are too coarse for `most`, or would wrap."""
        if self.most > (most := most_of(self.bits)):
            raise ValueError(f"most must be at most {most} with {self.bits} bits, got {self.most}")
        if self.noise is None:
            return
        if self.bits < BITS[-1]:
            raise ValueError(f"bits must be {BITS[-1]} with noise, got {self.bits}")
        reach = self.most * self.noise.norm + REACH * self.noise.deviation * self.most**0.5
        if reach >= 1 << (self.bits - 1):
            raise ValueError(
                f"noise: the sum of {self.most} devices of norm {self.noise.norm:g} and deviation "
                f"{self.noise.deviation:g} must be below 2^31, got {reach:.3g}"
            )

    @property
    def digest(self) -> str:
        """Identity of the question: SHA-256 of its bytes."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()

    @property
    def num_bytes(self) -> int:
        """Number of bytes of its integers, those of one device or of one sum."""
        return sum(part.count for part in self.parts.values()) * self.bits // 8

    @property
    def fixed(self) -> "FixedPoint":
        """Fixed point of its integers."""
        from wire.secret.fixed import FixedPoint  # commands that only read settings need no numpy

        return FixedPoint(self.bits, self.most, self.noise.norm if self.noise else None)


class Share(msgspec.Struct, frozen=True, tag="share"):
    """Device to helpers, through the aggregator: sealed seeds of the masks, and no value."""

    question: Digest
    device_id: Name
    upload: Annotated[bytes, msgspec.Meta(min_length=UPLOAD_BYTES, max_length=UPLOAD_BYTES)]
    values: Digest
    """Digest of the masked values, so that the device signs this upload and no other."""
    sealed: tuple[bytes, ...]
    """Seeds for each helper: all but its own, or the only one."""


class SignedShare(msgspec.Struct, frozen=True):
    """A device's share and its signature, beside the tensors ``masked/PART``."""

    share: Share
    signature: Text
