"""Which values an option of a choice may have."""

import math
from dataclasses import dataclass

BETWEEN = "/"
"""What stands between the numbers of a text."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Which values an option may have. A number lies from `low` to `high`, above `above` and below
    `below`."""

    low: float = -math.inf
    high: float = math.inf
    above: float = -math.inf
    below: float = math.inf
    choices: tuple[str, ...] = ()
    """What a text may be; anything when empty."""
    numbers: bool = False
    """Whether a text may also be numbers from 0, joined by `BETWEEN` (`read_numbers`)."""

    def hold(self, number: float) -> bool:
        """Whether a number lies within them."""
        return self.low <= number <= self.high and self.above < number < self.below

    def allow(self, text: str) -> bool:
        """Whether a text is one of them."""
        return (
            text in self.choices
            or (self.numbers and bool(read_numbers(text)))
            or not (self.choices or self.numbers)
        )


def read_numbers(text: str) -> tuple[float, ...]:
    """The numbers in a text such as ``1/2/0.5``, finite, from 0 and not all 0; none where it is
    something else."""
    try:
        numbers = tuple(float(part) for part in text.split(BETWEEN))
    except ValueError:
        return ()
    return numbers if all(0 <= number < math.inf for number in numbers) and any(numbers) else ()


NOT_NEGATIVE, POSITIVE, AT_LEAST_ONE = Limits(low=0), Limits(above=0), Limits(low=1)
SHARE, PART = Limits(low=0, high=1), Limits(low=0, below=1)
"""A part of a whole: any, and less than all of it."""
