"""A mean of models that arrive one at a time; its bits do not depend on which machine adds them.

Every device has a place, and places are the leaves of a binary tree. Models of one place are added
in order of arrival, and branches are added in pairs. So any machine can sum a branch, and one sum
is sent instead of many models.
"""

from dataclasses import dataclass, field, replace
from zlib import crc32

import numpy as np

from algorithms.core.stack import column_blocks
from wire.arrays.tensors import Array

LEVELS = 8
"""Number of levels of the tree: a fleet has 2^8 places."""
BLOCK = 2**14
"""Number of values added at a time: they and their products stay in the cache."""


def place_of(device_id: str) -> int:
    """Return a device's leaf, which is the same in every round of every campaign."""
    return crc32(device_id.encode()) % (1 << LEVELS)


@dataclass
class Branch:
    """The sum over the places [index, index + 1) * 2^level.

    `total` (D,) float64 is the sum of the models times their numbers of examples. If no model has
    any examples (`weight` 0), it is the plain sum of `count` models. Before the first model its
    contents are undefined.
    """

    level: int
    index: int
    total: Array = field(repr=False)
    weight: int = 0
    count: int = 0

    def add(self, model: Array, num_examples: int) -> None:
        """Add one model (D,) float32. Its product with a number of examples is exact in float64."""
        # models without examples count only if no model has any
        fresh = not self.count or (num_examples and not self.weight)
        factor = float(num_examples or 1)
        if fresh:
            np.multiply(model, factor, out=self.total, dtype=np.float64)
        elif num_examples or not self.weight:
            product = np.empty(min(BLOCK, len(model)))
            for columns in column_blocks(len(model), BLOCK):
                part = product[: columns.stop - columns.start]
                np.multiply(model[columns], factor, out=part, dtype=np.float64)
                self.total[columns] += part
        self.count, self.weight = self.count + 1, self.weight + num_examples

    def absorb(self, other: "Branch") -> None:
        """Add the sum of the adjacent branch."""
        if other.weight and not self.weight:
            self.total, other.total = other.total, self.total
        elif other.weight or not self.weight:
            self.total += other.total
        self.count, self.weight = self.count + other.count, self.weight + other.weight

    @property
    def begin(self) -> int:
        """First place of the branch."""
        return self.index << self.level


class StreamingMean:
    """The mean of `WeightedMean`, in memory for a few models however many are added.

    With every number of examples set to 1 it is the mean of `UniformMean`. It can be used where
    nothing else needs the individual models: see `Algorithm.streams`. Sums are float64.
    """

    def __init__(self, size: int) -> None:
        """`size`: D, the number of values of a model."""
        self._size = size
        self._branches: list[Branch] = []
        self._unused: list[Array] = []

    def add(self, model: Array, num_examples: int, place: int = 0) -> None:
        """Add a model (D,) float32 trained on `num_examples` examples, without keeping the array.

        Raises:
            ValueError: the place is lower than that of an earlier model.
        """
        last = self._branches[-1] if self._branches else None
        if last is None or (last.level, last.index) != (0, place):
            self._append(
                Branch(0, place, self._unused.pop() if self._unused else np.empty(self._size))
            )
        self._branches[-1].add(model, num_examples)

    def join(self, branch: Branch) -> None:
        """Add a sum computed elsewhere, over places after all places added so far.

        Raises:
            ValueError: the branch begins before a place that was added.
        """
        self._append(replace(branch, total=branch.total.copy()))

    def branch(self, level: int = LEVELS) -> Branch:
        """Return everything added so far as one branch of this level.

        Raises:
            ValueError: nothing was added, or the models are not within one branch of this level.
        """
        if not self._branches:
            raise ValueError("the mean of no models: expected at least one to be added")
        while self._branches[-1].level < level:
            self._raise()
        if len(self._branches) > 1:
            raise ValueError(
                f"places up to {self._branches[-1].begin} are not within one branch of level "
                f"{level}"
            )
        return self._branches[0]

    def result(self) -> Array:
        """Return the mean (D,) float32 of all models added.

        Raises:
            ValueError: nothing was added.
        """
        whole = self.branch()
        return np.asarray(whole.total / (whole.weight or whole.count), np.float32)

    def _append(self, branch: Branch) -> None:
        if self._branches and branch.begin < self._branches[-1].begin:
            raise ValueError(
                f"place {branch.begin} after place {self._branches[-1].begin}: expected them to "
                "ascend"
            )
        while self._branches and (last := self._branches[-1]).index >> 1 != branch.begin >> (
            last.level + 1
        ):
            self._raise()
        self._branches.append(branch)

    def _raise(self) -> None:
        """Replace the last branch, and the adjacent one if there is one, by their parent."""
        last = self._branches.pop()
        if self._branches and (self._branches[-1].level, self._branches[-1].index) == (
            last.level,
            last.index ^ 1,
        ):
            sibling = self._branches.pop()
            sibling.absorb(last)
            self._unused.append(last.total)
            last = sibling
        last.level, last.index = last.level + 1, last.index >> 1
        self._branches.append(last)
