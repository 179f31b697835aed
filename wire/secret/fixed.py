"""Fixed point: numbers as integers with exact sums (SPEC.md, 'Secret sums'). Pure.

Integers are unsigned and of 16 or 32 bits, and wrap. A sum of them is exact in any order, so that
masks can be added to it and taken off again.
"""

from dataclasses import dataclass

import numpy as np

from wire.arrays.tensors import Array


@dataclass(frozen=True)
class FixedPoint:
    """Fixed point for sums over at most `most` devices.

    A sum of `most` integers within ``-bound .. bound`` cannot wrap.
    """

    bits: int
    most: int
    largest: float | None = None
    """Integer for a number equal to its clip; None for the largest one that cannot wrap."""

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """The dtype of the integers: uint16 or uint32, little-endian."""
        return np.dtype(f"<u{self.bits // 8}")

    @property
    def bound(self) -> int:
        """Largest absolute value of an integer before it is summed."""
        return ((1 << (self.bits - 1)) - 1) // self.most

    def scale(self, clip: float) -> float:
        """Return the integer of the number 1, for numbers within ``-clip .. clip``."""
        return (self.largest or self.bound - 1) / clip

    def encode(self, numbers: Array, clip: float, uniform: Array) -> Array:
        """Return the integers (n,) of numbers (n,), rounded up or down at random.

        The integers are right in the mean. Numbers beyond the clip are cut, and those that are not
        finite become 0.

        Args:
            numbers: float32 (n,).
            clip: largest absolute value that is represented.
            uniform: float64 (n,) drawn uniformly from [0, 1), which decide the rounding.
        """
        exact = np.where(np.isfinite(numbers), numbers, 0).astype(np.float64) * self.scale(clip)
        rounded = np.clip(np.floor(exact + uniform), -self.bound, self.bound)
        return rounded.astype(np.int64).astype(self.dtype)

    def decode(self, total: Array, clip: float) -> Array:
        """Return the sum (n,) float64 that a sum (n,) of integers represents."""
        signed = total.view(f"<i{self.bits // 8}")
        return signed.astype(np.float64) / self.scale(clip)
