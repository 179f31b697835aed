"""The units in which a fleet learns quantities."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Units:
    """Of each quantity its mean and its standard deviation over the fleet's training windows, in
    the user's own units. They are fixed when a bundle is made, as the size of a channel is:
    constants of its graphs, the same for every device."""

    center: tuple[float, ...]
    size: tuple[float, ...]
