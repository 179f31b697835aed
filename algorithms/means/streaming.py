"""The mean of models that come one at a time, whose bits do not depend on who sums up which of
them.

Every device has a place, and places are the leaves of a binary tree: models of one place are summed
in the order in which they come, branches in pairs. So a branch can be summed up on any machine, and
what travels is one sum instead of many models.
"""

from dataclasses import dataclass, field, replace
from zlib import crc32

import numpy as np

from algorithms.core.stack import column_blocks
from wire.arrays.tensors import Array

LEVELS = 8
"""Of the tree: a fleet has 2^8 places."""
BLOCK = 2**14
"""Numbers that are added at a time: they and their products stay in the cache."""


def place_of(device_id: str) -> int:
    """A device's leaf, the same in every round of every run."""
    return crc32(device_id.encode()) % (1 << LEVELS)


@dataclass
class Branch:
    """The sum over the places [index, index + 1) * 2^level: `total` (D,) float64 is the models
    times their examples; where no model has any (`weight` 0), the plain sum of `count` models;
    anything before the first has come."""

    level: int
    index: int
    total: Array = field(repr=False)
    weight: int = 0
    count: int = 0

    def add(self, model: Array, num_examples: int) -> None:
        """Take in one model. Its products with a count are exact in float64."""
        fresh = not self.count or (
            num_examples and not self.weight
        )  # models without examples count only where no model has any
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
        """Take in the branch beside this one."""
        if other.weight and not self.weight:
            self.total, other.total = other.total, self.total
        elif other.weight or not self.weight:
            self.total += other.total
        self.count, self.weight = self.count + other.count, self.weight + other.weight

    @property
    def begin(self) -> int:
        """Its first place."""
        return self.index << self.level


class StreamingMean:
    """What `WeightedMean` (or `UniformMean`, where every count given is 1) makes of models, in
    memory for a few models, however many come. It is of use where nobody looks at the models
    besides: see `Algorithm.streams`. Sums are made in float64.
    """

    def __init__(self, size: int) -> None:
        """`size`: D, the numbers in a model."""
        self._size = size
        self._branches: list[Branch] = []
        self._unused: list[Array] = []

    def add(self, model: Array, num_examples: int, place: int = 0) -> None:
        """Take in a model (D,) float32 that was trained on so many examples; it is not kept. Places
        must ascend."""
        last = self._branches[-1] if self._branches else None
        if last is None or (last.level, last.index) != (0, place):
            self._append(
                Branch(0, place, self._unused.pop() if self._unused else np.empty(self._size))
            )
        self._branches[-1].add(model, num_examples)

    def join(self, branch: Branch) -> None:
        """Take in what was summed up elsewhere, over places behind those that have come."""
        self._append(replace(branch, total=branch.total.copy()))

    def branch(self, level: int = LEVELS) -> Branch:
        """All that has come, as one branch of this level.

        Raises:
            ValueError: nothing has come, or it is not within one branch of this level.
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
        """The mean (D,) float32 of what has come.

        Raises:
            ValueError: nothing has come.
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
        """The last branch becomes the one above it, together with that beside it if there is
        one."""
        last = self._branches.pop()
        if self._branches and (self._branches[-1].level, self._branches[-1].index) == (
            last.level,
            last.index ^ 1,
        ):
            left = self._branches.pop()
            left.absorb(last)
            self._unused.append(last.total)
            last = left
        last.level, last.index = last.level + 1, last.index >> 1
        self._branches.append(last)
