"""Answers for windows that follow each other in time: activities last, so earlier windows count.

A hidden Markov chain over the classes with one number, `stay`: the probability that the next window
has the same class. All changes are equally likely. `stay` is learnt without labels from the model's
own answers, as two sums: expected stays and expected changes. It begins at chance, one divided by
the number of classes, where answers do not change, and stays there for windows in no order.

Inside the chain a window's probabilities are squared, since personal models are less sure than they
are right; answers are the square roots of the chain's.
"""

import math
from collections.abc import Callable, Iterator
from typing import Annotated

import msgspec
import numpy as np

from wire.arrays.tensors import Array

BEGIN_WINDOWS, MOST_WINDOWS = 10.0, 1000.0
"""Number of windows by chance beside the two sums, and maximum of the sums together."""
ERRORS = 2.0
"""Number of standard errors by which `stay` has to be above chance, else it is chance."""
Count = Annotated[float, msgspec.Meta(ge=0, le=MOST_WINDOWS)]


class StreamSums(msgspec.Struct, frozen=True):
    """Expected stays and changes between windows of a bundle (its digest)."""

    bundle: str
    stays: Count = 0.0
    changes: Count = 0.0

    def stay(self, classes: int) -> float:
        """Return the probability that the next window has the same class, at least chance."""
        windows = self.stays + self.changes + BEGIN_WINDOWS
        stay = (self.stays + BEGIN_WINDOWS / classes) / windows
        error = math.sqrt(stay * (1 - stay) / windows)
        return stay if stay - ERRORS * error > 1 / classes else 1 / classes

    def activity(self, classes: int) -> float:
        """Return the mean number of windows of an activity."""
        return 1 / (1 - self.stay(classes))

    def add(self, stayed: float) -> "StreamSums":
        """Return the sums after one more window, whose class has `stayed` with this probability."""
        scale = MOST_WINDOWS / max(MOST_WINDOWS, self.stays + self.changes + 1)
        changes = self.changes + 1 - stayed
        return StreamSums(self.bundle, scale * (self.stays + stayed), scale * changes)


class Activity(msgspec.Struct, frozen=True):
    """Windows in a row whose filtered answers have the same class, a number.

    `begin_s` and `last_s` are the begins of the first and the last one.
    """

    begin_s: float
    last_s: float
    windows: int
    number: int


class StreamFilter:
    """Filter over the model's probabilities for a stream. It starts anew at each gap."""

    def __init__(
        self,
        sums: StreamSums,
        step_s: float,
        lag: int = 0,
        on_activity: Callable[[Activity], None] = lambda _activity: None,
    ) -> None:
        """Start with the sums of earlier streams.

        Args:
            sums: sums of earlier windows of the same bundle.
            step_s: seconds from window to window where there is no gap.
            lag: number of later windows that an answer waits for.
            on_activity: called with each activity that is over.
        """
        self.sums, self._step_s, self._lag, self._next_s = sums, step_s, lag, np.inf
        self._on_activity, self._activity = on_activity, Activity(0.0, 0.0, 0, -1)
        self._last: Array | None = None
        self._waiting: list[tuple[float, Array, Array]] = []
        """Begin, filtered and own probabilities of each window without an answer."""

    def answer(self, begin_s: float, p: Array) -> Iterator[tuple[float, Array]]:
        """Yield the begins and answers that the probabilities p (classes,) of a window allow."""
        total = float(p.sum(dtype=np.float64))
        if not (has_answer := 0 < total < np.inf) or (
            abs(begin_s - self._next_s) >= self._step_s / 2
        ):
            yield from self.end()
        if not has_answer:
            yield begin_s, p
            return
        filtered = squares = _scaled(np.square(p, dtype=np.float64))
        if self._last is not None:
            stay = self.sums.stay(len(p))
            joint = _moved(self._last, stay) * squares
            stayed = stay * float(self._last @ squares) / float(joint.sum())
            self.sums, filtered = self.sums.add(min(1.0, stayed)), _scaled(joint)
        self._last, self._next_s = filtered, begin_s + self._step_s
        self._follow(begin_s, int(filtered.argmax()))
        self._waiting.append((begin_s, filtered, squares))
        if len(self._waiting) > self._lag:
            yield self._first()

    def end(self) -> Iterator[tuple[float, Array]]:
        """Yield the answers that still wait. The next window starts a stream."""
        self._last = None
        self._follow(0.0, -1)
        while self._waiting:
            yield self._first()

    def _follow(self, begin_s: float, number: int) -> None:
        """Note the class of the window that begins then, -1 if there is no window."""
        before = self._activity
        if number == before.number:
            first_s, windows = before.begin_s, before.windows + 1
        else:
            first_s, windows = begin_s, 1
        self._activity = Activity(first_s, begin_s, windows, number)
        if number != before.number and before.number >= 0:
            self._on_activity(before)

    def _first(self) -> tuple[float, Array]:
        """Return the begin and the answer of the first waiting window, by all later ones."""
        begin_s, answer, _ = self._waiting.pop(0)
        if self._waiting:
            later = np.ones(len(answer))
            for _, _, squares in reversed(self._waiting):
                later = _moved(_scaled(squares * later), self.sums.stay(len(later)))
            answer = answer * later
        return begin_s, _scaled(np.sqrt(answer)).astype(np.float32)


def _moved(p: Array, stay: float) -> Array:
    """Return p (classes,), whose sum is 1, after one step of the chain."""
    change = (1 - stay) / max(1, len(p) - 1)
    return change + (stay - change) * p


def _scaled(p: Array) -> Array:
    """Return p (classes,) with the sum 1."""
    scaled: Array = p / p.sum()
    return scaled
