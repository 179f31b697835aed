"""Long lists in pages. Pure."""

from typing import NamedTuple

PER_PAGE = 50


class Slice(NamedTuple):
    """Which part of a list is shown."""

    total: int
    number: int
    """Of the page, from 1."""
    last: int
    """The number of the last page."""

    @property
    def begin(self) -> int:
        """The index of the first that is shown."""
        return (self.number - 1) * PER_PAGE

    @property
    def end(self) -> int:
        """The index behind the last that is shown."""
        return min(self.total, self.number * PER_PAGE)


def slice_of(total: int, number: int) -> Slice:
    """The page of this number, or the nearest that there is."""
    last = max(1, -(-total // PER_PAGE))
    return Slice(total, min(max(1, number), last), last)
