"""Which values an option of a choice may have."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Which values an option may have. A number lies from `low` to `high`, above `above` and below `below`."""

    low: float = -math.inf
    high: float = math.inf
    above: float = -math.inf
    below: float = math.inf
    choices: tuple[str, ...] = ()
    """What a text may be; anything when empty."""

    def hold(self, number: float) -> bool:
        """Whether a number lies within them."""
        return self.low <= number <= self.high and self.above < number < self.below


NOT_NEGATIVE, POSITIVE, AT_LEAST_ONE = Limits(low=0), Limits(above=0), Limits(low=1)
SHARE, PART = Limits(low=0, high=1), Limits(low=0, below=1)
"""A part of a whole: any, and less than all of it."""
